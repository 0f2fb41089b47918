"""A client of `saformer serve` that needs NumPy and the standard library alone.

    from saformer.client import PolicyClient

    with PolicyClient("http://127.0.0.1:8000") as client:
        session = client.session("press-7")
        answer = session.begin(state, limit=300.0)
        while running:
            state, cost = machine.step(answer.action)
            answer = session.step(state, cost)
        session.end(cost)

It speaks HTTP with JSON over one connection that is kept: every number arrives as it was sent, and
nothing but the standard library is needed for it. A request whose answer was lost is sent again: it
carries session and step, so the server answers it from what it has stored and books it once.
"""

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import ArrayLike, NDArray

BUSY = {429, 503, 507}  # the same request may be sent again
SHORTEST_WAIT = 1.0  # seconds for one answer, however impatient
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0  # seconds between tries


class ServerRefusedError(ValueError):
    """What the server said, in one line, and its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """What to execute, why, and the account before it."""

    step: int
    limit: NDArray[np.float64]  # [C]
    spent: NDArray[np.float64]  # [C]
    action: NDArray[np.float32] | None = None  # [A]; None once the episode has ended
    forecast: NDArray[np.float64] | None = None  # [C] of the rest of the episode
    why: Mapping[str, Any] | None = None

    @property
    def remaining(self) -> NDArray[np.float64]:
        return self.limit - self.spent


class PolicyClient:
    """One connection to a server, for one thread; it may drive many sessions."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        token: str | None = None,
        patience: float = 30.0,
        tls: SSLContext | None = None,
    ) -> None:
        """`patience`: seconds to go on trying while the server is busy or away. `tls`: for a
        certificate that this machine does not trust by itself."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"{url!r} is no address: give one such as http://127.0.0.1:8000")
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._patience = patience
        host, how = parts.hostname, {"port": parts.port, "timeout": max(patience, SHORTEST_WAIT)}
        self._connection = (
            http.client.HTTPSConnection(host, **how, context=tls)  # type: ignore[arg-type]
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, **how)  # type: ignore[arg-type]
        )

    def __enter__(self) -> "PolicyClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def policy(self) -> dict[str, Any]:
        """What is served: sizes, constraints, the data's percentiles of cost."""
        return self.ask("GET", "/v1/policy")

    def session(self, name: str) -> "RemoteSession":
        """A session of this name, which is to begin."""
        return RemoteSession(self, name)

    def take_up(self, name: str) -> "RemoteSession":
        """A session that was lost, as it stands on the server: `session.latest` is its answer."""
        content = self.ask("GET", f"/v1/sessions/{quote(name, safe='')}")
        session = RemoteSession(self, name)
        session.latest = None if content.pop("ended") else _answer(content)
        return session

    def ask(self, verb: str, path: str, content: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer's JSON. Tries again for as long as it is patient; then raises what is wrong,
        a `ServerRefusedError` or an `OSError`."""
        body = None if content is None else json.dumps(content, allow_nan=False).encode()
        end, pause = time.monotonic() + self._patience, FIRST_PAUSE
        while True:
            try:
                return self._ask_once(verb, path, body)
            except (OSError, http.client.HTTPException, ServerRefusedError) as error:
                is_final = isinstance(error, ServerRefusedError) and error.status not in BUSY
                if is_final or time.monotonic() + pause > end:
                    raise
                if not isinstance(error, ServerRefusedError):
                    self._connection.close()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _ask_once(self, verb: str, path: str, body: bytes | None) -> dict[str, Any]:
        self._connection.request(verb, path, body, self._headers)
        response = self._connection.getresponse()
        text = response.read()
        try:
            content = json.loads(text)
            assert isinstance(content, dict)
        except (ValueError, AssertionError):
            content = {"error": text[:200].decode(errors="replace")}
        if response.status != http.client.OK:
            raise ServerRefusedError(content.get("error", response.reason), response.status)
        return content


class RemoteSession:
    """One episode after another, under one name: `begin`, `step` as long as it goes on, `end`."""

    def __init__(self, client: PolicyClient, name: str) -> None:
        self._client, self.name = client, name
        self.latest: Answer | None = None

    def begin(self, state: ArrayLike, limit: ArrayLike | str) -> Answer:
        """Begin an episode under a limit: a cost for each constraint, or a name such as "p50"."""
        return self._ask(0, state=_numbers(state), limit=_limit(limit))

    def step(
        self,
        state: ArrayLike,
        cost: ArrayLike,
        *,
        reward: float | None = None,
        limit: ArrayLike | str | None = None,
        action: ArrayLike | None = None,
    ) -> Answer:
        """Say what the last action cost and where it led. `reward` is for policies with a target
        return, `limit` moves the limit, `action` was executed in place of the chosen one."""
        told = {"state": _numbers(state), "cost": _numbers(cost), "reward": reward}
        told |= {"limit": _limit(limit), "action": None if action is None else _numbers(action)}
        return self._ask(self._next, **told)

    def end(self, cost: ArrayLike) -> Answer:
        """Book what the last action cost; returns the final account."""
        ended = self._ask(self._next, cost=_numbers(cost), end=True)
        self.latest = None
        return ended

    @property
    def _next(self) -> int:
        if self.latest is None:
            raise ValueError(f"session {self.name!r} has no episode: call begin(state, limit)")
        return self.latest.step + 1

    def _ask(self, step: int, **told: Any) -> Answer:
        known = {name: value for name, value in told.items() if value is not None}
        content = {"session": self.name, "step": step, **known}
        self.latest = _answer(self._client.ask("POST", "/v1/act", content))
        return self.latest


def _numbers(values: ArrayLike) -> Any:
    """As JSON has them: doubles, which hold float32 exactly."""
    return np.asarray(values, dtype=np.float64).tolist()


def _limit(limit: ArrayLike | str | None) -> Any:
    return limit if limit is None or isinstance(limit, str) else _numbers(limit)


def _answer(content: dict[str, Any]) -> Answer:
    action, forecast = content.get("action"), content.get("forecast")
    return Answer(
        content["step"],
        np.array(content["limit"]),
        np.array(content["spent"]),
        None if action is None else np.array(action, dtype=np.float32),
        None if forecast is None else np.array(forecast),
        content.get("why"),
    )
