"""Who may ask: tokens, origins and rates."""

import hmac
import math
import time
from collections import OrderedDict
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from starlette.requests import HTTPConnection

from saformer.live.serve.messages import RefusedError
from saformer.live.serve.settings import ServeSettings

SHORTEST_TOKEN = 16
MOST_ADDRESSES = 10_000  # whose rates are remembered
SCHEMES = ("bearer", "api-key")  # the second is openpi's
NOBODY = "local"  # the owner where no tokens are asked for


def read_tokens(path: Path) -> dict[str, str]:
    """Token to name, from lines of NAME TOKEN; # begins a comment."""
    tokens: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or len(words[1]) < SHORTEST_TOKEN or not words[1].isascii():
            expected = f"NAME TOKEN, the token of at least {SHORTEST_TOKEN} ASCII characters"
            raise ValueError(f"{path}, line {number}: expected {expected}")
        tokens[words[1]] = words[0]
    if not tokens:
        raise ValueError(f"{path} holds no tokens: write lines of NAME TOKEN into it")
    return tokens


class Gate:
    """Lets requests in, and says whose they are."""

    def __init__(self, settings: ServeSettings) -> None:
        self._tokens = read_tokens(settings.tokens) if settings.tokens else {}
        self._is_local, self._rate = settings.is_local, settings.request_rate
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()  # allowance, since when

    def owner(self, connection: HTTPConnection) -> str:
        """Whose token was shown. Pages of other sites are refused, whatever they show: a browser
        on this machine would carry their requests here."""
        host = connection.headers.get("host", "")
        if self._is_local and _split(f"//{host}").hostname not in _own_names(connection):
            raise RefusedError(f"this server is not {host[:80]!r}: ask for 127.0.0.1", "origin")
        origin = connection.headers.get("origin")
        if origin is not None and _split(origin).netloc != host:
            raise RefusedError(f"pages of {origin[:80]!r} may not ask this server", "origin")
        if not self._tokens:
            return NOBODY
        scheme, _, shown = connection.headers.get("authorization", "").partition(" ")
        token = shown.strip().encode() if scheme.lower() in SCHEMES else b""
        names = [
            n for known, n in self._tokens.items() if hmac.compare_digest(known.encode(), token)
        ]
        if not names:
            raise RefusedError(
                "a token is needed: send the header Authorization: Bearer TOKEN", "token"
            )
        return names[0]

    def count(self, address: str) -> None:
        """One more request from this address; too many within a second are refused."""
        now = time.monotonic()
        allowance, since = self._spent.pop(address, (self._rate, now))
        allowance = min(self._rate, allowance + (now - since) * self._rate)
        self._spent[address] = (max(allowance - 1, 0.0), now)
        if len(self._spent) > MOST_ADDRESSES:
            self._spent.popitem(last=False)
        if allowance < 1:
            wait = math.ceil(1000 * (1 - allowance) / self._rate)
            message = f"more than {self._rate:g} requests a second: wait {wait} ms (--request-rate)"
            raise RefusedError(message, "rate")


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError:  # brackets that are never closed
        return urlsplit("")


def _own_names(connection: HTTPConnection) -> set[str]:
    server = connection.scope.get("server") or ("127.0.0.1", None)
    return {"localhost", "127.0.0.1", "::1", str(server[0])}
