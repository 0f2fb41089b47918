"""Between clients, who come when they like, and the decider, which takes all who are there."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from saformer.live.serve.decider import Decider, Order, Outcome
from saformer.live.serve.messages import RefusedError

MOST_WAITING = 16  # batches' worth of requests; more are refused at once
Waiting = tuple[Order, "asyncio.Future[Outcome]"]


class Batches:
    """While one batch is decided, in a thread of its own, the next gathers: nobody waits for others
    to come, and none of the machine's time is lost."""

    def __init__(
        self, decider: Decider, most: int, heard: Callable[[int], None] = lambda size: None
    ) -> None:
        """`heard` is told the size of each batch."""
        self._decider, self._most, self._heard = decider, most, heard
        self._thread = ThreadPoolExecutor(1, "decider")
        self._waiting: deque[Waiting] = deque()
        self._arrived = asyncio.Event()
        self._worker = asyncio.get_running_loop().create_task(self._work())

    async def answer(self, order: Order, patience: float) -> dict[str, Any]:
        """The answer, or a refusal; one that comes too late is stored for a repeated request."""
        if len(self._waiting) >= MOST_WAITING * self._most:
            raise RefusedError("too many requests are waiting: send it again later", "busy")
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((order, future))
        self._arrived.set()
        try:
            outcome = await asyncio.wait_for(future, patience)
        except TimeoutError:
            message = f"no decision within {patience:g} seconds: send the same request again"
            raise RefusedError(message, "busy") from None
        if isinstance(outcome, RefusedError):
            raise outcome
        return outcome

    async def account(self, name: str, owner: str) -> dict[str, Any]:
        """Where a session stands."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._decider.account, name, owner)

    async def close(self) -> None:
        """After all that wait were answered."""
        while self._waiting or self._arrived.is_set():
            await asyncio.sleep(0.01)
        self._worker.cancel()
        self._thread.shutdown()
        self._decider.close()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            batch = self._next()
            orders = [order for order, _ in batch]
            self._heard(len(batch))
            try:
                outcomes = await loop.run_in_executor(self._thread, self._decider.decide, orders)
            except Exception as error:  # ours to mend: each client hears of it, the log says what
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
            else:
                for (_, future), outcome in zip(batch, outcomes, strict=True):
                    if not future.done():
                        future.set_result(outcome)
            if not self._waiting:
                self._arrived.clear()

    def _next(self) -> list[Waiting]:
        """The first of each session's requests, in the order they came in."""
        batch: dict[str, Waiting] = {}
        later: list[Waiting] = []
        while self._waiting and len(batch) < self._most:
            each = self._waiting.popleft()
            name = each[0].request.session
            if name in batch:
                later.append(each)
            else:
                batch[name] = each
        self._waiting.extendleft(reversed(later))
        return list(batch.values())
