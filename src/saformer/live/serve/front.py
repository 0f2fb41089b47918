"""What clients meet: a websocket of msgpack frames, and HTTP with JSON beside it."""

import asyncio
import logging
import secrets
import time
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from saformer.live.serve.access import Gate
from saformer.live.serve.batches import Batches
from saformer.live.serve.decider import Decider, Order
from saformer.live.serve.described import docs_page, openapi
from saformer.live.serve.frames import packed, unpacked
from saformer.live.serve.gauges import Gauges
from saformer.live.serve.messages import RefusedError, Terms, parsed
from saformer.live.serve.settings import ServeSettings

LOG = logging.getLogger("saformer.serve")
OPENPI_PATHS = ("/", "/v1/act", "/v1/realtime/robot/openpi")
TOO_LATE = 1008  # the code that a silent websocket is closed with


class Front:
    """The routes. Every refusal is one line: a text frame, or {"error": ...} with its status."""

    def __init__(
        self,
        decider: Decider,
        terms: Terms,
        described: dict[str, Any],
        settings: ServeSettings,
    ) -> None:
        """`described`: what clients are told of the policy, before they ask anything."""
        self._decider, self._terms, self._settings = decider, terms, settings
        self._described, self._gate, self._gauges = described, Gate(settings), Gauges()
        self._batches: Batches | None = None
        self._at_work, self._num_sockets, self._is_stopping = 0, 0, False
        routes = [
            Route("/v1/act", self.act, methods=["POST"]),
            Route("/v1/sessions/{name}", self.session),
            Route("/v1/policy", self.policy),
            Route("/healthz", self.health),
            Route("/metrics", self.metrics),
            Route("/openapi.json", self.schema),
            Route("/docs", self.docs),
            Route("/", self.home),
            *(WebSocketRoute(path, self.talk) for path in OPENPI_PATHS),
        ]
        handlers: dict[Any, Any] = {RefusedError: self._refuse, Exception: self._fail}
        self.app = Starlette(routes=routes, exception_handlers=handlers)

    async def drain(self) -> None:
        """Answer what is being asked, and nothing more."""
        self._is_stopping = True
        end = time.monotonic() + self._settings.patience
        while self._at_work and time.monotonic() < end:
            await asyncio.sleep(0.01)
        if self._batches is not None:
            await self._batches.close()
        else:
            self._decider.close()

    async def act(self, request: Request) -> Response:
        """Decide one step."""
        owner = self._admit(request)
        body = await self._body(request)
        return JSONResponse(await self._answer(request, owner, body))

    async def session(self, request: Request) -> Response:
        """Where a session stands."""
        owner = self._admit(request)
        self._check_open()
        name = request.path_params["name"][:80]
        return JSONResponse(await self._work().account(name, owner))

    async def policy(self, request: Request) -> Response:
        """What is served."""
        self._admit(request)
        return JSONResponse(self._described)

    async def health(self, request: Request) -> Response:
        """200 while requests are answered, 503 once the server stops."""
        self._check_open()
        return PlainTextResponse("ok\n")

    async def metrics(self, request: Request) -> Response:
        """Counts and times, for Prometheus."""
        self._admit(request)
        self._gauges.sessions.set(self._decider.num_sessions)
        self._gauges.sockets.set(self._num_sockets)
        return Response(self._gauges.text(), media_type="text/plain; version=0.0.4")

    async def schema(self, request: Request) -> Response:
        """OpenAPI."""
        self._admit(request)
        return JSONResponse(openapi(self._described))

    async def docs(self, request: Request) -> Response:
        """The same for people."""
        self._admit(request)
        return HTMLResponse(docs_page(self._described))

    async def home(self, request: Request) -> Response:
        return RedirectResponse("/docs")

    async def talk(self, socket: WebSocket) -> None:
        """openpi's way: first what is served, then an answer to each frame, in turn."""
        try:
            owner = self._admit(socket)
            self._check_open()
            self._check_room()
        except RefusedError as refusal:
            self._gauges.refusals.labels(refusal.reason).inc()
            await socket.send_denial_response(_error(refusal))
            return
        self._num_sockets += 1
        try:
            await socket.accept()
            await self._converse(socket, owner)
        except (WebSocketDisconnect, TimeoutError, RuntimeError):
            pass  # it went away, or is too slow; its session can be taken up again
        finally:
            self._num_sockets -= 1

    async def _converse(self, socket: WebSocket, owner: str) -> None:
        own_session = f"connection-{secrets.token_hex(8)}"
        patience = self._settings.patience
        await asyncio.wait_for(socket.send_bytes(packed(self._described)), patience)
        while True:
            try:
                message = await asyncio.wait_for(socket.receive(), self._settings.silence)
            except TimeoutError:
                await asyncio.wait_for(socket.close(TOO_LATE, "silent for too long"), patience)
                return
            if message["type"] == "websocket.disconnect":
                return
            self._at_work += 1
            try:
                reply = await self._reply(socket, owner, message.get("bytes"), own_session)
                send = socket.send_text if isinstance(reply, str) else socket.send_bytes
                await asyncio.wait_for(send(reply), patience)  # type: ignore[arg-type]
            finally:
                self._at_work -= 1

    async def _reply(
        self, socket: WebSocket, owner: str, frame: bytes | None, own_session: str
    ) -> bytes | str:
        """A frame, or the line of a refusal."""
        try:
            self._gate.count(_address(socket))
            if frame is None:
                raise RefusedError("this was a text frame: send msgpack, in binary frames")
            content = unpacked(frame)
            if isinstance(content, dict):
                content.setdefault("session", own_session)
            answer = await self._answer(socket, owner, content)
            if "action" in answer:
                answer["actions"] = [answer["action"]]  # a chunk of one, as openpi has them
            return packed(answer)
        except RefusedError as refusal:
            self._gauges.refusals.labels(refusal.reason).inc()
            return str(refusal)
        except Exception:
            LOG.exception("a frame could not be answered")
            return _FAILED

    async def _answer(self, connection: HTTPConnection, owner: str, content: Any) -> dict[str, Any]:
        self._check_open()
        began = time.perf_counter()
        request = parsed(content, self._terms)
        if request.step is None and connection.scope["type"] == "http":
            raise RefusedError("step is missing: 0 begins an episode, then 1, 2, ...")
        order = Order(request, owner, f"{owner}@{_address(connection)}")
        answer = dict(await self._work().answer(order, self._settings.patience))
        self._gauges.answers.inc()
        if answer.pop("repeated", False):
            self._gauges.repeats.inc()
        self._gauges.seconds.observe(time.perf_counter() - began)
        return answer

    async def _body(self, request: Request) -> bytes:
        """All of it, if it is neither too long nor too slow."""
        most, chunks, size = self._settings.frame_bytes, [], 0
        try:
            async with asyncio.timeout(self._settings.patience):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > most:
                        raise RefusedError(
                            f"more than {most} bytes were sent (--frame-bytes)", "size"
                        )
                    chunks.append(chunk)
        except (TimeoutError, ClientDisconnect):
            message = f"the request was not whole within {self._settings.patience:g} seconds"
            raise RefusedError(message, "time") from None
        return b"".join(chunks)

    def _admit(self, connection: HTTPConnection) -> str:
        """Whose request it is; counts it."""
        if connection.scope["type"] == "http":
            self._gate.count(_address(connection))
        return self._gate.owner(connection)

    def _check_open(self) -> None:
        if self._is_stopping:
            message = "the server is stopping: send it again when it is back, the account is kept"
            raise RefusedError(message, "stopping")

    def _check_room(self) -> None:
        most = self._settings.connections
        if self._num_sockets >= most:
            raise RefusedError(f"{most} websockets are open, the most there may be", "busy")

    def _work(self) -> Batches:
        """Made with the first request, when there is an event loop."""
        if self._batches is None:
            sizes = self._gauges.sizes
            self._batches = Batches(self._decider, self._settings.together, sizes.observe)
        return self._batches

    async def _refuse(self, request: Request, refusal: Exception) -> Response:
        assert isinstance(refusal, RefusedError)
        self._gauges.refusals.labels(refusal.reason).inc()
        return _error(refusal)

    async def _fail(self, request: Request, error: Exception) -> Response:
        return JSONResponse({"error": _FAILED}, status_code=500)


_FAILED = "the server failed at this request, as its log says: nothing was booked for it"


def _error(refusal: RefusedError) -> Response:
    return JSONResponse({"error": str(refusal)}, status_code=refusal.status)


def _address(connection: HTTPConnection) -> str:
    return connection.client.host if connection.client else "unknown"
