"""Environments in worker processes: the same episodes, and a clean end whatever happens."""

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from saformer.core.policy import Decision
from saformer.criteria import CostCriterion, criterion, torque
from saformer.data.limits import Limit
from saformer.data.store import EnvironmentSpec
from saformer.envs import pool, stepping
from saformer.envs.costed import Costed
from saformer.envs.episodes import Episode, Hooks
from saformer.envs.lanes import Maker
from saformer.envs.pool import WorkerError, close_idle
from saformer.envs.rollout import rollout
from saformer.envs.stepping import pick_workers
from saformer.evaluation.evaluate import evaluate_policy
from tests.envs.troubled import IDENTIFIER

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
COSTS = (torque, criterion("above(x_velocity, 0.1) + state[0]"))
HOPPER = Maker(
    EnvironmentSpec((-1.0,) * 3, (1.0,) * 3, 1000, "Hopper-v5", {"reset_noise_scale": 0.1}), COSTS
)


class Proposing:
    """Draws the actions of all lanes from one generator, as agents do; the state matters too."""

    def __init__(self, num_actions: int) -> None:
        self._num_actions, self._generator = num_actions, torch.Generator()

    def reset(self, state, limit, lanes=None) -> None:
        self._generator.manual_seed(0)

    def act(self, state, lanes=None) -> Decision:
        noise = torch.rand(len(state), self._num_actions, generator=self._generator)
        action = torch.tanh(state.sum(1, keepdim=True) + noise)
        nothing = dict.fromkeys(
            ("return_to_go", "chosen", "num_safe", "candidates", "verification")
        )
        return Decision(action=action, num_rounds=None, fell_back=None, **nothing)

    def observe(self, reward, cost, lanes=None) -> None:
        pass


def troubled(trouble: str = "none") -> Maker:
    spec = EnvironmentSpec((-1.0,), (1.0,), 1000, IDENTIFIER, {"trouble": trouble})
    return Maker(spec, (torque,))


def run(maker, seeds, *, horizon=20, **options) -> list[Episode]:
    limits = [np.array([1.0])] * len(seeds)
    num_actions = 3 if "Hopper" in str(maker) else 1
    return rollout(Proposing(num_actions), maker, limits, seeds, horizon=horizon, **options)


def same(first: list[Episode], second: list[Episode]) -> bool:
    return all(
        np.array_equal(getattr(a.trajectory, name), getattr(b.trajectory, name))
        for a, b in zip(first, second, strict=True)
        for name in ("state", "action", "reward", "final_state", "terminated", "truncated")
    ) and all(
        np.array_equal(a.cost, b.cost) and a.seed == b.seed
        for a, b in zip(first, second, strict=True)
    )


def children() -> set[int]:
    """Workers that we have started and that have not ended; other tests may have left other
    processes."""
    started = {
        int(pid)
        for path in Path("/proc/self/task").glob("*/children")
        for pid in path.read_text().split()
    }
    return {pid for pid in started if _is_worker(Path(f"/proc/{pid}/cmdline"))}


def _is_worker(command: Path) -> bool:
    try:
        return b"saformer.envs.worker" in command.read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return False


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(autouse=True)
def _no_workers_left():
    """Every test starts without workers, and leaves none and no memory behind."""
    close_idle()
    before, files = children(), open_files()
    yield
    close_idle()
    assert children() == before
    assert open_files() <= files  # other tests' may be closed meanwhile


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_changes_nothing(workers):
    """MuJoCo, to the bit. Seen to fail when workers take the first seeds instead of their own
    lanes'."""
    seeds = [5, 6, 7, 8, 9]
    assert same(run(HOPPER, seeds, workers=0), run(HOPPER, seeds, workers=workers))


def test_lanes_end_on_their_own_in_workers():
    """The environment complains if it is stepped after its end. Seen to fail when finished lanes
    stay active."""
    seeds = [2, 5, 0, 3]
    for workers in (0, 2):
        finished = []
        episodes = run(
            troubled(),
            seeds,
            workers=workers,
            horizon=7,
            hooks=Hooks(progress=lambda *now: finished.append(now)),  # noqa: B023
        )
        assert [len(episode.trajectory) for episode in episodes] == [2, 5, 7, 3]
        assert [episode.trajectory.terminated for episode in episodes] == [True, True, False, True]
        assert [episode.trajectory.truncated for episode in episodes] == [False, False, True, False]
        assert finished == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_workers_without_active_lanes_are_left_alone():
    """Seen to fail when every worker is asked at every step."""
    with stepping.environments(troubled(), [9, 9, 9], 3) as found:
        found.lanes["active"][:] = [False, True, False]
        found.start_step()
        assert found._stepping == [1]
        found.finish_step()
        assert found.lanes["state"][:, 0].tolist() == [0, 1, 0]


@pytest.mark.parametrize("identifier", [IDENTIFIER, f"tests.envs.troubled:{IDENTIFIER}"])
def test_what_to_make_is_told_as_text(identifier):
    """Seen to fail when arguments are left out of it."""
    maker = Maker(EnvironmentSpec((-1.0,), (1.0,), 9, identifier, {"trouble": "refuse"}), COSTS)
    assert Maker.read(maker.text()) == maker


