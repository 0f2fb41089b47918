"""Recorded episodes: whole in one file, with nothing in them that could act."""

import os
import re
import time

import pytest

from saformer.cli.main import main
from saformer.data.limits import Limit
from saformer.live.play.pages import read_recording, recorded_page
from saformer.live.play.recording import record
from saformer.live.play.settings import Acting
from saformer.live.play.video import film, write_film
from saformer.runs.run import Run
from saformer.trained import load


@pytest.fixture(scope="module")
def recorded(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recordings")
    trained, limits = load(run, device="cpu"), [Limit("p20", (5.0,)), Limit("p50,3", (9.0,))]
    return record(trained, limits, folder, acting=Acting(str(run)))


def test_one_page_for_each_limit(recorded):
    assert [path.name for path in recorded] == ["p20.html", "p50+3.html"]
    recording = read_recording(recorded[0])
    frames = recording["lanes"][0]["frames"]
    assert [frame["step"] for frame in frames] == list(range(21))
    assert frames[-1]["end"] == "whole"
    assert frames[-1]["limit"] == [5.0]


def test_a_recorded_page_fetches_nothing(recorded):
    """Seen to fail when a module is left out of those that are inlined."""
    text = recorded[0].read_text()
    assert not re.search(r'\b(src|href)="', text)
    assert not re.search(r"^(import|export) ", text, re.MULTILINE)
    assert "default-src 'none'" in text
    assert "{{" not in text.replace("${{", "")
    for name in re.findall(r"^(?:class|function) (\w+)", text, re.MULTILINE):
        assert len(re.findall(rf"^(?:class|function|const) {name}\b", text, re.MULTILINE)) == 1


def test_names_are_no_markup(recorded):
    """A task may be called anything. Seen to fail when "<" is written as it is."""
    recording = read_recording(recorded[0])
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    recording["lanes"][0]["about"]["task"] = evil
    page = recorded_page(recording, title=evil)
    assert "<script>alert" not in page
    assert "<img" not in page


def test_what_is_no_recording_is_refused(tmp_path, capsys):
    path = tmp_path / "page.html"
    path.write_text("<p>hello</p>")
    assert main(["play", str(path)]) == 1
    assert "no recorded episode" in capsys.readouterr().err.replace("\n", " ")


def test_evaluate_records_and_its_report_links(run, tmp_path, capsys):
    """Seen to fail when recordings of an earlier evaluation are linked."""
    how = ["evaluate", str(run), "--episodes", "1", "--out", str(tmp_path), "--device", "cpu"]
    assert main([*how, "--limits", "p20", "--record"]) == 0
    assert 'href="recordings/p20.html"' in (tmp_path / "report.html").read_text()
    kept = next((tmp_path / "evaluations").glob("*.html")).read_text()
    assert "recordings/" not in kept  # which would be those of a later evaluation
    judged = tmp_path / "evaluation.json"
    assert [path.name for path in Run(tmp_path).recordings()] == ["p20.html"]
    os.utime(judged, (time.time() + 60, time.time() + 60))
    assert Run(tmp_path).recordings() == []


def test_where_nothing_renders_a_video_says_so(run, tmp_path):
    """Plants and toys have no pictures. Seen to fail with Gymnasium's own error."""
    trained = load(run, device="cpu")
    with pytest.raises(ValueError, match="OpenGL"):
        film(trained, [Limit("p50", (9.0,))], tmp_path, acting=Acting(str(run)))


def test_pictures_become_a_file(tmp_path):
    pytest.importorskip("imageio")
    import numpy as np

    pictures = [np.full((16, 16, 3), 10 * shade, dtype=np.uint8) for shade in range(5)]
    path = write_film(tmp_path / "p50", pictures, rate=20)
    assert path.suffix in {".gif", ".mp4"}
    assert path.stat().st_size > 50


def test_unknown_runs_are_refused_before_a_page_opens(capsys):
    assert main(["play", "pretrained:nobody"]) == 1
    assert main(["play", "nowhere"]) == 1
    assert main(["play"]) in {1, 2}
    assert "nowhere is no run" in capsys.readouterr().err.replace("\n", " ")
