"""Wrong calls of a policy: each is refused in our words, and changes nothing."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scripts.attack.misuses import CALLS, STATE, TWO, call_wrongly

import saformer
from saformer.agents.checked import CheckedPolicy
from saformer.agents.registry import create_agent
from saformer.data.relabel import relabel
from saformer.envs import allowance
from saformer.envs.costed import Costed
from tests.conftest import randomise, tiny_config
from tests.contracts.cases import CASES
from tests.reliability.test_foreign_code import tiny_preset


@pytest.fixture(scope="module", params=["saformer", "cdt", "cpq"])
def policy(request):
    data = relabel(allowance.dataset(episodes=20), allowance.criteria())
    config = tiny_config() if request.param == "saformer" else CASES[request.param].config(0.0, 1)
    agent = create_agent(data, config, seed=0)
    randomise(agent.model)
    return SimpleNamespace(make=lambda: CheckedPolicy(agent.policy(), agent.dimensions))


def test_wrong_calls_are_refused_in_our_words(policy):
    """ValueError, one line, what was given or what is to be done. Seen to fail without the checks,
    142 of 178: TypeError, AttributeError and RuntimeError of torch, and 26 accepted in silence."""
    assert len(CALLS) >= 88
    problems = {case: call_wrongly(policy.make(), case) for case in CALLS}
    problems = {case: problem for case, problem in problems.items() if problem}
    assert not problems, f"{len(problems)} of {len(CALLS)}: {problems}"


def test_right_calls_of_every_kind_are_accepted(policy):
    """Seen to fail when one row may not lack its axis."""
    made = policy.make()
    for state in (
        STATE,
        np.array(STATE),
        torch.tensor([STATE]),
        [[1, 1]],
        torch.ones(2).requires_grad_(),
    ):
        made.reset(state, 1)
        assert made.act(state).action.shape == (1, 1)
        made.observe(1, np.float64(0.25))
        assert made.budget.spent.tolist() == [[0.25]]
    made.reset(TWO, [1.0, 2.0])
    made.act([TWO[1]], [1])
    made.observe([0.0], [[0.5]], np.array([1]), action=[0.5])
    made.reset(TWO[1], 3.0, torch.tensor([1]))
    made.act(TWO)
    assert made.budget.limit.tolist() == [[1.0], [3.0]]


@pytest.mark.parametrize(("name", "rule"), [("saformer", "paper"), ("bcq_lag", "bcq_lag")])
def test_more_candidates_than_memory_are_refused(data, name, rule):
    """They took all memory. Seen to fail when nobody computes it, for either."""
    agent = create_agent(data, CASES[name].config(0.0, 1), seed=0)
    options = agent.changed(agent.options_of(agent.config, rule), {"candidates": 10**9})
    with pytest.raises(ValueError, match=r"1,000,000,000 candidates would take about [\d,]+ GB"):
        agent.policy(options)


def test_what_people_get_is_checked(tmp_path):
    """Seen to fail when `Trained.policy` gives the policy itself."""
    how = {"data_steps": 400, "out": tmp_path / "run", "device": "cpu"}
    trained = saformer.train("allowance", preset=tiny_preset(), **how)
    with pytest.raises(ValueError, match="no episode has begun"):
        trained.policy().act(STATE)


class Scalar(allowance.Allowance):
    """Observes one number where its space says two."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self._when = when

    def reset(self, **keywords):
        state, info = super().reset(**keywords)
        return (0.5 if self._when == "reset" else state), info

    def step(self, action):
        state, *others = super().step(action)
        return (np.float32(0.5) if self._when == "step" else state[:1], *others)


@pytest.mark.parametrize("when", ["reset", "step", "short"])
def test_an_observation_is_never_stretched(when):
    """Seen to fail when it is broadcast over the state: (0.5, 0.5)."""
    environment = Costed(Scalar(when), ())

    def one_step():
        environment.reset(seed=0)
        environment.step(np.zeros(1))

    with pytest.raises(ValueError, match=r"gave an observation of shape \(1?,?\), its space says"):
        one_step()
