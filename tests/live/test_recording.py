"""Recorded episodes: whole in one file, with nothing in them that could act."""

import os
import re
import subprocess
import sys
import time
from ctypes.util import find_library
from importlib.util import find_spec

import numpy as np
import pytest

from saformer.cli.main import main
from saformer.data.limits import Limit
from saformer.live.play import video
from saformer.live.play.pages import STATIC, read_recording, recorded_page
from saformer.live.play.recording import record
from saformer.live.play.settings import Acting
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
    replay = (STATIC / "replay.js").read_text() + (STATIC / "lane.js").read_text()
    for names in re.findall(r"^import \{ (.*?) \}", replay, re.MULTILINE):
        for name in names.split(", "):
            assert re.search(rf"^(class|function) {name}\b", text, re.MULTILINE), name
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
    """Recordings of an earlier evaluation are not linked."""
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
    """Plants and toys have no pictures."""
    trained = load(run, device="cpu")
    with pytest.raises(ValueError, match="OpenGL"):
        video.film(trained, [Limit("p50", (9.0,))], tmp_path, acting=Acting(str(run)))


def test_pictures_become_a_gif_where_there_is_no_ffmpeg(tmp_path, monkeypatch):
    pytest.importorskip("imageio")
    monkeypatch.setattr(video, "find_spec", lambda name: None)
    pictures = [np.full((16, 16, 3), 10 * shade, dtype=np.uint8) for shade in range(5)]
    path = video.write_film(tmp_path / "p50", pictures, rate=20)
    assert path.read_bytes()[:4] == b"GIF8"
    assert path.suffix == ".gif"


ROBOT_ON_FILM = """
import sys
from pathlib import Path
from saformer.live.play import video
from saformer.live.play.settings import Acting
from saformer.trained import load
name = "pretrained:hopper-effort"
trained = load(name, device="cpu")
trained.__dict__["totals"] = trained.totals.with_environment(horizon=4)
film = trained, trained.parse_limits(["p50"]), Path(sys.argv[1])
print(*video.film(*film, acting=Acting(name, "none")))
video.find_spec = lambda name: None  # no FFmpeg
print(*video.film(*film, acting=Acting(name, "none")))
"""


@pytest.mark.skipif(find_library("OSMesa") is None, reason="no renderer: apt install libosmesa6")
def test_a_robot_is_filmed(tmp_path):
    """Four steps, by Mesa's renderer, as MP4 (where FFmpeg is there) and GIF; what was written is
    read again: five pictures that are neither of one colour nor all the same. Seen to fail when the
    first picture is left out."""
    v3 = pytest.importorskip("imageio.v3")
    command = [sys.executable, "-c", ROBOT_ON_FILM, str(tmp_path)]
    where = {**os.environ, "MUJOCO_GL": "osmesa"}
    subprocess.run(command, env=where, check=True, capture_output=True)
    has_ffmpeg = find_spec("imageio_ffmpeg") is not None
    assert {path.suffix for path in tmp_path.iterdir()} == {".gif"} | (
        {".mp4"} if has_ffmpeg else set()
    )
    for path in tmp_path.iterdir():
        pictures = v3.imread(path, index=None if path.suffix == ".gif" else ...)
        assert len(pictures) == 5
        assert pictures[0].std() > 10
        assert (pictures[0] != pictures[-1]).any()


def test_unknown_runs_are_refused_before_a_page_opens(capsys):
    assert main(["play", "pretrained:nobody"]) == 1
    assert main(["play", "nowhere"]) == 1
    assert main(["play"]) in {1, 2}
    assert "nowhere is no run" in capsys.readouterr().err.replace("\n", " ")
