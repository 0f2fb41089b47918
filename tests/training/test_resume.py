"""Stopping anywhere loses nothing that a checkpoint held, and changes nothing that follows."""

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from saformer.agents.saformer import SaFormerAgent
from saformer.cli.main import main
from saformer.core.transformer import TrunkConfig
from saformer.data.sampling import WindowSampler
from saformer.runs.checkpoint import load_checkpoint
from saformer.runs.run import Run
from saformer.runs.spec import RunSpec
from saformer.training.loop.config import FitConfig
from saformer.training.loop.fit import InterruptedTrainingError
from saformer.training.loop.trainer import NonFiniteLossError, Observer
from tests.alone import fit
from tests.conftest import tiny_config

CONFIG = FitConfig(updates=12, batch_size=8, warmup_updates=3, checkpoint_every=4, report_every=3)
AGENT = tiny_config(trunk=TrunkConfig(layers=1, width=16, dropout=0.2))


def begin(data, path) -> tuple[SaFormerAgent, Run]:
    agent = SaFormerAgent.create(data, AGENT, seed=1)
    plain = RunSpec(
        "t",
        "saformer",
        asdict(AGENT),
        asdict(CONFIG),
        1,
        ("torque",),
        None,
        0,
        "f",
        agent.dimensions,
    )
    run = Run(path)
    return agent, run if run.spec_path.exists() else Run.create(path, plain)


def train(store, path, **options) -> dict[str, torch.Tensor]:
    agent, run = begin(store, path)
    fit(agent, WindowSampler(store, window=4), CONFIG, seed=1, run=run, **options)
    return agent.model.state_dict()


@pytest.mark.parametrize("stop_at", [1, 4, 7, 11])
def test_interrupt_saves_and_resume_goes_on_bit_for_bit(data, tmp_path, stop_at):
    """Ctrl-C at any update. Seen to fail when the optimiser, or either random state, is not
    restored."""
    undisturbed = train(data, tmp_path / "whole")

    def interrupt(update: int, _: dict) -> None:
        if update == stop_at:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(InterruptedTrainingError, match=f"after update {stop_at} of 12"):
        train(data, tmp_path / "broken", observer=Observer(progress=interrupt))
    assert not Run(tmp_path / "broken").is_done
    torch.rand(5)  # another process would have another random state
    resumed = train(data, tmp_path / "broken", resume=True)
    assert all(torch.equal(undisturbed[name], resumed[name]) for name in undisturbed)
    assert Run(tmp_path / "broken").is_done
    assert [row["update"] for row in Run(tmp_path / "broken").metrics()][-1] == 12


def test_the_last_checkpoint_holds_everything(data, tmp_path):
    """The last checkpoint holds what was trained. Seen to fail when the optimisers are not
    saved."""
    whole = train(data, tmp_path / "whole")
    saved = Run(tmp_path / "whole").load()
    assert saved.facts["update"] == 12
    assert all(torch.equal(whole[name], saved.groups["model"][name]) for name in whole)
    assert {"optimizer.actor", "optimizer.critic", "random"} < set(saved.groups)


def test_evaluating_does_not_disturb_training(data, tmp_path):
    """Seen to fail when evaluation draws from training's random state."""
    from dataclasses import replace

    undisturbed = train(data, tmp_path / "plain")
    agent = SaFormerAgent.create(data, AGENT, seed=1)

    def evaluate(agent: SaFormerAgent) -> dict:
        policy = agent.policy()
        policy.reset([1.0, 1.0], 5.0)
        policy.act([1.0, 1.0])
        torch.rand(3)
        return {}

    watched = replace(CONFIG, evaluate_every=2)
    fit(agent, WindowSampler(data, window=4), watched, seed=1, observer=Observer(evaluate=evaluate))
    assert all(
        torch.equal(undisturbed[name], value) for name, value in agent.model.state_dict().items()
    )


def test_a_loss_that_is_not_finite_saves_and_says_where(data, tmp_path):
    """Seen to fail when nothing is saved."""
    agent, run = begin(data, tmp_path / "run")

    def poison(update: int, _: dict) -> None:
        if update == 6:
            with torch.no_grad():
                agent.model.actor.action_head.linear.bias.fill_(math.inf)

    with pytest.raises(NonFiniteLossError, match=rf"update 6: actor/action.*saved in {run.path}"):
        fit(
            agent,
            WindowSampler(data, window=4),
            CONFIG,
            run=run,
            observer=Observer(progress=poison),
        )
    assert run.load().facts["update"] == 6


def words(path: Path, *more: str) -> list[str]:
    settings = "--updates 150 --batch-size 8 --checkpoint-every 5 --evaluate-every 0 --width 16 --layers 1 --dropout 0.1"
    return [
        *("train", "allowance", "--data-steps", "2000"),
        *(*settings.split(), "--device", "cpu", "--out", str(path), *more),
    ]


def started(path: Path, **options) -> subprocess.Popen:
    """The command in a process of its own, as soon as it has saved something."""
    program = [sys.executable, "-m", "tests.brief", *words(path)]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, **options)
    while not (path / "checkpoint.safetensors").exists():
        assert process.poll() is None, "training ended before its first checkpoint"
        time.sleep(0.005)
    return process


@pytest.mark.parametrize(
    "moment", [0.37, *(pytest.param(moment, marks=pytest.mark.long) for moment in (0.0, 0.9))]
)
def test_a_killed_run_resumes_to_the_same_weights(tmp_path, tmp_path_factory, moment):
    """SIGKILL, whenever it strikes. Seen to fail when windows are drawn anew after a resume."""
    undisturbed = tmp_path_factory.getbasetemp() / "undisturbed"
    if not undisturbed.exists():
        assert main(words(undisturbed)) == 0
    path = tmp_path / "run"
    process = started(path, stderr=subprocess.DEVNULL)
    time.sleep(moment)
    process.kill()
    process.wait()
    assert not Run(path).is_done, "killed too late to show anything"
    assert main(words(path, "--resume")) == 0
    ours, theirs = (
        load_checkpoint(p / "checkpoint.safetensors").groups for p in (path, undisturbed)
    )
    for group in ("model", "optimizer.actor", "optimizer.critic", "random"):
        assert all(torch.equal(ours[group][name], theirs[group][name]) for name in theirs[group]), (
            group
        )


def test_ctrl_c_on_the_command_line_says_how_to_go_on(tmp_path):
    path = tmp_path / "run"
    process = started(path, stderr=subprocess.PIPE, text=True)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Go on with:" in said
    assert said.strip().endswith("--resume")
