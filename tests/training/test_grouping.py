"""Which runs are packed, and that many runs are as many ordinary ones."""

from dataclasses import replace

import pytest
import torch

import saformer
from saformer.agents.dt import DTAgent, DTConfig
from saformer.core.transformer import TrunkConfig
from saformer.training.fit import fit
from saformer.training.grouping import LARGEST_PACK, grouped
from saformer.training.presets import small
from saformer.training.trainer import Member
from tests.training.test_together import CHEETAH, CONFIG, HOPPER, members

GPU = torch.device("cuda")


def sizes(given: list[Member], device: torch.device = GPU) -> list[int]:
    return [len(group) for group in grouped(given, device)]


def test_runs_of_one_architecture_are_packed_on_a_gpu_alone(tmp_path):
    """Seen to fail when a CPU packs them too: it would only be slower."""
    pair = members(tmp_path)
    assert sizes(pair) == [2]
    assert sizes(pair, torch.device("cpu")) == [1, 1]
    assert sizes(pair[:1] * (LARGEST_PACK + 3)) == [LARGEST_PACK, 3]


def test_runs_that_differ_are_not_packed(tmp_path):
    """Other agents, other sizes, other updates. Seen to fail when interrupted runs join fresh ones."""
    pair = members(tmp_path)
    dt = [
        Member(agent, agent.sampler(data))
        for data in (HOPPER, CHEETAH)
        for agent in [DTAgent.create(data, DTConfig(window=4, trunk=TrunkConfig(layers=1, width=16)), seed=0)]
    ]
    assert sizes([*pair, *dt]) == [2, 1, 1]  # padded actions would count in other agents' losses
    fit(pair[0].agent, pair[0].sampler, replace(CONFIG, updates=3), run=pair[0].run)
    assert sizes(pair) == [1, 1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds on Allowance, trained by one call, and the folder they are in."""
    out = tmp_path_factory.mktemp("runs")
    return together(out), out


def together(out, **changes):
    preset = small()
    fit_config = replace(preset.fit, updates=12, batch_size=8, evaluate_every=0, checkpoint_every=5, **changes)
    agent = replace(preset.agent, trunk=TrunkConfig(layers=1, width=16))
    return saformer.train_together(
        ["allowance"], seeds=(0, 1), preset=replace(preset, agent=agent, fit=fit_config), data_steps=2000, out=out,
        device="cpu",
    )  # fmt: skip


def test_every_task_and_seed_has_a_run_of_its_own(runs):
    trained, out = runs
    assert [run.spec.seed for run in trained] == [0, 1]
    assert all(run.is_done and run.path.parent == out for run in trained)


def test_finished_runs_are_not_redone(runs):
    """Seen to fail when runs are begun anew."""
    trained, out = runs
    before = [run.checkpoint_path.stat().st_mtime_ns for run in trained]
    again = together(out)
    assert [run.checkpoint_path.stat().st_mtime_ns for run in again] == before
