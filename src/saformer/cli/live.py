"""Commands that stay: a policy behind a port."""

from dataclasses import dataclass, field

from rich.console import Console

from saformer.cli.judge import RunCommand
from saformer.cli.progress import listening
from saformer.live.serve.server import ServeSettings, serve


@dataclass(frozen=True, kw_only=True)
class ServeCommand(RunCommand):
    """Answer many clients from one process: websocket with openpi's frames, HTTP with JSON.

    Each session has its own budget, which can be moved; accounts are on disk before an answer
    leaves, so a restart with the same --accounts goes on. `saformer.client` is a client; /docs on
    the server says what it is sent. Other machines need --tokens, and should have TLS.
    """

    settings: ServeSettings = field(default_factory=ServeSettings)
    """Where, for whom and how much."""

    def run(self, console: Console) -> int:
        with listening(console) as listener:
            trained = self.load(listener)
        serve(trained, self.settings, self.changes)
        return 0
