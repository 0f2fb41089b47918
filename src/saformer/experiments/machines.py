"""Where the runs of experiments are made: on this machine, or on a Ray cluster."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from saformer.data.home import home
from saformer.engine.engine import Engine, LocalEngine
from saformer.experiments.conduct import Site, usual_engine


@dataclass(frozen=True)
class Machines:
    """Who makes runs, and where they are kept."""

    engine: Literal["local", "ray"] = "local"
    """Where runs are made. local: this machine; a GPU trains runs of one architecture as one
    program, else each core takes a run. ray: a Ray cluster (needs saformer[ray], on every node)."""
    address: str = "auto"
    """Of the Ray cluster: auto (this machine's), HOST:6379, ray://HOST:10001, local (begin one)."""
    job_cpus: int = 1
    """CPUs of each job on Ray."""
    job_gpus: float | None = None
    """GPUs of each job (runs of one architecture) on Ray; by default one where a node has any."""
    node_runs: Path | None = None
    """A folder that every node of the Ray cluster has of its own: runs are made there and brought
    back. By default nodes share --runs."""
    runs: Path = Path("runs")
    """Folder of runs."""
    processes: int | None = None
    """Runs at once on this machine (not Ray); by default one per core, on a GPU one by one."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""

    @contextmanager
    def opened(self) -> Iterator[tuple[Engine, Site]]:
        """The engine, while this lasts, and where it makes runs."""
        if self.engine == "local":
            count = self.processes
            engine = usual_engine(self.device) if count is None else LocalEngine(count)
            yield engine, Site(self.runs, self.device)
            return
        from saformer.engine.ray import RayEngine

        environment = {"SAFORMER_HOME": str(home().resolve())}
        # jobs are to save, as they do on Ctrl-C
        former = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            jobs: Any = {"cpus": self.job_cpus, "gpus": self.job_gpus, "environment": environment}
            with RayEngine(self.address, **jobs) as ray:
                packed, node_runs = ray.gpus > 0, self.node_runs
                yield ray, Site(self.runs, self.device, packed, elsewhere=True, node_runs=node_runs)
        finally:
            signal.signal(signal.SIGTERM, former)
