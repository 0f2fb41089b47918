"""What /metrics shows, for Prometheus."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from saformer.live.serve.messages import STATUS

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 5.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Gauges:
    """Counts since the server began."""

    def __init__(self) -> None:
        disable_created_metrics()
        own = self._registry = CollectorRegistry()
        ProcessCollector(registry=own)
        self.answers = Counter("saformer_answers", "Requests answered", registry=own)
        self.repeats = Counter("saformer_repeats", "Answers given again", registry=own)
        self.refusals = Counter("saformer_refusals", "Requests refused", ["reason"], registry=own)
        for reason in STATUS:
            self.refusals.labels(reason)
        self.sessions = Gauge("saformer_sessions", "Sessions that have a lane", registry=own)
        self.sockets = Gauge("saformer_websockets", "Open websockets", registry=own)
        seconds = "From a whole request to its answer"
        self.seconds = Histogram("saformer_answer_seconds", seconds, buckets=SECONDS, registry=own)
        sizes = "Sessions that were decided together"
        self.sizes = Histogram("saformer_batch_sessions", sizes, buckets=SIZES, registry=own)

    def text(self) -> bytes:
        return generate_latest(self._registry)
