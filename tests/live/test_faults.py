"""Bad input, slow and lost clients, too many of them, full disks: a line each, and nobody else is
disturbed."""

from __future__ import annotations

import json
import math
import socket
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import msgpack
import numpy as np
import pytest
import websockets
from scripts.attack import frames

from saformer.client import PolicyClient, ServerRefusedError
from saformer.live.serve import server as serve_server
from saformer.live.serve.accounts import Accounts
from saformer.live.serve.audit import AuditLog
from saformer.live.serve.decider import Order
from saformer.live.serve.messages import RefusedError, parsed
from saformer.live.serve.settings import ServeSettings
from tests.live.served import connected, serving

GOOD = {"session": "a", "step": 0, "state": [0.0, 1.0], "limit": 3.0}


def post(url: str, body: bytes, **headers: str) -> tuple[int, Any]:
    request = urllib.request.Request(f"{url}/v1/act", body, headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


WRONG = {
    "state has 3 values, and this policy needs 2": {"state": [0, 1, 2]},
    "state.0: it should be less than or equal to": {"state": [1e300, 0]},
    "state.1: it should be a valid number, got 'x'": {"state": [0, "x"]},
    "state.0: it should be a valid number, got True": {"state": [True, 0]},
    "state: it should be a valid array, got {}": {"state": {}},
    "limit has 2 values, and this policy needs 1": {"limit": [1, 2]},
    "limit.0: it should be greater than or equal to 0, got -1": {"limit": -1},
    "limit: 'pp' is not a limit; give a number": {"limit": "pp"},
    "limit is missing: step 0 needs state, limit": {"limit": None},
    "cost makes no sense at step 0": {"cost": 1},
    "session: a name of 1 to 80 letters": {"session": "a/b"},
    "step: it should be greater than or equal to 0": {"step": -1},
    "step is missing": {"step": None},
    "is not known here, so step 4 cannot be next": {"step": 4, "cost": 1},
    "there is no entry 'limt'": {"limt": 3},
}


def test_what_is_wrong_is_said_in_a_line(deployed, accounts):
    """Seen to fail with the checks of widths, of what a step needs and of unknown entries left
    out, one after another."""
    with serving(deployed, accounts) as server:
        for line, change in WRONG.items():
            status, answer = post(server.url, json.dumps({**GOOD, **change}).encode())
            assert 400 <= status < 500
            assert line in answer["error"]
            assert "\n" not in answer["error"]
        for body in (b"", b"[]", b"{", b"\xff", b'{"state": NaN}', b"[" * 9000, b'{"step": 1e999}'):
            status, answer = post(server.url, body)
            assert (status, list(answer)) == (400, ["error"])
        nan = json.dumps({**GOOD, "state": [math.nan, 0]}).encode()
        assert post(server.url, nan)[0] == 400
        assert post(server.url, b" " * (1 << 19))[0] == 413
        assert post(server.url, json.dumps(GOOD).encode())[0] == 200


def test_frames_that_are_mutated_are_refused_in_a_line(deployed, accounts, caplog):
    """A share of the campaign `frames`; nothing is logged as a failure of ours. Seen to fail when
    `unpacked` lets an OverflowError through."""
    with serving(deployed, accounts, request_rate=1e6) as server:
        for seed in range(4):
            assert frames.attack(server.url, seed, count=120) is None
    assert not caplog.records


def test_arrays_are_read_by_their_bytes_alone(deployed, accounts):
    """Seen to fail when the type's name goes to NumPy as it is, and when sizes are not compared."""
    array = {b"__ndarray__": True, b"data": bytes(8), b"dtype": "<f4", b"shape": [2]}
    wrong: dict[str, dict[bytes, Any]] = {
        "an array of type '|O'": {b"dtype": "|O"},
        "an array of type 'f4,(9999999,)f8'": {b"dtype": "f4,(9999999,)f8"},
        "do not fit its shape [3]": {b"shape": [3]},
        "do not fit its shape [4294967296, 4294967296]": {b"shape": [2**32, 2**32]},
        "must be a list of whole numbers": {b"shape": [-1, -2]},
        "do not fit its shape [2]": {b"data": "text"},
    }
    with serving(deployed, accounts) as server, connected(server.url) as client:
        for line, change in wrong.items():
            client.send(msgpack.packb({"state": {**array, **change}, "limit": 3.0}))
            assert line in client.recv()
        client.send("text")
        assert "this was a text frame" in client.recv()
        client.send(msgpack.packb({"state": array, "limit": 3.0}))
        assert isinstance(client.recv(), bytes)


def order(front: Any, name: str, **told: Any) -> Order:
    return Order(parsed({"session": name, **told}, front._terms), "local", "test")


def test_one_that_cannot_be_decided_spoils_no_other(deployed, accounts):
    """A state so large that the networks overflow, among others. Seen to fail when the batch is not
    tried again one by one, and when the lanes are not given back what they knew."""
    with serving(deployed, accounts) as server:
        front = server._front
        begin = [order(front, name, state=[0.0, 1.0], limit=3.0) for name in "abc"]
        assert not any(isinstance(each, RefusedError) for each in front._decider.decide(begin))
        states = {"a": [0.1, 1.0], "b": [1e30, 1e30], "c": [0.2, 1.0]}
        steps = [order(front, name, state=state, cost=0.5) for name, state in states.items()]
        first, refused, last = front._decider.decide(steps)
        assert (first["spent"], last["spent"]) == ([0.5], [0.5])
        assert "nothing was booked" in str(refused)
        assert "action from these weights and limit" in str(refused)
        (again,) = front._decider.decide([order(front, "b", state=[0.1, 1.0], cost=0.5)])
        assert (again["step"], again["spent"]) == (1, [0.5])


def test_ten_times_too_many_sessions(deployed, accounts):
    """The first go on, the others are refused in a line; the idle make room and come back. Seen to
    fail when an evicted session is not given back what it knew."""
    with (
        serving(deployed, accounts, sessions=3, idle=1000) as server,
        PolicyClient(server.url, patience=0) as client,
    ):
        sessions = [client.session(f"s{number}") for number in range(30)]
        for session in sessions[:3]:
            session.begin([0, 1], 3.0)
        for session in sessions[3:]:
            with pytest.raises(ServerRefusedError, match="all 3 sessions are taken") as refused:
                session.begin([0, 1], 3.0)
            assert refused.value.status == 503
        sessions[0].step([0, 1], 0.5)
        let_time_pass(server, 2000)
        for session in sessions[3:6]:
            session.begin([0, 1], 3.0)
        let_time_pass(server, 2000)
        assert sessions[0].step([0, 1], 0.5).spent == [1.0]


def test_sessions_of_one_batch_take_no_lane_from_each_other(deployed, accounts):
    """However soon they count as idle. Seen to fail when the idle are looked for among all."""
    with serving(deployed, accounts, sessions=2, idle=1e-9) as server:
        decide, front = server._front._decider.decide, server._front
        outcomes = decide([order(front, name, state=[0.0, 1.0], limit=3.0) for name in "abcd"])
        assert ["refused" if isinstance(each, RefusedError) else each["spent"] for each in outcomes] == [
            [0.0], [0.0], "refused", "refused",
        ]  # fmt: skip
        (moved,) = decide([order(front, "c", state=[0.0, 1.0], limit=3.0)])
        (back,) = decide([order(front, "a", state=[0.0, 1.0], cost=0.5)])
        assert (moved["spent"], back["spent"]) == ([0.0], [0.5])


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def let_time_pass(server: Any, seconds: float) -> None:
    for session in server._front._decider._sessions.values():
        session.used -= seconds


def test_a_full_disk_books_nothing(deployed, accounts, monkeypatch):
    """Nor does an audit log that cannot be written. The same request is answered once there is room.
    Seen to fail when the lanes are left as they are."""
    with serving(deployed, accounts) as server, PolicyClient(server.url, patience=0) as client:
        session = client.session("a")
        session.begin([0, 1], 3.0)

        def full(*_: Any) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        def no_room(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        for target, name, failure in ((Accounts, "write", full), (AuditLog, "add", no_room)):
            with monkeypatch.context() as patch:
                patch.setattr(target, name, failure)
                with pytest.raises(ServerRefusedError, match="nothing was booked") as refused:
                    session.step([0, 1], 0.5)
                assert refused.value.status == 507
                with pytest.raises(ServerRefusedError, match="nothing was booked"):
                    client.session("b").begin([0, 1], 3.0)
        assert session.step([0, 1], 0.5).spent == [0.5]
        assert client.session("b").begin([0, 1], 3.0).spent == [0.0]


def test_slow_and_lost_clients_hold_nobody_up(deployed, accounts, monkeypatch):
    """Half a header, half a body, half a frame, a client that never reads, one that is gone: the
    others are answered, and the slow are cut off. Seen to fail without `PatientHTTP`, and without
    the time-out of bodies."""
    monkeypatch.setattr(serve_server, "IDLE_HTTP", 1)
    with (
        serving(deployed, accounts, patience=1.0, silence=1.0) as server,
        PolicyClient(server.url) as client,
    ):
        address = ("127.0.0.1", urlsplit(server.url).port)
        half_header, half_body, mute, gone = (socket.create_connection(address) for _ in range(4))
        half_header.sendall(b"POST /v1/act HT")
        half_body.sendall(
            b"POST /v1/act HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50\r\n\r\n{"
        )
        gone.sendall(b"POST /v1/act HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{}")
        gone.close()
        half_frame = connected(server.url)
        half_frame.socket.sendall(b"\x82\xfe\x01\x00abcd")
        session = client.session("a")
        session.begin([0, 1], 3.0)
        began = time.monotonic()
        for _ in range(5):
            session.step([0, 1], 0.1)
        assert time.monotonic() - began < 2
        for each in (half_header, mute):
            each.settimeout(5)
            assert each.recv(100) == b""
        half_body.settimeout(5)
        assert b"408" in half_body.recv(1000)
        wait_until(lambda: half_frame.protocol.close_rcvd is not None)
        half_body.close()
        half_header.close()
        mute.close()
        assert session.step([0, 1], 0.1).spent == pytest.approx([0.6])


def test_tokens_origins_and_rates(deployed, accounts, tmp_path):
    """Seen to fail when tokens are not asked for, when another's session is given away, when a
    page of another site is answered, and when names lead here that are not ours."""
    tokens = tmp_path / "tokens"
    tokens.write_text("press aaaaaaaaaaaaaaaaaaaa\nlathe bbbbbbbbbbbbbbbbbbbb  # comment\n")
    body = json.dumps(GOOD).encode()
    with serving(deployed, accounts, tokens=tokens, request_rate=30.0) as server:
        assert post(server.url, body)[0] == 401
        assert post(server.url, body, Authorization="Bearer cccccccccccccccccccc")[0] == 401
        assert post(server.url, body, Authorization="Api-Key aaaaaaaaaaaaaaaaaaaa")[0] == 200
        with PolicyClient(server.url, token="b" * 20, patience=0) as client:
            with pytest.raises(ServerRefusedError, match="belongs to another token"):
                client.take_up("a")
            with pytest.raises(ServerRefusedError, match="belongs to another token"):
                client.session("a").begin([0, 1], 3.0)
            with pytest.raises(ServerRefusedError, match="more than 30 requests a second"):
                [client.policy() for _ in range(60)]
        with pytest.raises(websockets.InvalidStatus, match="401"):
            connected(server.url)
    with serving(deployed, accounts) as server:
        assert post(server.url, body, Origin="https://evil.example")[0] == 403
        with pytest.raises(websockets.InvalidStatus, match="403"):
            connected(server.url, origin="https://evil.example")
        connection = HTTPConnection("127.0.0.1", urlsplit(server.url).port)
        for host in ("evil.example", "[", ""):
            connection.request("GET", "/v1/policy", headers={"Host": host})
            response = connection.getresponse()
            assert (response.status, b"this server is not" in response.read()) == (403, True)
        assert post(server.url, body, Origin="http://[")[0] == 403


def test_settings_that_make_no_sense_are_refused(deployed, accounts, tmp_path):
    """Among them an open port without tokens. Seen to fail when 0.0.0.0 counts as local."""
    with pytest.raises(ValueError, match="can be reached from other machines"):
        ServeSettings(host="0.0.0.0")
    with pytest.raises(ValueError, match="TLS needs both files"):
        ServeSettings(key=tmp_path / "key")
    with pytest.raises(ValueError, match="sessions must be at least 1"):
        ServeSettings(sessions=0)
    assert ServeSettings(host="::1").is_local
    short = tmp_path / "short"
    short.write_text("press abc\n")
    with (
        pytest.raises(ValueError, match="line 1: expected NAME TOKEN"),
        serving(deployed, accounts, tokens=short),
    ):
        pass
    with serving(deployed, accounts) as server:
        with (
            pytest.raises(ValueError, match="is in use by another server"),
            serving(deployed, accounts),
        ):
            pass
        with pytest.raises(OSError, match="cannot listen at port"):
            serve_server._listen(ServeSettings(port=urlsplit(server.url).port))
    with (
        pytest.raises(ValueError, match="are of another policy"),
        serving(deployed, accounts, {"candidates": 3}),
    ):
        pass


def test_the_audit_log_is_rotated(tmp_path):
    """Seen to fail without a largest size."""
    log = AuditLog(tmp_path / "audit.jsonl", size=1000, files=2)
    for number in range(100):
        log.add([{"number": number, "padding": "x" * 50}])
    log.close()
    paths = sorted(tmp_path.iterdir())
    assert [path.name for path in paths] == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert all(path.stat().st_size <= 1000 for path in paths)
    assert json.loads(paths[0].read_text().splitlines()[-1])["number"] == 99


@pytest.mark.parametrize("agent", ["dt", "bcq_lag"])
def test_every_kind_of_agent_goes_on_after_a_restart(agent, accounts, tmp_path):
    """Their targets and windows are kept too. Seen to fail when `return_to_go` is not."""
    import saformer
    from tests.cli.test_cli import main

    sizes = "--width 16 --layers 1" if agent == "dt" else "--hidden 8"
    limit = [] if agent == "dt" else ["--limit", "p50"]
    words = f"train allowance --agent {agent} --data-steps 2000 --updates 2 --batch-size 8 --evaluate-every 0 {sizes}"
    assert main([*words.split(), *limit, "--device", "cpu", "--out", str(tmp_path / "run")]) == 0
    trained = saformer.load(tmp_path / "run", device="cpu")
    policy = trained.policy()
    states = np.linspace(0, 1, 6)[:, None] * [1.0, 2.0]
    policy.reset(states[0], 3.0)
    for number, state in enumerate(states):
        with serving(trained, accounts) as server, PolicyClient(server.url) as client:
            session = client.session("a") if number == 0 else client.take_up("a")
            if number == 0:
                answer = session.begin(state, 3.0)
            else:
                answer = session.step(state, 0.2, reward=0.5)
        expected = policy.act(state).action[0].numpy()
        assert agent != "dt" or np.allclose(answer.action, expected, atol=1e-6)  # bcq_lag draws
        assert answer.spent.tolist() == policy.budget.spent[0].tolist()
        policy.observe(0.5, 0.2)
    assert answer.why["safe"] is None
