"""What commands say while they work."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console

from saformer.api.listener import Listener
from saformer.report.bars import Bars, losses_line
from saformer.training.loop.trainer import Metrics


@contextmanager
def listening(console: Console, *, tensorboard: bool = False) -> Iterator[Listener]:
    """A listener that draws bars and, if wanted, writes metrics for TensorBoard."""
    with Bars(console) as bars:

        def training(update: int, total: int, metrics: Metrics) -> None:
            bars.advance("training", update, total, losses_line(metrics))

        listener = Listener(
            say=bars.say,
            building=partial(bars.advance, "data"),
            surveying=partial(bars.advance, "survey"),
            training=training,
            finishing=partial(bars.advance, "outlook"),
            evaluating=partial(bars.advance, "evaluation"),
        )
        yield listener.with_tensorboard() if tensorboard else listener
