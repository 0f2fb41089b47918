"""Engines: every job has its outcome, whatever becomes of the others."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from saformer.engine.engine import LocalEngine
from tests.engine.jobs import dies, dies_once, doubled, saves_when_told

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("processes", [0, 2])
def test_a_failed_job_is_reported_and_the_rest_go_on(processes):
    """Seen to fail when errors are let through."""
    outcomes = {
        outcome.job: outcome for outcome in LocalEngine(processes).map(doubled, [1, 2, 3, 4])
    }
    assert {job: outcome.result for job, outcome in outcomes.items()} == {1: 2, 2: 4, 3: None, 4: 8}
    assert outcomes[3].error == "ValueError: three is refused"
    assert all(outcome.error is None for job, outcome in outcomes.items() if job != 3)


def test_results_come_one_by_one():
    """Seen to fail when all jobs are done before the first result is given."""
    done = []

    def job(number):
        done.append(number)
        return number

    assert next(iter(LocalEngine().map(job, [1, 2, 3]))).result == 1
    assert done == [1]


def test_a_process_that_dies_takes_no_other_job_with_it(tmp_path):
    """Seen to fail when what a dead process left undone is not tried again."""
    jobs = [str(tmp_path / name) for name in ("a", "mortal", "b", "c")]
    outcomes = list(LocalEngine(2).map(dies_once, jobs))
    assert sorted(outcome.result for outcome in outcomes) == sorted(jobs)


def test_a_job_that_kills_its_process_again_has_failed():
    outcomes = {outcome.job: outcome for outcome in LocalEngine(1).map(dies, [0, 1, 2])}
    assert outcomes[1].error == "its process died, twice"
    assert [outcomes[0].result, outcomes[2].result] == [0, 2]


def test_an_interrupt_lets_jobs_save(tmp_path):
    """Seen to fail when processes are not told that nobody waits for them."""
    path = tmp_path / "job"
    former = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # in the background it is ignored
    threading.Thread(target=_interrupt_when, args=(path.with_suffix(".started"),)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            list(LocalEngine(1).map(saves_when_told, [str(path)]))
    finally:
        signal.signal(signal.SIGINT, former)
    assert path.read_text() == "saved"


def test_jobs_save_when_whoever_asked_for_them_was_killed(tmp_path):
    """Seen to fail when processes outlive their parent."""
    path = tmp_path / "job"
    code = (
        "from saformer.engine.engine import LocalEngine\nfrom tests.engine.jobs import "
        "saves_when_told\n"
        "if __name__ == '__main__':\n    list(LocalEngine(1).map(saves_when_told, "
        f"[{str(path)!r}]))\n"
    )
    (tmp_path / "caller.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    caller = subprocess.Popen([sys.executable, str(tmp_path / "caller.py")], env=environment)
    _wait_for(path.with_suffix(".started"))
    caller.kill()
    caller.wait()
    _wait_for(path)


def test_wrong_numbers_of_processes_are_refused():
    with pytest.raises(ValueError, match="at least 0"):
        LocalEngine(-1)


def test_without_ray_the_extra_is_named():
    code = "import sys; sys.modules['ray'] = None; import saformer.engine.ray"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "pip install 'saformer[ray]'" in found.stderr


def _interrupt_when(path: Path) -> None:
    _wait_for(path)
    os.kill(os.getpid(), signal.SIGINT)


def _wait_for(path: Path) -> None:
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"{path.name} never came")
