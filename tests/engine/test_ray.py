"""Ray: the same promises as other engines, and lost workers and nodes besides."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.engine.jobs import dies, dies_once, doubled, saves_when_interrupted, slowly, stops_once

pytest.importorskip("ray")
from ray.cluster_utils import Cluster

from saformer.engine.ray import RayEngine

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one CPU each, whose workers can import what this process can, and which ignore
    Ctrl-C as whatever a shell starts in the background does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        former = signal.signal(signal.SIGINT, signal.SIG_IGN)
        made = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        made.add_node(num_cpus=1)
        signal.signal(signal.SIGINT, former)
        yield made
        made.shutdown()


@pytest.fixture
def engine(cluster):
    with RayEngine(cluster.address) as engine:
        yield engine


def test_a_failed_job_is_reported_and_the_rest_go_on(engine):
    """Seen to fail when errors are let through."""
    outcomes = {outcome.job: outcome for outcome in engine.map(doubled, [1, 2, 3, 4])}
    assert {job: outcome.result for job, outcome in outcomes.items()} == {1: 2, 2: 4, 3: None, 4: 8}
    assert outcomes[3].error == "ValueError: three is refused"
    assert engine.jobs_at_once == 2


def test_a_worker_that_dies_takes_no_job_with_it(engine, tmp_path):
    """Killed, or told to end and stopping. Seen to fail when lost jobs are given up."""
    jobs = [str(tmp_path / name) for name in ("a", "mortal", "b")]
    assert sorted(outcome.result for outcome in engine.map(dies_once, jobs)) == sorted(jobs)
    assert [outcome.result for outcome in engine.map(stops_once, [str(tmp_path / "stopped")])] == [
        "gone on"
    ]


def test_a_job_that_is_always_lost_has_failed(cluster):
    with RayEngine(cluster.address, retries=1) as engine:
        outcomes = {outcome.job: outcome for outcome in engine.map(dies, [0, 1, 2])}
    assert "lost 2 times" in outcomes[1].error
    assert [outcomes[0].result, outcomes[2].result] == [0, 2]


def test_jobs_of_a_lost_node_are_done_elsewhere(cluster, tmp_path):
    """Seen to fail when lost jobs are given up."""
    doomed = cluster.add_node(num_cpus=1)
    (raylet,) = doomed.all_processes["raylet"]
    lost = []

    def power_cut():
        while not lost:
            lost.extend(
                path for path in tmp_path.iterdir() if path.read_text() == str(raylet.process.pid)
            )
            time.sleep(0.1)
        cluster.remove_node(doomed, allow_graceful=False)

    with RayEngine(cluster.address) as engine:
        assert engine.jobs_at_once == 3
        jobs = [str(tmp_path / str(number)) for number in range(4)]
        threading.Thread(target=power_cut, daemon=True).start()
        outcomes = list(engine.map(slowly, jobs))
    assert sorted(outcome.job for outcome in outcomes) == jobs
    assert all(outcome.result for outcome in outcomes)
    assert lost[0].read_text() != str(raylet.process.pid), "it was done elsewhere"


def test_an_interrupt_lets_jobs_save(engine, tmp_path):
    """What has not begun never does. Seen to fail when jobs are not cancelled, and when workers go
    on to ignore SIGINT."""
    jobs = [str(tmp_path / f"job{number}") for number in range(3)]
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_interrupt_when, args=([Path(jobs[0]), Path(jobs[1])],)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            list(engine.map(saves_when_interrupted, jobs))
    finally:
        signal.signal(signal.SIGINT, former)
    assert [Path(job).read_text() for job in jobs[:2]] == ["saved", "saved"]
    time.sleep(1)
    assert not Path(jobs[2]).exists()


def test_jobs_find_variables_set(cluster, monkeypatch):
    """Seen to fail when variables are not passed on."""
    with RayEngine(cluster.address, environment={"SAFORMER_HOME": "/elsewhere"}) as engine:
        (outcome,) = engine.map(os.getenv, ["SAFORMER_HOME"])
    assert outcome.result == "/elsewhere"


def test_what_no_node_has_is_refused(cluster):
    with pytest.raises(ValueError, match="no node of the Ray cluster has 64 CPUs and 0 GPUs"):
        RayEngine(cluster.address, cpus=64)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        RayEngine(cluster.address, cpus=0)


def _interrupt_when(paths: list[Path]) -> None:
    for _ in range(600):
        if all(path.with_suffix(".started").exists() for path in paths):
            break
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)
