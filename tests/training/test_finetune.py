"""Fine-tuning as a whole: what it keeps, what it leaves alone, and what becomes of it when it is
stopped."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import saformer
from saformer import Listener
from saformer.agents.finetuned import EntropyConfig, FineTunedAgent
from saformer.agents.saformer import SaFormerAgent
from saformer.cli.main import main
from saformer.core.rules import PaperRule
from saformer.core.transformer import TrunkConfig
from saformer.data.growing import GrowingSampler, Room
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory
from saformer.envs import allowance, stepping
from saformer.runs.checkpoint import load_checkpoint
from saformer.runs.run import Run
from saformer.training.finetune.config import FinetuneConfig
from saformer.training.finetune.exploration import EnvironmentFailedError, explore, shared_workers
from saformer.training.loop.config import FitConfig
from saformer.training.loop.fit import InterruptedTrainingError
from saformer.training.loop.presets import Preset
from saformer.training.loop.trainer import Member, PackTrainer
from tests.conftest import tiny_config
from tests.envs import troubled

FIT = FitConfig(updates=3, batch_size=8, warmup_updates=1, checkpoint_every=3, report_every=3)
CONFIG = FinetuneConfig(
    episodes=7,
    lanes=3,
    updates=4,
    evaluate_every=1,
    evaluation_episodes=2,
    entropy=EntropyConfig(temperature_rate=0.01),
)
HOPELESS = [0.001]
"""A limit that an untrained policy does not keep, so that the whole allowance is spent."""


def original(path: Path, store: Path) -> Run:
    preset = Preset(tiny_config(), FIT)
    return saformer.train(str(store), preset=preset, out=path, device="cpu").run


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Run:
    """Nothing that is done with it may change it."""
    folder = tmp_path_factory.mktemp("source")
    return original(
        folder / "original", allowance.dataset(episodes=100).save(folder / "store").path
    )


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory) -> Run:
    """Fine-tuned without any disturbance."""
    return tune(source, tmp_path_factory.mktemp("whole") / "tuned").run


def tune(source: Run, out: Path, *, said=lambda message: None, **options):
    options = {"limits": HOPELESS, "config": CONFIG, "workers": 0, **options}
    return saformer.finetune(
        source.path, out=out, device="cpu", listener=Listener(say=said), **options
    )


def rows(run: Run | Path) -> list[dict]:
    return list(Run(getattr(run, "path", run)).read_rows("episodes.jsonl"))


def store_of(run: Run) -> TrajectoryStore:
    return TrajectoryStore.open(run.spec.task)


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def test_the_allowance_is_spent_and_the_original_is_not_touched(source, tmp_path):
    """Old trajectories are the same bytes. Seen to fail when new ones are put into the old
    store."""
    old_store = TrajectoryStore.open(source.spec.task)
    before = contents(source.path), contents(old_store.path)
    tuned = tune(source, tmp_path / "tuned")
    assert (contents(source.path), contents(old_store.path)) == before
    assert tuned.run.is_done
    assert not tuned.outcome.held
    assert tuned.outcome.num_episodes == len(rows(tuned.run)) == 7
    new_store = store_of(tuned.run)
    assert len(new_store) == len(old_store) + 7
    for file in sorted((old_store.path / "steps").iterdir()):
        kept = (new_store.path / "steps" / file.name).read_bytes()
        assert kept[: file.stat().st_size] == file.read_bytes()
    assert np.array_equal(
        new_store.episodes["digest"][: len(old_store)], old_store.episodes["digest"]
    )
    assert new_store.as_of(old_store.fingerprint) is not None
    assert not new_store.damaged()


def test_it_says_what_it_came_from_and_is_a_run_like_any_other(source, whole):
    came_from = whole.spec.finetuning["from"]
    assert came_from["run"] == str(source.path)
    assert came_from["spec"] == source.spec.digest
    assert came_from["update"] == 3
    found = saformer.evaluate(whole.path, episodes=2, device="cpu")
    assert [verdict.limit.values for verdict in found.verdicts] == [
        (0.001,)
    ]  # what it was made for
    with pytest.raises(FileExistsError, match="--resume"):
        tune(source, whole.path)


def test_episodes_are_relabelled_with_what_they_really_cost(source, tmp_path):
    """Seen to fail when the limit that was asked for is written down as the cost."""
    tuned = tune(source, tmp_path / "tuned", limits=[5.0]).run
    data, spec = store_of(tuned), tuned.spec
    for place, row in enumerate(rows(tuned)):
        trajectory = data[len(data) - len(rows(tuned)) + place]
        assert row["cost"][0] == pytest.approx(
            np.abs(np.clip(trajectory.action, -1, 1)).sum(), rel=1e-5
        )
        assert row["prompt"][0] == pytest.approx(5.0 * CONFIG.factors[place % len(CONFIG.factors)])
    assert spec.finetuning["limits"] == {"5": [5.0]}


def test_units_stay_frozen_and_everything_else_learns(source, whole):
    """Seen to fail when the temperature is not saved."""
    before, after = source.load().groups, whole.load().groups
    for name, value in before["model"].items():
        if name.startswith("outlook."):  # fitted anew to what was learnt
            continue
        is_fixed = "normalizer" in name or name.startswith("action_")
        assert torch.equal(value, after["model"][name]) == is_fixed or value.numel() < 20, name
    assert set(before["model"]) == set(after["model"])
    (logarithm,) = after["temperature"].values()
    assert logarithm.item() != pytest.approx(np.log(CONFIG.entropy.initial_temperature))
    assert {"optimizer.actor", "optimizer.critic", "optimizer.temperature"} < set(after)


def test_exploration_proposes_once_and_judging_as_the_policy_does(source, whole):
    """Where nothing is safe, more rounds are in vain. Seen to fail when exploration proposes as
    often."""
    assert source.spec.agent_config.get("rounds", 4) > 1
    assert {row["resampled"] for row in rows(whole)} == {0.0}
    assert all(row["fell_back"] > 0 for row in rows(whole))
    judged = saformer.evaluate(whole.path, episodes=2, rule="paper", device="cpu")
    assert judged.verdicts[0].resampled > 0


def test_every_rollout_of_a_run_has_as_many_workers(monkeypatch):
    """So that they can be kept. Seen to fail when exploration has fewer than judging."""
    monkeypatch.setattr(stepping, "POSSIBLE", True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)), raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert shared_workers("auto", num_lanes=(20, 90), num_steps=200_000) == 16
    assert shared_workers("auto", num_lanes=(10, 90), num_steps=200_000) == 10
    assert shared_workers("auto", num_lanes=(20, 90), num_steps=4_000) == 0
    assert shared_workers(3, num_lanes=(20, 90), num_steps=4_000) == 3


def stopping_at(message: str, times: int = 1):
    """Presses Ctrl-C when something is said for the n-th time."""
    heard = []

    def say(said: str) -> None:
        heard.append(said)
        if sum(message in line for line in heard) == times and message in said:
            os.kill(os.getpid(), signal.SIGINT)

    return say


@pytest.mark.parametrize(
    ("message", "times"), [("episode 2 of", 1), ("episode 6 of", 1), ("after", 1), ("after", 2)]
)
def test_ctrl_c_loses_nothing_and_resume_goes_on_to_the_same_end(
    source, whole, tmp_path, message, times
):
    """Lanes of Allowance end together. Seen to fail when the temperature is not restored."""
    with pytest.raises(InterruptedTrainingError, match="of 7 episodes; saved in"):
        tune(source, tmp_path / "broken", said=stopping_at(message, times))
    kept = rows(tmp_path / "broken")
    assert not Run(tmp_path / "broken").is_done
    broken = tune(source, tmp_path / "broken", resume=True).run
    assert rows(broken)[: len(kept)] == kept
    assert [row["seed"] for row in rows(broken)] == [row["seed"] for row in rows(whole)]
    ours, theirs = broken.load().groups, whole.load().groups
    for group in theirs:
        assert all(
            torch.equal(ours[group][name], value) for name, value in theirs[group].items()
        ), group
    assert store_of(broken).fingerprint == store_of(whole).fingerprint


class KilledError(BaseException):
    """Nobody catches it."""


def test_a_kill_between_the_episodes_of_a_round_changes_none(source, whole, tmp_path):
    """Lanes share their noise. Seen to fail when the missing lane acts alone."""

    def say(said: str) -> None:
        if "episode 5 of" in said:
            raise KilledError

    with pytest.raises(KilledError):
        tune(source, tmp_path / "broken", said=say)
    assert len(rows(tmp_path / "broken")) == 5
    broken = tune(source, tmp_path / "broken", resume=True).run
    assert rows(broken) == rows(whole)
    assert store_of(broken).fingerprint == store_of(whole).fingerprint


def test_a_second_ctrl_c_stops_at_once_and_can_be_resumed_too(source, whole, tmp_path):
    """After the last episode of a round, nothing is in flight. Seen to fail when the second one
    gets through."""
    heard = []

    def say(said: str) -> None:
        heard.append(said)
        if "episode 6 of" in said:
            signal.raise_signal(signal.SIGINT)  # sent to the process, two may count as one
            signal.raise_signal(signal.SIGINT)

    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # which test workers ignore
    try:
        with pytest.raises(
            InterruptedTrainingError, match=r"stopped at once after 6 of 7 episodes.*saved in"
        ):
            tune(source, tmp_path / "broken", said=say)
    finally:
        signal.signal(signal.SIGINT, former)
    assert "episode 6 of" in heard[-1]
    broken = tune(source, tmp_path / "broken", resume=True).run
    ours, theirs = broken.load().groups["model"], whole.load().groups["model"]
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


def test_ctrl_c_between_updates_loses_none(source, whole, tmp_path):
    def training(update: int, total: int, metrics: dict) -> None:
        if update == 6:
            os.kill(os.getpid(), signal.SIGINT)

    listener = Listener(training=training)
    with pytest.raises(InterruptedTrainingError):
        saformer.finetune(
            source.path,
            HOPELESS,
            config=CONFIG,
            out=tmp_path / "b",
            device="cpu",
            listener=listener,
            workers=0,
        )
    assert Run(tmp_path / "b").load().facts["update"] == 6
    broken = tune(source, tmp_path / "b", resume=True).run
    ours, theirs = broken.load().groups["model"], whole.load().groups["model"]
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


def test_a_row_without_its_trajectory_is_forgotten(source, tmp_path):
    """As if killed between writing one and the other. Seen to fail when rows are believed."""
    with pytest.raises(InterruptedTrainingError):
        tune(source, tmp_path / "run", said=stopping_at("episode 3 of"))
    file = tmp_path / "run" / "episodes.jsonl"
    lines = file.read_text().splitlines()
    file.write_text(
        "\n".join([*lines, json.dumps({**json.loads(lines[-1]), "number": 3}), '{"number": 4, "cu'])
    )
    tuned = tune(source, tmp_path / "run", resume=True).run
    assert [row["number"] for row in rows(tuned)] == list(range(7))
    assert len(store_of(tuned)) == 100 + 7


@pytest.mark.parametrize("moment", [0.5, pytest.param(0.0, marks=pytest.mark.long)])
def test_a_killed_run_keeps_every_episode_and_goes_on(source, tmp_path, moment, capsys):
    """SIGKILL, whenever it strikes."""
    settings = "--limit 0.001 --episodes 16 --lanes 2 --updates 5 --evaluation-episodes 2 --device cpu --workers 0"
    words = ["finetune", str(source.path), *settings.split(), "--out", str(tmp_path / "run")]
    program = [sys.executable, "-m", "tests.brief", *words]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(rows(tmp_path / "run")) < 4:
        assert process.poll() is None, "it ended before it explored"
        time.sleep(0.01)
    time.sleep(moment)
    process.kill()
    process.wait()
    run = Run(tmp_path / "run")
    assert not run.is_done, "killed too late to show anything"
    kept, explored = rows(run), len(store_of(run)) - 100
    assert len(kept) - explored in {0, 1}
    assert main([*words, "--resume"]) == 0
    assert "report written" in capsys.readouterr().err
    assert "Exploration: cost against target" in (run.path / "report.html").read_text()
    assert rows(run)[:explored] == kept[:explored]
    assert len(rows(run)) == len(store_of(run)) - 100 == 16
    assert load_checkpoint(run.checkpoint_path).facts["episodes"] == 16


def test_the_ceiling_ends_episodes_that_are_kept_but_not_learnt_from(source, tmp_path):
    tuned = tune(source, tmp_path / "tuned", limits=[5.0], ceiling=0.5)
    assert tuned.outcome.broke_ceiling == 1.0
    assert {row["end"] for row in rows(tuned.run)} == {"ceiling"}
    assert not store_of(tuned.run).finished[-7:].any()
    assert tuned.run.load().facts["update"] == 0  # there was nothing new to learn from


def test_a_ceiling_below_a_limit_is_remarked_on(source, tmp_path):
    """Seen to fail when nothing is said."""
    said = []
    tune(source, tmp_path / "low", limits=[5.0, 0.4], ceiling=0.5, said=said.append)
    assert any("ceiling 0.5 lies below the limit 5:" in message for message in said)
    said.clear()
    tune(source, tmp_path / "high", limits=[0.4], ceiling=0.5, said=said.append)
    assert not any("lies below" in message for message in said)


def troubled_store(path: Path, trouble: str, *, truncated: bool = False) -> Path:
    """What an environment in trouble once did: 30 episodes of at most 6 steps."""
    rng = np.random.default_rng(0)
    trajectories = [
        Trajectory.of(
            rng.normal(size=(6, 2)), rng.uniform(-1, 1, (6, 1)), np.ones(6), np.zeros(2),
            terminated=not truncated, truncated=truncated,
        )
        for _ in range(30)
    ]  # fmt: skip
    environment = EnvironmentSpec((-1.0,), (1.0,), 6, troubled.IDENTIFIER, {"trouble": trouble})
    return TrajectoryStore.of(trajectories, environment).save(path).path


@pytest.mark.parametrize(
    ("trouble", "said"), [("raise", "no such joint"), ("nan", "NaN or infinite")]
)
def test_an_environment_that_fails_is_blamed_after_everything_was_saved(tmp_path, trouble, said):
    """Seen to fail when the environment's own error gets through."""
    source = original(tmp_path / "original", troubled_store(tmp_path / "store", trouble))
    with pytest.raises(
        EnvironmentFailedError, match=f"(?s)judging the limits.*{said}.*saved in .*resume"
    ):
        tune(source, tmp_path / "tuned")
    run = Run(tmp_path / "tuned")
    assert run.load().facts["update"] == 0
    assert len(store_of(run)) == 30


