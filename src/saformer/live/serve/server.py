"""`saformer serve`: from a trained policy to a process that answers until it is told to stop."""

import asyncio
import logging
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http import h11_impl

from saformer import __version__
from saformer.data.statistics import percentiles
from saformer.files import locked
from saformer.live.serve.accounts import Accounts
from saformer.live.serve.acting import acting_identity, acting_policy
from saformer.live.serve.audit import AuditLog
from saformer.live.serve.decider import Decider
from saformer.live.serve.front import Front
from saformer.live.serve.settings import ServeSettings
from saformer.trained import Trained

PING_EVERY = 20.0  # seconds; a websocket that does not answer within as many is closed
IDLE_HTTP = 30  # seconds that a connection may stay without a request


def serve(
    trained: Trained, settings: ServeSettings, changes: Mapping[str, Any] | None = None
) -> None:
    """Answer requests until SIGTERM or Ctrl-C. `changes` are of the rule's options."""
    with opened(trained, settings, changes or {}) as server:
        server.run([server.listening])


@contextmanager
def opened(
    trained: Trained, settings: ServeSettings, changes: Mapping[str, Any]
) -> Iterator["DrainingServer"]:
    """A server that has its port and its folder, and is to be run."""
    folder = settings.accounts or Path("runs") / f"serve-{trained.path.name}"
    say = trained.listener.say
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock", wait=False) as is_ours, _listen(settings) as listening:
        if not is_ours:
            message = f"{folder} is in use by another server: stop it, or choose another folder"
            raise ValueError(f"{message} with --accounts")
        front = _front(trained, settings, changes, folder)
        server = DrainingServer(_config(front, settings), front, listening)
        say(f"{trained.run.spec.name} at {server.url} (what to send it: {server.url}/docs)")
        say(f"accounts and audit log in {folder}; Ctrl-C answers what is asked, then stops")
        if not settings.is_local and settings.certificate is None:
            say("without TLS, tokens and states can be read on the way: --certificate and --key")
        yield server


def _listen(settings: ServeSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listening = socket.create_server((settings.host, settings.port), family=family, backlog=512)
    except OSError as error:
        where = f"port {settings.port} of {settings.host}"
        raise OSError(f"cannot listen at {where} ({error.strerror}): choose another") from None
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else answers wait for 40 ms
    return listening


def _front(
    trained: Trained, settings: ServeSettings, changes: Mapping[str, Any], folder: Path
) -> Front:
    policy, terms, acting = acting_policy(trained, settings, changes)
    accounts = Accounts(folder / "accounts.sqlite", acting_identity(trained, acting))
    audit = AuditLog(folder / "audit.jsonl", settings.audit_bytes, settings.audit_files)
    decider = Decider(policy, terms, accounts, audit, settings)
    return Front(decider, terms, described(trained, acting), settings)


def described(trained: Trained, acting: Mapping[str, Any]) -> dict[str, Any]:
    """What clients are told: the first frame of a websocket, and /v1/policy."""
    sizes, totals = trained.agent.dimensions, trained.totals
    names = [each.name for each in totals.criteria]
    costs = zip(names, totals.episode_cost.T, strict=True)
    return {
        "policy": trained.run.spec.name,
        "saformer": __version__,
        "agent": trained.run.spec.agent,
        "rule": acting["rule"],
        "shield": acting.get("shield", False),
        "rate": acting.get("rate"),
        "state": sizes.state,
        "action": sizes.action,
        "constraints": names,
        "horizon": sizes.horizon,
        "cost_discount": totals.cost_discount,
        "cost_percentiles": {name: percentiles(values) for name, values in costs},
    }


def _config(front: Front, settings: ServeSettings) -> uvicorn.Config:
    tls: dict[str, Any] = {}
    if settings.certificate is not None:
        for path in (settings.certificate, settings.key):
            if path is None or not path.is_file():
                raise FileNotFoundError(f"there is no file {path}, which TLS was to be made with")
        tls = {"ssl_certfile": settings.certificate, "ssl_keyfile": settings.key}
    return uvicorn.Config(
        front.app,
        http=PatientHTTP,
        ws="websockets-sansio",
        ws_max_size=settings.frame_bytes,
        ws_ping_interval=PING_EVERY,
        ws_ping_timeout=PING_EVERY,
        ws_per_message_deflate=False,  # a small frame may not become a large one
        lifespan="off",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        limit_concurrency=2 * settings.connections,
        timeout_keep_alive=IDLE_HTTP,
        timeout_graceful_shutdown=int(settings.patience),
        **tls,
    )


class DrainingServer(uvicorn.Server):
    """Answers what is being asked before it closes connections, and ends well on a signal."""

    def __init__(self, config: uvicorn.Config, front: Front, listening: socket.socket) -> None:
        super().__init__(config)
        self._front, self.listening = front, listening

    @property
    def url(self) -> str:
        host, port = self.listening.getsockname()[:2]
        scheme = "https" if self.config.is_ssl else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def shutdown(self, sockets: Any = None) -> None:
        await self._front.drain()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


class PatientHTTP(h11_impl.H11Protocol):
    """Closes a connection that does not say in time what it wants: half a header holds nobody up.
    Bodies and frames have time-outs of their own."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """From the first byte of a header until it is whole."""
        if self.conn.their_state is not h11_impl.h11.IDLE:
            self._stop_watching()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.timeout_keep_alive, self._give_up)

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11_impl.h11.IDLE and self.transport.get_protocol() is self:
            self.transport.close()
