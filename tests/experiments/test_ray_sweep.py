"""A sweep on a Ray cluster of two nodes outlives one worker and one node."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")
from ray.cluster_utils import Cluster

from saformer import Listener
from saformer.cli.main import main
from saformer.data.home import home
from saformer.engine.ray import RayEngine
from saformer.experiments.conduct import Site, conduct
from saformer.experiments.plan import DATASETS, Judging, Training
from saformer.runs.run import Run
from tests.experiments.test_conduct import SETTING, experiment

ROOT = Path(__file__).parents[2]
JUDGINGS = [
    Judging(Training(dataset, agent), ("p50",))
    for dataset in DATASETS[-3:]
    for agent in ("dt", "saformer")
]


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
        made = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        yield made
        made.shutdown()


def finished(runs: Path) -> dict[Path, int]:
    """The files of finished runs, and when each was written."""
    paths = [path for path in runs.glob("*/") if Run(path).is_done]
    return {
        file: file.stat().st_mtime_ns
        for path in paths
        for file in path.iterdir()
        if "evaluation" not in file.name
    }


def kill_worker_of(node) -> None:
    """The process that works on a job there."""
    raylets = {each.process.pid for each in node.all_processes["raylet"]}
    for _ in range(100):
        for number in workers_of(raylets):
            os.kill(number, signal.SIGKILL)
            return
        time.sleep(0.1)
    raise AssertionError("nobody works there")


def workers_of(raylets: set[int]) -> Iterator[int]:
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            facts = dict(
                line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line
            )
            title = (status.parent / "cmdline").read_text()
        except OSError:  # it has ended meanwhile
            continue
        if int(facts["PPid"]) in raylets and title.startswith("ray::_attempt"):
            yield int(facts["Pid"])


@pytest.mark.long
def test_a_sweep_outlives_a_worker_and_a_node(cluster, tmp_path):
    """Seen to fail when lost jobs are given up."""
    doomed = cluster.add_node(num_cpus=1)
    runs, done, said = tmp_path / "runs", [], []

    def trouble(message: str) -> None:
        said.append(message)
        if not message.startswith(f"{len(done) + 1} of {len(JUDGINGS)}:"):
            return
        done.append(finished(runs))
        if len(done) == 1:
            kill_worker_of(cluster.head_node)
        if len(done) == 3:
            cluster.remove_node(doomed, allow_graceful=False)  # as a power cut would

    environment = {"SAFORMER_HOME": str(home())}
    with RayEngine(cluster.address, environment=environment) as engine:
        assert engine.jobs_at_once == 2
        site = Site(runs, "cpu", packed=False, elsewhere=True)
        listener = Listener(say=trouble)
        (result,) = conduct(
            [experiment(*JUDGINGS)], SETTING, engine=engine, site=site, listener=listener
        )
    assert not result.failed, said
    assert [row["agent"] for row in result.rows["verdicts"]] == [
        judging.training.agent for judging in JUDGINGS
    ]
    after = finished(runs)
    for before in done:
        assert {file: after[file] for file in before} == before, "finished runs are not redone"
    assert len(done[2]) < len(after)
    assert len({file.parent for file in after}) == len(JUDGINGS)


def test_the_command(cluster, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = [
        "experiment",
        "sensitivity",
        "--engine",
        "ray",
        "--address",
        cluster.address,
        "--device",
        "cpu",
    ]
    assert main(command) == 0
    assert (tmp_path / "results" / "smoke" / "sensitivity.html").exists()
    assert "ray, " in (tmp_path / "results" / "smoke" / "sensitivity.html").read_text()
    assert len(list((tmp_path / "runs").iterdir())) == 1
