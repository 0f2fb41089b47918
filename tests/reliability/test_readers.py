"""Whatever a file holds, it is read as what it should be, or refused in one line that names it."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import saformer
from saformer.api.calibrate import read_calibrations
from saformer.report import table
from saformer.report.rollouts import write_report
from saformer.runs.checkpoint import Checkpoint
from saformer.runs.run import Run
from saformer.training.finetune.experience import ExploredEpisode
from tests.editing import unsigned
from tests.training.test_finetune import CONFIG

WRONG = (None, "x", -1, 0.5, [], {}, True, 10**400, [[]])


@pytest.fixture(scope="module")
def judged(source, tmp_path_factory) -> Path:
    """A run with all files that a run can have."""
    path = Path(shutil.copytree(source.path, tmp_path_factory.mktemp("judged") / "run"))
    loaded = saformer.load(path, workers=0, device="cpu")
    loaded.evaluate(["p50"], episodes=2)
    loaded.calibrate(0.9, ["p50"], margins=[0], episodes=2)
    return path


@pytest.fixture
def run(judged, tmp_path) -> Run:
    return Run(shutil.copytree(judged, tmp_path / "run"))


def mutations(content: Any, within: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """(path to an entry, another value for it), one entry of each list."""
    entries = content.items() if isinstance(content, dict) else list(enumerate(content))[:1]
    for key, value in entries:
        yield from (((*within, key), wrong) for wrong in WRONG)
        if isinstance(value, dict | list):
            yield from mutations(value, (*within, key))


def mutated(content: Any, path: tuple, value: Any) -> Any:
    copy = json.loads(json.dumps(content))
    entry = copy
    for key in path[:-1]:
        entry = entry[key]
    if value is WRONG[0] and isinstance(entry, dict):
        del entry[path[-1]]
    else:
        entry[path[-1]] = value
    return copy


def check(file: Path, read: Callable[[], Any], *, every: int = 1) -> int:
    """Try mutations of this file; returns how many there were."""
    content, count = unsigned(file), 0
    refusals: list[tuple[str, str]] = []
    for path, value in list(mutations(content))[::every]:
        count += 1
        file.write_text(json.dumps(mutated(content, path, value)))
        try:
            read()
        except (ValueError, OSError) as error:
            refusals.append((str(error), f"{path} = {value!r}"))
    wrong = [each for each in refusals if file.name not in each[0] or "\n" in each[0]]
    assert not wrong, wrong
    for text in (b"", b"{", b"\xff\xfe", b"[]", b"null", b"[" * 5000, b'{"a": NaN}'):
        file.write_bytes(text)
        with pytest.raises((ValueError, OSError), match=file.name):
            read()
    file.write_text(json.dumps(content))
    read()
    return count


@pytest.mark.parametrize("every", [15, pytest.param(1, marks=pytest.mark.long)])
def test_run_json(run, every):
    """With a checkpoint that agrees. Seen to fail: 51 tracebacks."""

    def load() -> None:
        checkpoint = Run(judged_checkpoint).load()
        facts = {**checkpoint.facts, "spec": run.spec.digest}
        run.save(Checkpoint(checkpoint.groups, facts))
        saformer.load(run.path, device="cpu").policy()

    judged_checkpoint = shutil.copytree(run.path, run.path.parent / "copy")
    assert check(run.spec_path, load, every=every) > 25


def test_calibration_json(run):
    """Seen to fail: a margin of -0.5 was accepted, and 2 tracebacks."""
    assert check(run.path / "calibration.json", lambda: read_calibrations(run)) > 100
    file = run.path / "calibration.json"
    content = unsigned(file)
    content["calibrations"][0]["limits"][0]["margin"] = -0.5
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="margin"):
        read_calibrations(run)


def test_evaluation_json(run, monkeypatch):
    """Seen to fail: 55 tracebacks."""
    only_tables(monkeypatch)
    read = lambda: write_report(run, run.path / "report.html")  # noqa: E731
    assert check(run.path / "evaluation.json", read, every=5) > 50


def only_tables(monkeypatch) -> None:
    """Drawing takes most of a report's time; what is drawn is looked at by the long test."""
    from saformer.report import rollouts

    for name in ("_cost_and_return", "_among_the_data", "_spending", "_decision"):
        monkeypatch.setattr(rollouts, name, lambda *_: "<svg/>")
    monkeypatch.setattr(rollouts, "training_pictures", lambda run: [])


def test_trace_json(run, monkeypatch):
    """Seen to fail: 11 tracebacks."""
    only_tables(monkeypatch)
    read = lambda: write_report(run, run.path / "report.html")  # noqa: E731
    assert check(run.path / "trace.json", read, every=2) > 25


@pytest.mark.long
@pytest.mark.parametrize("name", ["evaluation.json", "trace.json"])
def test_what_is_accepted_can_be_drawn(run, name):
    """Drawn, not only read."""
    read = lambda: write_report(run, run.path / "report.html")  # noqa: E731
    check(run.path / name, read, every=2)


@pytest.mark.parametrize("every", [25, pytest.param(1, marks=pytest.mark.long)])
def test_export_json(run, tmp_path, every):
    """Seen to fail: 3 tracebacks."""
    saformer.load(run.path, device="cpu").export(tmp_path / "exported")

    def load() -> None:
        loaded = saformer.load(tmp_path / "exported", device="cpu")
        assert loaded.totals.environment.horizon

    check(tmp_path / "exported" / "export.json", load, every=every)


def test_rows_of_metrics_and_episodes(source, tmp_path):
    """Seen to fail: a row that is no object ended in a traceback, and so did a report of rows without
    an update, or with a figure that is none."""
    run = saformer.finetune(
        source.path, [0.1], out=tmp_path / "run", config=CONFIG, episodes=1, workers=0, device="cpu"
    ).run
    for name, schema in (("episodes.jsonl", ExploredEpisode), ("metrics.jsonl", None)):
        file = run.path / name
        first, *others = file.read_text().splitlines()
        refusals = []
        for path, value in mutations(json.loads(first)):
            rows = [json.dumps(mutated(json.loads(first), path, value)), *others]
            file.write_text("".join(f"{row}\n" for row in rows))
            try:
                list(run.read_rows(name, schema) if schema else run.metrics())
            except ValueError as error:
                refusals.append(str(error))
        assert refusals
        assert all(name in each and "\n" not in each for each in refusals)
        file.write_text(f"{first}\n{first[:9]}")
        assert len(list(run.read_rows(name))) == 1


@pytest.mark.parametrize("row", [{"loss": 1}, {"update": 1, "loss": {}}, {"update": 10**400}])
def test_a_row_of_metrics_that_cannot_be_drawn_is_refused(run, row):
    """Seen to fail when only the update has a type, and when nothing has."""
    run.metrics_path.write_text(f"{json.dumps(row)}\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged"):
        list(run.metrics())


def test_tables_are_read_by_what_was_checked(run):
    evaluation = json.loads((run.path / "evaluation.json").read_text())
    assert table.summary(evaluation)
