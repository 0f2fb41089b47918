"""Frames and bodies that are nearly right, sent to a server: each is answered or refused in a line,
and the server goes on."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgpack
import numpy as np
import websockets.sync.client

from saformer.client import PolicyClient
from scripts.attack.campaign import Campaign
from scripts.attack.serving import server_process

FRAMES = 100
MOST_CHARACTERS = 400
TELLTALE = ("Traceback", 'File "', "Error:", "pydantic", "object at 0x")
ODD: tuple[Any, ...] = (
    *(None, True, -1, 2**63, 2**64 - 1, 1e308, float("nan"), float("inf"), "", "p50", "p1e9"),
    *("x" * 5000, [], {}, [[]], [None], [1, [2]], {"a": 1}, {b"__ndarray__": True}, [0.0] * 4000),
    *({b"__npgeneric__": True, b"data": "x", b"dtype": "<f4"}, "\ud7ff", -0.0, b"\x00"),
)  # fmt: skip
ENTRIES = ("session", "step", "state", "limit", "cost", "reward", "action", "end", "prompt", "")


def attack(url: str, seed: int, count: int = FRAMES) -> str | None:
    """Send so many; says what went wrong."""
    generator = np.random.default_rng(seed)
    port = urlsplit(url).port
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        for number in range(count):
            entries = _request(generator, f"{seed}-{number}")
            if generator.random() < 0.3:
                problem = _post(connection, _mutated(generator, _as_json(entries)))
            else:
                problem = _send(url, _mutated(generator, msgpack.packb(entries)))
            if problem is not None:
                return f"frame {number}: {problem}"
    with PolicyClient(url, patience=10) as client:
        client.session(f"after-{seed}").begin([0.0, 1.0], 3.0)
    return None


def _request(generator: np.random.Generator, name: str) -> dict[Any, Any]:
    """A right one with entries that were exchanged, left out or added."""
    array = {b"__ndarray__": True, b"data": bytes(16), b"dtype": "<f8", b"shape": [2]}
    entries: dict[Any, Any] = {"session": name, "step": 0, "state": [0.0, 1.0], "limit": 3.0}
    if generator.random() < 0.3:
        entries["state"] = array
        if generator.random() < 0.5:
            array[_one(generator, list(array))] = _one(generator, ODD)
    for _ in range(generator.integers(0, 3)):
        entries[_one(generator, ENTRIES)] = _one(generator, ODD)
    if generator.random() < 0.2:
        entries.pop(_one(generator, list(entries)))
    return entries


def _mutated(generator: np.random.Generator, frame: bytes) -> bytes:
    """With bits turned, bytes cut, repeated or put in; half of them as they are."""
    kind = generator.integers(0, 8)
    place = int(generator.integers(0, len(frame) + 1))
    if kind == 0:
        return frame[:place]
    if kind == 1:
        return frame[:place] + generator.bytes(int(generator.integers(1, 9))) + frame[place:]
    if kind == 2 and frame:
        changed = bytearray(frame)
        changed[place % len(frame)] ^= 1 << int(generator.integers(0, 8))
        return bytes(changed)
    if kind == 3:
        return (b"\x91" * 3000 if place % 2 else b"[" * 3000) + frame
    return frame


def _as_json(entries: dict[Any, Any]) -> bytes:
    """NaN stays NaN, which is no JSON."""
    names = {name if isinstance(name, str) else "bytes": value for name, value in entries.items()}
    return json.dumps(names, default=str, skipkeys=True).encode()


def _send(url: str, frame: bytes) -> str | None:
    client = _connected(url)
    try:
        client.send(frame)
        reply = client.recv(timeout=30)
    except websockets.ConnectionClosed as error:
        _connected.cache_clear()
        return f"the connection was closed: {error}"
    if isinstance(reply, bytes):
        return None if "action" in msgpack.unpackb(reply) else "an answer without an action"
    return _judged(reply)


@cache
def _connected(url: str) -> Any:
    connect = websockets.sync.client.connect(url.replace("http", "ws"), compression=None)
    client = connect.__enter__()  # for as long as this process
    client.recv()
    return client


def _post(connection: http.client.HTTPConnection, body: bytes) -> str | None:
    connection.request("POST", "/v1/act", body)
    response = connection.getresponse()
    text = response.read().decode()
    if response.status == http.client.OK:
        return None if "action" in json.loads(text) else "an answer without an action"
    return _judged(json.loads(text)["error"])


def _judged(line: str) -> str | None:
    """What is wrong with a refusal."""
    if "\n" in line or len(line) > MOST_CHARACTERS:
        return f"not a line: {line[:200]!r}"
    told = [word for word in TELLTALE if word in line]
    return f"{told[0]!r} in {line!r}" if told or "failed at" in line else None


def _one(generator: np.random.Generator, values: Any) -> Any:
    return values[int(generator.integers(len(values)))]


@cache
def _server() -> Any:
    return server_process("frames", "--request-rate", "1e6", "--idle", "0.001")


def attempt(seed: int) -> str | None:
    """So many frames to a server of its own process, which must say nothing of a failure."""
    served = _server()
    problem = attack(served.url, seed)
    said = Path(served.output).read_text(errors="replace")
    return problem or ("the server logged a failure" if "Traceback" in said else None)


CAMPAIGN = Campaign("frames", 100, attempt, per_try=FRAMES)