def test_an_environment_that_never_ends_is_found_out(tmp_path):
    """Its data ends by itself, it does not. Seen to fail when every episode may be as long as it
    likes."""
    source = original(tmp_path / "original", troubled_store(tmp_path / "store", "none"))
    with pytest.raises(EnvironmentFailedError, match=r"(?s)did not end within 6 steps.*saved in"):
        tune(source, tmp_path / "tuned", config=replace(CONFIG, lanes=1))
    run = Run(tmp_path / "tuned")
    assert [row["end"] for row in rows(run)] == ["overlong"]
    assert len(store_of(run)) == 31
    assert not store_of(run).finished[-1]


def test_an_environment_whose_data_was_cut_off_at_the_horizon_is_cut_off_too(tmp_path):
    source = original(
        tmp_path / "original", troubled_store(tmp_path / "store", "none", truncated=True)
    )
    tuned = tune(source, tmp_path / "tuned")
    assert {row["end"] for row in rows(tuned.run)} == {"truncated"}
    assert {row["num_steps"] for row in rows(tuned.run)} == {6}


def test_wrong_requests_are_refused_before_anything_is_made(source, tmp_path):
    for changes, said in (
        ({"limits": []}, "at least one limit"),
        ({"limits": ["5", "5"]}, "more than once"),
        ({"options": {"candidate": 3}}, "no option candidate"),
        ({"resume": True}, "no run to resume"),
        ({"attenuation": 0.8}, "lower the floor"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=said):
            tune(source, tmp_path / "tuned", **changes)
    assert not (tmp_path / "tuned").exists()
    for changes in (
        {"episodes": 0},
        {"new_share": 1.0},
        {"evaluation_episodes": 1},
        {"floor": 0.99},
    ):
        with pytest.raises(ValueError, match="must"):
            replace(CONFIG, **changes)


def test_another_request_does_not_resume_a_run(source, tmp_path):
    with pytest.raises(InterruptedTrainingError):
        tune(source, tmp_path / "run", said=stopping_at("after"))
    with pytest.raises(ValueError, match="begun with other settings"):
        tune(source, tmp_path / "run", limits=[0.002], resume=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recorded_update_draws_from_what_was_appended_since(data):
    """Nothing is recorded anew, and the limit tokens of a batch are those of the new
    trajectories."""
    config = tiny_config(trunk=TrunkConfig(layers=2, width=32, dropout=0.1))
    agent = SaFormerAgent.create(data, config, seed=0)
    agent.model.to("cuda")
    sampler = GrowingSampler(
        data.filter(np.arange(100)), window=4, room=Room(50, 1000), share=0.5, device="cuda"
    )
    trainer = PackTrainer([Member(FineTunedAgent(agent, EntropyConfig()), sampler)], FIT)
    for member in trainer.members:
        member.agent.model.train()
    sampler.append(data.filter(np.arange(100, 101)))
    trainer.advance(3)
    recorded = trainer._program
    for number in range(101, 150):
        sampler.append(data.filter(np.arange(number, number + 1)))
    _, (metrics,) = trainer.advance(3)
    assert trainer._program is recorded
    assert all(np.isfinite(value) for value in metrics.values())
    drawn = [
        sampler.sample(64, trainer.generators[0]).limit[32:, 0].unique().tolist() for _ in range(5)
    ]
    assert len({cost for batch in drawn for cost in batch}) > 30


@pytest.mark.parametrize(
    ("asked", "message"),
    [({"limits": ["2", "2.0"]}, "2, 2.0 was named more than once"), ({"workers": -3}, "got -3")],
)
def test_what_cannot_be_asked_for_leaves_nothing_behind(source, tmp_path, asked, message):
    with pytest.raises(ValueError, match=message):
        tune(source, tmp_path / "tuned", **asked)
    assert not (tmp_path / "tuned").exists()


def test_by_our_rule_the_policy_is_judged_and_not_explored(source, tmp_path, monkeypatch):
    """Seen to fail when exploration acts by it too, and when the original run is touched."""
    explored: list[type] = []

    def watched(policy, *rest, **options):
        explored.append(type(policy.rule))
        explore(policy, *rest, **options)

    monkeypatch.setattr("saformer.training.finetune.algorithm.explore", watched)
    before = sorted(path.name for path in source.path.iterdir())
    tuned = tune(source, tmp_path / "tuned", rule="feasible")
    assert set(explored) == {PaperRule}
    assert tuned.run.spec.finetuning["execution"]["rule"] == "feasible"
    assert sorted(path.name for path in source.path.iterdir()) == before
