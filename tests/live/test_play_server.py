"""The page's server: who may talk to it, what it understands, and what it says."""

import json
import socket
import urllib.error
import urllib.request

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from saformer.live.play.messages import read_request
from saformer.live.play.pages import read_recording
from tests.live.conftest import page_of, serving


def fetch(server, path: str = "/", **headers: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


def test_a_page_sees_steps_and_moves_the_limit(server):
    """The limit that it sets holds in the next episode."""
    with page_of(server) as page:
        whole = page.wait("whole")
        assert len(whole["lanes"]) == 1
        page.ask(do="speed", speed=60.0)
        page.ask(do="limit", lane=0, constraint=0, limit=1.25)
        assert page.wait("limit") == {"type": "limit", "lane": 0, "limit": [1.25]}
        page.ask(do="reset")
        page.wait("whole")
        page.ask(do="start")
        frames = page.wait("frames", lambda event: event["frames"][0]["step"] == 5)["frames"]
        assert frames[0]["limit"] == [1.25]


def test_two_lanes_begin_together(server):
    """Each acts as it was told. Seen to fail when a lane's options are dropped."""
    with page_of(server) as page:
        page.wait("whole")
        page.ask(do="lanes", count=2)
        lanes = page.wait("whole", lambda event: len(event["lanes"]) == 2)["lanes"]
        assert lanes[0]["frame"]["pose"] == lanes[1]["frame"]["pose"]
        run = lanes[1]["about"]["run"]
        page.ask(do="act", lane=1, run=run, rule="paper", options={"candidates": 3})
        changed = page.wait("whole", lambda event: event["lanes"][1]["about"]["rule"] == "paper")
        assert changed["lanes"][1]["about"]["options"]["candidates"] == 3
        page.ask(do="pause")
        page.ask(do="step")
        frames = page.wait("frames")["frames"]
        assert [frame["lane"] for frame in frames] == [0, 1]
        assert frames[1]["why"]["candidates"] == 3
        page.ask(do="lanes", count=1)
        page.wait("whole", lambda event: len(event["lanes"]) == 1)


def test_two_lanes_share_their_seed():
    """Of a robot whose start is drawn: by one policy, by two, and after another seed. Seen to fail
    when a lane's number is added to the seed, in the player and on the stage."""
    pytest.importorskip("mujoco")
    run = "pretrained:hopper-effort"
    with serving(run, limits=("p50", "p20")) as server, page_of(server) as page:
        first, second = page.wait("whole")["lanes"]
        assert first["frame"]["pose"] == second["frame"]["pose"]
        page.ask(do="act", lane=1, run=run, rule="none")
        page.ask(do="seed", seed=3)
        event = page.wait("whole", lambda event: event["seed"] == 3)
        poses = [lane["frame"]["pose"] for lane in event["lanes"]]
        assert poses[0] == poses[1] != first["frame"]["pose"]


@pytest.mark.parametrize(
    "message",
    [
        '{"do": "limit", "lane": 0, "constraint": 0, "limit": NaN}',
        '{"do": "limit", "lane": 0, "constraint": 0, "limit": -1}',
        '{"do": "limit", "lane": 0, "constraint": 0, "limit": "p50"}',
        '{"do": "limit", "lane": 99, "constraint": 0, "limit": 1}',
        '{"do": "close"}',
        '{"do": "start", "more": 1}',
        '{"do": "speed", "speed": 1e9}',
        '{"do": "act", "lane": 0, "run": "x", "options": {"a": [1]}}',
        "[]",
        "{",
        " " * 5000,
    ],
)
def test_messages_that_are_none_are_refused(message):
    """Each is wrong in one field, or no message at all."""
    with pytest.raises(ValueError, match=r"a message"):
        read_request(message)


def test_wrong_wishes_are_answered_and_end_nothing(server):
    """No traceback, and the page plays on."""
    with page_of(server) as page:
        whole = page.wait("whole")
        page.socket.send("\x00 nonsense")
        assert "a message that is none" in page.wait("error")["text"]
        page.ask(do="limit", lane=1, constraint=0, limit=1.0)
        assert "there is no lane 2" in page.wait("error")["text"]
        page.ask(do="limit", lane=0, constraint=3, limit=1.0)
        assert "no constraint 4" in page.wait("error")["text"]
        page.ask(do="act", lane=0, run="/etc/passwd")
        assert "there is no run" in page.wait("error")["text"]
        run = whole["lanes"][0]["about"]["run"]
        page.ask(do="act", lane=0, run=run, rule="nobody's")
        assert "unknown rule" in page.wait("error")["text"]
        page.ask(do="act", lane=0, run=run, options={"risk": 7})
        assert "risk" in page.wait("error")["text"]
        page.ask(do="step")
        assert page.wait("status")["playing"] is False


def test_other_sites_cannot_drive_a_lane(server):
    """By Origin, and by a name of their own that leads here. Seen to fail without each check."""
    for origin in ("http://evil.example", None, f"http://localhost:{server.port + 1}"):
        with pytest.raises(InvalidStatus), page_of(server, origin=origin):
            pass
    there = socket.create_connection(("127.0.0.1", server.port))
    name = f"evil.example:{server.port}"
    with (
        pytest.raises(InvalidStatus),
        connect(f"ws://{name}/ws", sock=there, origin=f"http://{name}"),
    ):
        pass
    for host in ("evil.example", name):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            fetch(server, Host=host)


def test_large_messages_close_the_socket(server):
    """Seen to fail when the server's bound is left at its usual 16 MB."""
    with page_of(server) as page:
        page.socket.send(json.dumps({"do": "start", "x": "y" * 10_000}))
        with pytest.raises(ConnectionClosed):
            page.wait("never")


def test_elsewhere_a_token_is_needed(run):
    """Seen to fail when the token is not asked for."""
    with serving(run, host="0.0.0.0") as server:
        assert len(server.token) > 20
        with pytest.raises(urllib.error.HTTPError, match="403"):
            fetch(server)
        assert "<title>" in fetch(server, f"/?token={server.token}")
        with pytest.raises((InvalidStatus, ConnectionClosed)), page_of(server) as page:
            page.wait("whole")


def test_what_was_played_is_saved_as_a_page(server, tmp_path):
    """With the pose of every frame."""
    with page_of(server) as page:
        page.wait("whole")
        page.ask(do="reset")
        page.ask(do="pause")
        for _ in range(3):
            page.ask(do="step")
            page.wait("status")
    path = tmp_path / "episode.html"
    path.write_text(fetch(server, "/recording.html"))
    (lane,) = read_recording(path)["lanes"]
    assert all(len(frame["pose"]) == 2 for frame in lane["frames"])
    assert lane["frames"][-1]["step"] >= 3


def test_a_page_forbids_scripts_of_others(server):
    url = f"http://127.0.0.1:{server.port}/"
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
