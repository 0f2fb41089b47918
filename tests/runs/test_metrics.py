"""How metrics are named, and what is made of the names."""

import io

import pytest
from rich.console import Console

from saformer.agents.registry import KINDS, create_agent
from saformer.cli.progress import listening
from saformer.runs.metrics import terms_by_phase
from saformer.training.loop.config import FitConfig
from tests.alone import Trainer
from tests.contracts.cases import CASES

ROW = {
    "update": 10,
    "learning_rate": 0.1,
    "actor/reward": -0.5,
    "actor/overrun": 0.25,
    "actor/watched/expected_cost_0": 4824.0,
    "actor/gradient_norm": 3.0,
    "vae/misfit": 2.0,
}


def test_terms_are_told_from_what_is_only_watched():
    assert terms_by_phase(ROW) == {
        "actor": ["actor/reward", "actor/overrun"],
        "vae": ["vae/misfit"],
    }
    assert terms_by_phase(ROW, watched=True) == {"actor": ["actor/watched/expected_cost_0"]}


def test_progress_shows_what_is_minimised():
    """Seen to fail when an expected cost of thousands is added to losses."""
    said = io.StringIO()
    with listening(Console(file=said, width=200)) as listener:
        listener.training(10, 10, ROW)
    assert said.getvalue().split() == [
        "training:",
        "10",
        "of",
        "10",
        "actor",
        "-0.2500",
        "vae",
        "2.0000",
    ]


@pytest.mark.parametrize("name", list(KINDS))
def test_the_terms_of_every_agent_are_those_that_reach_modules(data, name):
    """The contract names them. Seen to fail when what is watched is named like a term."""
    agent = create_agent(data, CASES[name].config(0.0, data.cost.shape[1]), seed=0)
    found = Trainer(agent, agent.sampler(data), FitConfig(batch_size=4), seed=0).step()
    assert {term for terms in terms_by_phase(found).values() for term in terms} == set(
        CASES[name].reaches
    )