def test_what_would_change_on_its_way_is_refused():
    """JSON makes lists of tuples. Seen to fail when what arrives is not compared."""
    maker = Maker(EnvironmentSpec((-1.0,), (1.0,), 9, IDENTIFIER, {"trouble": ("none",)}), COSTS)
    with pytest.raises(ValueError, match="change when they are written as JSON"):
        maker.text()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_evaluations_agree(agent, data, device):
    """Verdicts, episodes and what is drawn of them; workers are started beside CUDA, too."""
    agent.model.to(device)
    limits = [Limit("low", (3.0,)), Limit("high", (9.0,))]
    here, there = (
        evaluate_policy(agent.policy(), data, limits, episodes=2, workers=workers)
        for workers in (0, 2)
    )
    assert here.rows == there.rows
    assert here.trace == there.trace


def test_workers_are_kept_for_the_next_rollout():
    """Whatever its environment. Seen to fail when a pool is not given back."""
    run(troubled(), [3, 3], workers=2)
    first = children()
    run(HOPPER, [0, 1], workers=2, horizon=2)
    assert children() == first
    assert len(first) == 2


def test_a_pool_that_died_while_idle_is_replaced():
    """Seen to fail when idle pools are not looked at before they are used."""
    run(troubled(), [3, 3], workers=2)
    os.kill(min(children()), signal.SIGKILL)
    while pool._idle_pools[0].is_alive:
        time.sleep(0.01)
    assert len(run(troubled(), [3, 3], workers=2)) == 2


def test_a_killed_worker_is_one_clear_error():
    def kill(lanes, decision) -> None:
        os.kill(max(children()), signal.SIGKILL)

    with pytest.raises(WorkerError, match="was killed by SIGKILL"):
        run(troubled("slow"), [9, 9, 9], workers=3, hooks=Hooks(watch=kill))
    assert not children(), "the others were ended too"


@pytest.mark.parametrize(
    ("trouble", "kind", "message"),
    [
        ("raise", WorkerError, "raised KeyError: 'no such joint'"),
        ("refuse", ValueError, "^the action is not to my liking\n"),
        ("exit", WorkerError, "ended with exit code 7"),
        ("nan", ValueError, "lane 0 .seed 9. gave a state that is NaN"),
    ],
)
def test_what_goes_wrong_in_a_worker_is_said_here(trouble, kind, message):
    """Seen to fail when an answer is not looked at."""
    with pytest.raises(kind, match=message):
        run(troubled(trouble), [9, 9, 9], workers=2)
    assert not children()


def test_nan_is_said_without_workers_too():
    """Seen to fail when states are not looked at."""
    with pytest.raises(ValueError, match=r"lane 0 .seed 9. gave a state that is NaN"):
        run(troubled("nan"), [9], workers=0)


def test_what_cannot_be_told_to_others_is_stepped_here():
    """Seen to fail when a criterion is known by its name alone."""
    mine = CostCriterion("torque", lambda step: 2 * np.abs(step.action).sum(-1))
    with pytest.warns(
        UserWarning, match="in this process, as no other could make them: criterion 'torque'"
    ):
        episodes = run(Maker(HOPPER.environment, (mine,)), [0, 1], workers=2, horizon=2)
    assert episodes[0].cost[0] == pytest.approx(2 * np.abs(episodes[0].trajectory.action[0]).sum())
    with pytest.warns(UserWarning, match="given as a function"):
        run(lambda: Costed(gymnasium.make(IDENTIFIER), (torque,)), [2, 2], workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(lambda: Costed(gymnasium.make(IDENTIFIER), (torque,)), [2, 2])
    assert not children()


def test_auto_picks_workers_where_they_pay(monkeypatch):
    """Seen to fail when small rollouts are given workers."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert pick_workers("auto", num_lanes=80, num_steps=80_000) == 16
    assert pick_workers("auto", num_lanes=20, num_steps=40_000) == 10
    assert pick_workers("auto", num_lanes=80, num_steps=1_600) == 0, "Allowance"
    assert pick_workers(3, num_lanes=80, num_steps=80) == 3
    assert pick_workers(3, num_lanes=2, num_steps=80) == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert pick_workers("auto", num_lanes=80, num_steps=80_000) == 0
    with pytest.raises(ValueError, match="workers must be"):
        pick_workers(-1, num_lanes=80, num_steps=80_000)


BUSY = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from saformer.envs.episodes import Hooks
from tests.envs.test_workers import children, run, troubled
hooks = Hooks(watch=lambda *_: print(*children(), flush=True))
run(troubled("slow"), [0, 0], workers=2, horizon=10_000, hooks=hooks)
"""
IDLE = """
import time
from tests.envs.test_workers import children, run, troubled
run(troubled(), [1, 1], workers=2)
print(*children(), flush=True)
time.sleep(60)
"""


def end(project: Path, script: str, number: int) -> tuple[bool, str]:
    """Run a script with two workers and end it, as a terminal would: whether they ended too, and
    what was said."""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(project), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdout is not None
    started = [Path("/proc") / pid for pid in process.stdout.readline().split()]
    os.killpg(process.pid, number)
    deadline = time.monotonic() + 10
    while any(path.exists() for path in started) and time.monotonic() < deadline:
        time.sleep(0.02)
    left = [int(path.name) for path in started if path.exists()]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert len(started) == 2
    return not left, process.communicate(timeout=30)[1]


def test_an_interrupt_is_for_the_caller_alone(project):
    """Seen to fail when workers hear of Ctrl-C too, and complain each for itself."""
    ended, said = end(project, BUSY, signal.SIGINT)
    assert ended
    assert said.count("Traceback") == 1, said
    assert said.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize("script", [BUSY, IDLE], ids=["busy", "idle"])
def test_workers_end_with_the_process_they_work_for(project, script):
    """Even if it was killed. Seen to fail when they wait for ever."""
    assert end(project, script, signal.SIGKILL)[0]
