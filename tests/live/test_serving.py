"""Episodes over the wire: openpi's client, ours, many at once, lost ones, and budgets that move."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgpack
import numpy as np
import pytest
import torch
import websockets

import saformer
from saformer.api.judge import shielded
from saformer.client import PolicyClient, ServerRefusedError
from saformer.envs.allowance import HORIZON, Allowance
from tests.live.served import connected, serving

CERTAIN = {"candidates": 1}  # nothing is drawn: the same whoever else is decided
LIMIT = 3.0


def test_openpis_own_client_drives_an_episode(deployed, accounts):
    """As the policy itself would, to the bit. Seen to fail when costs are not booked."""
    openpi = pytest.importorskip("openpi_client.websocket_client_policy")
    policy, environment = deployed.policy(), Allowance()
    with serving(deployed, accounts) as server:
        client = openpi.WebsocketClientPolicy("127.0.0.1", server.listening.getsockname()[1])
        assert client.get_server_metadata()["state"] == 2
        state, _ = environment.reset()
        policy.reset(state, limit=4.0)
        answer = client.infer({"state": state, "limit": np.float32(4.0)})
        spent, is_over = 0.0, False
        while not is_over:
            expected = policy.act(state).action[0].numpy()
            assert np.array_equal(answer["action"], expected)
            assert np.array_equal(answer["actions"], expected[None])
            state, reward, is_over, _, _ = environment.step(answer["action"])
            cost = float(np.abs(answer["action"]).sum())
            spent += cost
            policy.observe(reward, cost)
            told = {"cost": np.array([cost])}
            answer = client.infer({**told, **({"end": True} if is_over else {"state": state})})
            assert answer["spent"] == [spent]
        assert answer["step"] == HORIZON
        with pytest.raises(RuntimeError, match="state has 3 values, and this policy needs 2"):
            client.infer({"state": np.zeros(3), "limit": 1.0})
        assert client.infer({"state": np.zeros(2), "limit": "p50"})["step"] == 0


def test_sessions_that_are_decided_together_decide_as_if_alone(deployed, accounts, tmp_path):
    """Each within its own limit. Seen to fail when a batch's answers are dealt out in another
    order."""

    def episode(url: str, number: int) -> list:
        with PolicyClient(url) as client:
            session = client.session(f"s{number}")
            state = np.array([number / 8, 1.0])
            answers = [session.begin(state, limit=1.0 + number)]
            answers += [session.step(state * step, 0.1 * number) for step in range(1, 5)]
            return [
                (each.action.tolist(), each.limit.tolist(), each.spent.tolist()) for each in answers
            ]

    with serving(deployed, accounts, CERTAIN) as server, ThreadPoolExecutor(8) as threads:
        together = list(threads.map(episode, [server.url] * 8, range(8)))
    with serving(deployed, tmp_path / "other", CERTAIN) as server:
        alone = [episode(server.url, number) for number in range(8)]
    for one, other in zip(together, alone, strict=True):
        for first, second in zip(one, other, strict=True):
            assert first[1:] == second[1:]
            assert np.allclose(first[0], second[0], atol=1e-6)
    assert len({str(each) for each in together}) == 8


def test_a_repeated_request_gets_the_stored_answer_and_is_booked_once(deployed, accounts):
    """Also after a restart. Seen to fail when the digest is not compared, and when a repeated step
    is decided again."""
    begin = {"session": "a", "step": 0, "state": [1, 1], "limit": 3}
    step = {"session": "a", "step": 1, "state": [0.5, 1], "cost": 0.75}
    with serving(deployed, accounts) as server, PolicyClient(server.url) as client:
        first = client.ask("POST", "/v1/act", begin)
        assert client.ask("POST", "/v1/act", begin) == first
        answer = client.ask("POST", "/v1/act", step)
        assert answer["spent"] == [0.75]
        assert client.ask("POST", "/v1/act", step) == answer
        with pytest.raises(ServerRefusedError, match="answered for another request") as refused:
            client.ask("POST", "/v1/act", {**step, "cost": 0.5})
        assert refused.value.status == 409
        with pytest.raises(ServerRefusedError, match="expects step 2 and got 0"):
            client.ask("POST", "/v1/act", begin)
    with serving(deployed, accounts) as server, PolicyClient(server.url) as client:
        assert client.ask("POST", "/v1/act", step) == answer
        end = {"session": "a", "step": 2, "cost": 0.5, "end": True}
        assert client.ask("POST", "/v1/act", end)["spent"] == [1.25]
        assert client.ask("POST", "/v1/act", end)["spent"] == [1.25]
        with pytest.raises(ServerRefusedError, match="has ended at step 2: begin anew with step 0"):
            client.ask("POST", "/v1/act", {**step, "step": 3})
        assert client.ask("POST", "/v1/act", begin)["spent"] == [0.0]


def test_a_lost_client_takes_its_session_up_again(deployed, accounts):
    """Account, limit and window are as if nothing had been lost. Seen to fail when `LaneMemory`
    leaves out the time steps."""
    states = np.linspace(0.1, 1, 7)[:, None] * [1.0, 2.0]
    policy = deployed.policy(**CERTAIN)
    policy.reset(states[0], limit=2.0)
    with serving(deployed, accounts, CERTAIN) as server:
        session = PolicyClient(server.url).session("a")
        session.begin(states[0], 2.0)
        session.step(states[1], 0.3)
        session.step(states[2], 0.3, limit=5.0, action=[0.25])
    with serving(deployed, accounts, CERTAIN) as server, PolicyClient(server.url) as client:
        session = client.take_up("a")
        assert session.latest.step == 2
        answers = [session.step(state, 0.3) for state in states[3:]]
        assert answers[-1].spent == pytest.approx([1.8])
        assert answers[-1].limit == [5.0]
        with pytest.raises(ServerRefusedError, match="there is no session 'b'"):
            client.take_up("b")
    for number, state in enumerate(states):
        expected = policy.act(state).action[0].numpy()
        if number > 2:
            assert np.allclose(answers[number - 3].action, expected, atol=1e-6)
        policy.observe(0.0, 0.3, action=[[0.25]] if number == 1 else None)
        if number == 1:
            policy.budget.limit[:] = 5.0


def test_a_shield_is_served_and_taken_up_again(deployed, accounts):
    """It acts as the library's own, to the bit, also after a restart: no limit is passed. Seen to
    fail when the policy within acts alone, and when `LaneMemory` leaves the shield's accounts
    out."""
    within = deployed.agent.policy(deployed.options("none", CERTAIN, shielded=True))
    shield, state = shielded(within, deployed.totals), np.array([0.5, 1.0])
    shield.reset(torch.from_numpy(state)[None], torch.tensor([[LIMIT]], dtype=torch.float64))
    expected, answers = [], []
    for _ in range(12):
        expected.append(shield.act(torch.from_numpy(state)[None]).action[0].numpy())
        shield.observe(torch.zeros(1), torch.from_numpy(np.abs(expected[-1]))[None].double())
    how = {"rule": "none", "shield": True}  # it spends whatever the limit
    for _ in range(2):
        with (
            serving(deployed, accounts, CERTAIN, **how) as server,
            PolicyClient(server.url) as client,
        ):
            assert client.policy()["shield"]
            session = client.take_up("a") if answers else client.session("a")
            for _ in range(6):
                if answers:
                    answers.append(session.step(state, np.abs(answers[-1].action)))
                else:
                    answers.append(session.begin(state, LIMIT))
    assert [each.action.tolist() for each in answers] == [each.tolist() for each in expected]
    assert {each.why["shield"] for each in answers} == {False, True}
    assert sum(np.abs(each.action)[0] for each in answers) <= LIMIT


@pytest.mark.filterwarnings("ignore:limit 30 lies outside the data")
def test_a_calibrated_rate_is_served_or_refused(deployed, accounts, tmp_path):
    """The policy hears of 90%, as `evaluate` with this rate tells it, and clients of all. Seen to
    fail when it is told the whole limit, and when an uncalibrated one is served."""
    calibrated = saformer.load(deployed.path, device="cpu", out=tmp_path, workers=0)
    calibrated.calibrate(0.1, limits=["30"], episodes=40, margins=(0.2, 0.1), options=CERTAIN)
    policy = deployed.policy(**CERTAIN)
    policy.reset([0.5, 1.0], limit=27.0)
    expected = policy.act([0.5, 1.0]).action[0].numpy()
    with serving(calibrated, accounts, rate=0.1) as server, PolicyClient(server.url) as client:
        session = client.session("a")
        answer = session.begin([0.5, 1.0], limit=30.0)
        assert np.array_equal(answer.action, expected)
        assert (answer.limit, client.policy()["rate"]) == ([30.0], 0.1)
        with pytest.raises(ServerRefusedError, match="limits that stay as they were"):
            session.step([0.5, 1.0], 0.5, limit=20.0)
        assert session.step([0.5, 1.0], 0.5).limit == [30.0]
        with pytest.raises(ServerRefusedError, match="limit: 5 = 5 is not calibrated for a"):
            client.session("b").begin([0.5, 1.0], limit=5.0)
    for settings, problem in [
        ({"rate": 0.2}, "not calibrated for a violation rate of 0.2, only for 0.1"),
        ({"rate": 0.1, "shield": True}, "leave rate or shield out"),
        ({"floor": (0.0,)}, "something that a shield needs"),
    ]:
        with pytest.raises(ValueError, match=problem), serving(calibrated, accounts, **settings):
            pass


def test_what_is_asked_as_it_stops_is_answered(deployed, accounts):
    """Whatever was booked was answered, and the account is there afterwards. Seen to fail when
    connections are closed before the answers have left."""
    latest: dict[str, int] = {}

    def drive(url: str, name: str) -> None:
        with connected(url) as client, suppress(websockets.ConnectionClosed):
            told: dict = {"limit": 3.0}
            while True:
                client.send(msgpack.packb({"session": name, "state": [0.0, 1.0], **told}))
                answer = client.recv()
                if isinstance(answer, str):
                    assert "the server is stopping" in answer
                    return
                latest[name], told = msgpack.unpackb(answer)["step"], {"cost": 0.01}

    with serving(deployed, accounts) as server:
        clients = [threading.Thread(target=drive, args=(server.url, f"s{n}")) for n in range(6)]
        for client in clients:
            client.start()
        time.sleep(0.2)
        server.should_exit = True
        for client in clients:
            client.join()
    with serving(deployed, accounts) as server, PolicyClient(server.url) as client:
        stored = {f"s{n}": client.take_up(f"s{n}").latest.step for n in range(6)}
    assert stored == latest


def test_it_says_what_it_is_and_how_it_does(deployed, accounts):
    """Health, metrics, OpenAPI, a page, and a line in the audit log for each decision."""
    with serving(deployed, accounts) as server, PolicyClient(server.url) as client:
        client.session("a").begin([0, 1], "p50")

        def read(path: str) -> str:
            with urllib.request.urlopen(server.url + path) as response:
                return response.read().decode()

        assert read("/healthz") == "ok\n"
        assert "saformer_answers_total 1.0" in read("/metrics")
        assert "saformer_sessions 1.0" in read("/metrics")
        schema = json.loads(read("/openapi.json"))
        request = schema["components"]["schemas"]["Request"]["properties"]
        assert "moves the limit" in request["limit"]["description"]
        assert set(schema["paths"]) >= {"/v1/act", "/v1/sessions/{name}", "/healthz"}
        assert "moves the limit" in read("/docs")
        assert "<script" not in read("/docs")
    (line,) = (accounts / "audit.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert entry["who"] == "local@127.0.0.1"
    assert {"time", "state_digest", "why", "forecast", "action", "limit", "spent"} <= set(entry)


def test_the_client_needs_numpy_alone():
    """Seen to fail when it imports anything of ours."""
    code = (
        "import sys\n"
        "for name in 'torch pydantic msgpack websockets starlette rich tyro scipy'.split():\n"
        "    sys.modules[name] = None\n"
        "import saformer.client\n"
        "assert not [name for name in sys.modules if name.startswith('saformer.') and name != 'saformer.client']\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_tls_by_files(deployed, accounts, tmp_path):
    """Seen to fail when the certificate is not handed on."""
    import shutil
    import ssl

    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    names = [
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run([*make.split(), *names], check=True, capture_output=True)
    with serving(deployed, accounts, certificate=certificate, key=key) as server:
        assert server.url.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(certificate))
        with PolicyClient(server.url, tls=trusting) as client:
            assert client.session("a").begin([0, 1], 3.0).action.shape == (1,)
        with (
            pytest.raises(OSError, match="certificate verify failed"),
            PolicyClient(server.url, patience=0) as client,
        ):
            client.policy()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_no_account_is_lost_or_booked_twice_by_kills(project):
    """A share of the campaign `serving`, of the command itself: two kills under load, then SIGTERM,
    after which it ends with 0. Seen to fail when accounts are written after the answers have left,
    when a limit is rounded to float32, and when uvicorn raises the signal again."""
    words = ["-m", "scripts.attack", "serving", "--tries", "1", "--seed", "1"]
    ended = subprocess.run(
        [sys.executable, *words], cwd=project, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
def test_no_frame_of_ten_thousand_does_harm(project):
    """And fifty kills under load."""
    words = ["-m", "scripts.attack", "frames", "serving"]
    ended = subprocess.run(
        [sys.executable, *words], cwd=project, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
