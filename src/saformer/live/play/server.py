"""The page's server: static files, one websocket, and the recording of what was played.

It listens to this machine alone unless told otherwise. A websocket is taken only from a page of
this server (its Origin), so that no other site in the same browser can drive a lane.
"""

import asyncio
import errno
import hmac
import json
import secrets
import socket
import webbrowser
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

from saformer.data.folder import MANIFEST
from saformer.live.play.messages import LARGEST_MESSAGE, read_request
from saformer.live.play.pages import STATIC, finite, live_page, read_recording, recorded_page
from saformer.live.play.settings import LOOPBACK, PlaySettings
from saformer.live.play.stage import Event, Stage
from saformer.runs.pretrained import check_is_there, folder_of

MOST_VIEWERS = 8
MOST_UNSENT = 120  # events: a page that is slower than that misses frames
MOST_REQUESTS = 200  # of one page in a second
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Viewers:
    """The pages that look on: each has a queue of its own, so that none holds up another."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[str]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._queues)

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[asyncio.Queue[str]]:
        unsent: asyncio.Queue[str] = asyncio.Queue(MOST_UNSENT)
        self._queues.add(unsent)
        try:
            yield unsent
        finally:
            self._queues.discard(unsent)

    def publish(self, event: Event, only: "asyncio.Queue[str] | None" = None) -> None:
        """To all pages, or to one; from any thread."""
        if self._loop is None or self._loop.is_closed():
            return
        text = json.dumps(finite(event), allow_nan=False, separators=(",", ":"))
        with suppress(RuntimeError):  # the loop has ended since
            self._loop.call_soon_threadsafe(self._hand_out, text, only)

    def _hand_out(self, text: str, only: "asyncio.Queue[str] | None") -> None:
        for unsent in self._queues if only is None else {only} & self._queues:
            if unsent.full():
                unsent.get_nowait()  # the oldest: every frame says all that it is about
            unsent.put_nowait(text)


class PlayServer:
    """The application, for one stage."""

    def __init__(self, runs: Sequence[str], settings: PlaySettings) -> None:
        self.settings, self.viewers = settings, Viewers()
        self.stage = Stage(tuple(runs), settings, self.viewers.publish)
        self.token = "" if settings.is_local else secrets.token_urlsafe(24)
        self.port = settings.port
        routes = [
            Route("/", self._page),
            Route("/recording.html", self._recording),
            WebSocketRoute("/ws", self._talk),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        self.app = Starlette(routes=routes, lifespan=self._lifespan)

    @property
    def address(self) -> str:
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"http://{host}:{self.port}/{f'?token={self.token}' if self.token else ''}"

    def listen(self) -> socket.socket:
        """On the port that was named, or where that is taken, on any that is free."""
        own = socket.socket(socket.AF_INET6 if ":" in self.settings.host else socket.AF_INET)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            own.bind((self.settings.host, self.port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            own.bind((self.settings.host, 0))
        own.listen(100)  # who calls before the server is up waits
        self.port = own.getsockname()[1]
        return own

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.viewers.begin()
        self.stage.open()
        try:
            yield
        finally:
            await asyncio.to_thread(self.stage.close)

    async def _page(self, request: Request) -> Response:
        if not self._is_welcome(request):
            return PlainTextResponse("not from here", status_code=403)
        return HTMLResponse(live_page(), headers=HEADERS)

    async def _recording(self, request: Request) -> Response:
        if not self._is_welcome(request):
            return PlainTextResponse("not from here", status_code=403)
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[Event | None] = loop.create_future()

        def take() -> None:
            loop.call_soon_threadsafe(ready.set_result, self.stage.recording())

        if not self.stage.submit(take):
            return PlainTextResponse("too busy: try again", status_code=503)
        recording = await ready
        if recording is None:
            return PlainTextResponse("nothing was played yet", status_code=404)
        page = await asyncio.to_thread(recorded_page, finite(recording))
        attached = {"Content-Disposition": 'attachment; filename="saformer-episode.html"'}
        return HTMLResponse(page, headers={**HEADERS, **attached})

    async def _talk(self, page: WebSocket) -> None:
        if not self._is_welcome(page) or not self._is_own_page(page):
            await page.close(1008)
            return
        if len(self.viewers) >= MOST_VIEWERS:
            await page.close(1013)
            return
        await page.accept()
        async with self.viewers.joined() as unsent:
            sending = asyncio.create_task(_send_all(page, unsent))
            tell = partial(self.viewers.publish, only=unsent)
            self.stage.submit(partial(self.stage.greet, tell))
            try:
                await self._listen(page, tell)
            except (WebSocketDisconnect, RuntimeError):
                pass
            finally:
                sending.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await sending

    async def _listen(self, page: WebSocket, tell: Callable[[Event], None]) -> None:
        loop = asyncio.get_running_loop()
        second, count = loop.time(), 0
        while True:
            text = await page.receive_text()
            if loop.time() - second > 1:
                second, count = loop.time(), 0
            count += 1
            if count > MOST_REQUESTS:
                await page.close(1008)
                return
            try:
                request = read_request(text)
            except ValueError as error:
                tell({"type": "error", "text": str(error), "final": False})
                continue
            if not self.stage.submit(partial(request.apply, self.stage)):
                tell({"type": "error", "text": "too much at once", "final": False})

    def _is_welcome(self, connection: HTTPConnection) -> bool:
        """Called by the name of this server, which another site's name that leads here is not, and
        with the token where there is one."""
        given = connection.query_params.get("token", "")
        if self.token and not hmac.compare_digest(given.encode(), self.token.encode()):
            return False
        name = urlsplit(f"//{connection.headers.get('host', '')}").hostname
        return not self.settings.is_local or name in LOOPBACK

    def _is_own_page(self, connection: HTTPConnection) -> bool:
        origin = connection.headers.get("origin", "")
        return origin == f"http://{connection.headers.get('host', '')}"


async def _send_all(page: WebSocket, unsent: "asyncio.Queue[str]") -> None:
    while True:
        await page.send_text(await unsent.get())


def play(runs: Sequence[str], settings: PlaySettings, say: Callable[[str], None] = print) -> None:
    """Serve the page until Ctrl-C; a recorded episode is opened in a browser instead."""
    if len(runs) == 1 and Path(runs[0]).is_file():
        read_recording(Path(runs[0]))
        say(f"opening {runs[0]}, which plays by itself")
        webbrowser.open(Path(runs[0]).resolve().as_uri())
        return
    check_runs(runs)
    server = PlayServer(runs, settings)
    own = server.listen()
    say(f"playing {runs[0]} on {server.address} (Ctrl-C ends it)")
    if settings.browser:
        webbrowser.open(server.address)
    serving = uvicorn.Server(uvicorn.Config(server.app, **uvicorn_settings()))
    server.stage.when_it_fails = partial(setattr, serving, "should_exit", True)
    try:
        serving.run(sockets=[own])
    except KeyboardInterrupt:
        return  # how playing ends
    if server.stage.failure is not None:
        raise ValueError(server.stage.failure)


def uvicorn_settings() -> dict[str, Any]:
    """Bounds on what is received, and on how long the end may take."""
    how: dict[str, Any] = {"ws_max_size": LARGEST_MESSAGE, "ws": "websockets-sansio"}
    return {**how, "log_level": "warning", "timeout_graceful_shutdown": 2}


def check_runs(runs: Sequence[str]) -> None:
    """Refuse what is no run, before a page is opened for it."""
    if not runs:
        raise ValueError("name what to play: saformer play pretrained:halfcheetah-effort")
    for run in runs:
        check_is_there(run)
        folder = folder_of(run)
        if not any((folder / name).exists() for name in ("run.json", MANIFEST)):
            raise ValueError(f"{run} is no run, export or store: it has no run.json")
