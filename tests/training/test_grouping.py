"""Which runs are packed, and that many runs are as many ordinary ones."""

import os
import shutil
import signal
from dataclasses import replace

import pytest
import torch

import saformer
from saformer import Listener, build_data
from saformer.agents.cdt import CDTAgent, CDTConfig
from saformer.agents.dt import DTAgent, DTConfig
from saformer.core.transformer import TrunkConfig
from saformer.runs.run import Run
from saformer.training.loop.fit import InterruptedTrainingError
from saformer.training.loop.presets import small
from saformer.training.loop.trainer import Member
from saformer.training.packs.grouping import LARGEST_PACK, grouped
from tests.alone import fit
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
    """Other agents, other sizes, other updates. Seen to fail when interrupted runs join fresh
    ones."""
    pair = members(tmp_path)
    dt = [
        Member(agent, agent.sampler(data))
        for data in (HOPPER, CHEETAH)
        for agent in [
            DTAgent.create(data, DTConfig(window=4, trunk=TrunkConfig(layers=1, width=16)), seed=0)
        ]
    ]
    assert sizes([*pair, *dt]) == [2, 1, 1]  # padded actions would count in other agents' losses
    fit(pair[0].agent, pair[0].sampler, replace(CONFIG, updates=3), run=pair[0].run)
    assert sizes(pair) == [1, 1]


def test_runs_of_other_horizons_are_not_packed():
    """CDT scales what a step costs by the horizon. Seen to fail when a pack takes the first run's
    for all."""
    sequences = [
        CDTAgent.create(HOPPER, CDTConfig(window=4, trunk=TrunkConfig(layers=1, width=16)), seed=0)
    ] * 2
    sampler = sequences[0].sampler(HOPPER)
    longer = CDTAgent(replace(sequences[0].dimensions, horizon=99), sequences[0].config)
    assert sizes([Member(agent, sampler) for agent in (*sequences, longer)]) == [2, 1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds on Allowance, trained by one call, and the folder they are in."""
    out = tmp_path_factory.mktemp("runs")
    return together(out), out


def together(out, *, tasks=("allowance",), seeds=(0, 1), listener=None):
    preset = small()
    fit_config = replace(preset.fit, updates=12, batch_size=8, evaluate_every=0, checkpoint_every=5)
    agent = replace(preset.agent, trunk=TrunkConfig(layers=1, width=16))
    return saformer.train_together(
        tasks, seeds=seeds, preset=replace(preset, agent=agent, fit=fit_config), data_steps=2000, out=out,
        device="cpu", listener=listener,
    )  # fmt: skip


def test_every_task_and_seed_has_a_run_of_its_own(runs):
    trained, out = runs
    assert [run.spec.seed for run in trained] == [0, 1]
    assert all(run.is_done and run.path.parent == out for run in trained)


def test_finished_runs_are_not_redone(runs):
    """Seen to fail when runs are begun anew."""
    trained, out = runs
    files = sorted(path for run in trained for path in run.path.iterdir())
    before = [path.stat().st_mtime_ns for path in files]
    together(out)
    assert [path.stat().st_mtime_ns for path in files] == before


def test_finished_runs_keep_their_metrics_if_their_weights_were_removed(runs, tmp_path):
    """Results are small and weights are not. Seen to fail when what has no checkpoint is begun
    anew."""
    out = shutil.copytree(runs[1], tmp_path / "runs")
    for weights in out.glob("*/checkpoint.safetensors"):
        weights.unlink()
    before = {path: path.read_text() for path in out.glob("*/metrics.jsonl")}
    assert len(before) == 2
    assert all(run.is_done for run in together(out))
    assert {path: path.read_text() for path in out.glob("*/metrics.jsonl")} == before
    with pytest.raises(FileExistsError, match="already holds a run"):
        Run.create(next(iter(before)).parent, runs[0][0].spec)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seeds": (0, 1, 0)}, "seed 0 was named more than once"),
        ({"tasks": ("allowance", "allowance")}, "task allowance was named more than once"),
        ({"tasks": ("allowance", "nosuch")}, "no task, store or file 'nosuch'"),
    ],
)
def test_wrong_tasks_and_seeds_cost_nothing(tmp_path, wrong, message):
    """Seen to fail when two runs share a folder, or a wrong name is found after the data of others
    was made."""
    with pytest.raises(ValueError, match=message):
        together(tmp_path / "runs", **wrong)
    assert not (tmp_path / "runs").exists()


def test_every_limit_has_runs_of_its_own(tmp_path):
    """As numbers, not only as names. Seen to fail when all are trained for the first limit."""
    small_ = small("cpq")
    fit_config = replace(small_.fit, updates=2, batch_size=8, evaluate_every=0)
    preset = replace(small_, fit=fit_config)
    made = saformer.train_together(
        ["allowance"],
        limit=["p20", 9.0],
        preset=preset,
        data_steps=2000,
        out=tmp_path,
        device="cpu",
    )
    assert [run.spec.limit for run in made] == ["p20", "9.0"]
    limits = [run.spec.agent_config["limit"][0] for run in made]
    assert limits[1] == 9.0
    assert limits[0] < 9.0
    with pytest.raises(ValueError, match=r"limit 9\.0 was named more than once"):
        saformer.train_together(
            ["allowance"], limit=[9.0, 9.0], preset=preset, data_steps=2000, out=tmp_path
        )


def test_every_task_may_have_a_limit_of_its_own(tmp_path):
    """Seen to fail when all tasks are trained for all limits."""
    small_ = small("cpq")
    preset = replace(small_, fit=replace(small_.fit, updates=2, batch_size=8, evaluate_every=0))
    stores = {
        str(build_data("allowance", steps=steps)): f"p{steps // 100}" for steps in (1000, 2000)
    }
    made = saformer.train_together(
        list(stores), limit=stores, preset=preset, out=tmp_path, device="cpu"
    )
    assert [run.spec.limit for run in made] == ["p10", "p20"]
    with pytest.raises(ValueError, match="names no limit for allowance, only for"):
        saformer.train_together(
            ["allowance"], limit=stores, preset=preset, out=tmp_path, device="cpu"
        )


def test_an_interrupt_at_the_end_of_a_run_stops_the_next(tmp_path):
    """What has finished is kept, and the same call goes on. Seen to fail when each run listens for
    itself."""

    def interrupt(update, updates, metrics):
        if update == updates:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(InterruptedTrainingError, match="stopped after 1 of 2 runs"):
        together(tmp_path, listener=Listener(training=interrupt))
    assert sorted(path.parent.name.split("-")[2] for path in tmp_path.glob("*/done.json")) == [
        "seed0"
    ]
    assert all(run.is_done for run in together(tmp_path))
