"""Many independent jobs on a Ray cluster."""

import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from saformer.engine.engine import GRACE_SECONDS, Job, JobOutcome, Result, outcome_of

try:
    import ray
    from ray.exceptions import RayError, RayTaskError, TaskCancelledError
except ModuleNotFoundError as error:
    needed = "--engine ray needs Ray, on every node: pip install 'saformer[ray]'"
    raise ValueError(needed) from error


class RayEngine:
    """A Ray cluster: each job needs some CPUs and GPUs, and runs wherever they are free.

    A job whose worker or node is lost, or is cancelled, is tried again elsewhere, at most `retries`
    times. Ctrl-C cancels: jobs that have not begun never do, and those that have may take
    GRACE_SECONDS to save what they have.
    """

    name = "ray"

    def __init__(
        self,
        address: str = "auto",
        *,
        cpus: int = 1,
        gpus: float | None = None,
        retries: int = 3,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`address`: auto (of this machine), HOST:PORT, ray://HOST:PORT, or local (begin one).
        `gpus` of a job: None is one if there are any. `environment`: variables of jobs."""
        least = {"CPUs": (cpus, 1), "GPUs": (gpus or 0, 0), "retries": (retries, 0)}
        for what, (count, bound) in least.items():
            if count < bound:
                raise ValueError(f"a job's {what} must be at least {bound}, got {count}")
        _connect(address, environment)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self.threads: int | None = cpus
        self.retries = retries
        has_gpus = any(node.get("GPU", 0) >= 1 for node in nodes)
        self.gpus = float(has_gpus) if gpus is None else gpus
        self.jobs_at_once = sum(_room(node, cpus, self.gpus) for node in nodes)
        if not self.jobs_at_once:
            ray.shutdown()
            needs = f"{cpus} CPUs and {self.gpus:g} GPUs, which a job needs"
            raise ValueError(f"no node of the Ray cluster has {needs}: ask for less, or add a node")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        ray.shutdown()

    def map(
        self, function: Callable[[Job], Result], jobs: Sequence[Job]
    ) -> Iterator[JobOutcome[Job, Result]]:
        # Ray's own retries do not cover a worker that was cancelled, so that all are made here.
        attempt = ray.remote(num_cpus=self.threads, num_gpus=self.gpus, max_retries=0)(_attempt)
        waiting = {attempt.remote(function, job): (job, self.retries) for job in jobs}
        try:
            while waiting:
                (ready, *_), _ = ray.wait(list(waiting), num_returns=1)
                job, retries = waiting.pop(ready)
                outcome = _outcome(job, ready)
                if isinstance(outcome, JobOutcome):
                    yield outcome
                elif retries:
                    waiting[attempt.remote(function, job)] = (job, retries - 1)
                else:
                    error = f"its worker was lost {self.retries + 1} times, at last: {outcome}"
                    yield JobOutcome(job, error=error)
        except BaseException:  # Ctrl-C, or the caller wants no more: jobs hear Ctrl-C, and save
            for ready in waiting:
                ray.cancel(ready)
            if waiting:
                ray.wait(list(waiting), num_returns=len(waiting), timeout=GRACE_SECONDS)
            raise


def _connect(address: str, environment: Mapping[str, str] | None) -> None:
    runtime = {"env_vars": dict(environment)} if environment else None
    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR", runtime_env=runtime)
    except (ConnectionError, OSError) as error:
        raise ValueError(
            f"there is no Ray cluster at {address!r} ({str(error).splitlines()[0]}): begin one by "
            "`ray start --head`, or say where it is: --address HOST:6379 or ray://HOST:10001"
        ) from None


def _room(node: Mapping[str, float], cpus: int, gpus: float) -> int:
    """How many jobs a node has room for."""
    by_gpus = node.get("GPU", 0) / gpus if gpus else math.inf
    return math.floor(min(node.get("CPU", 0) / cpus, by_gpus))


def _attempt(function: Callable[[Any], Any], job: Any) -> tuple[Any, str | None]:
    """On a worker; its result and error, without the job, which the caller has already."""
    # Ray cancels by SIGINT, which a cluster that a shell started in the background would ignore.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    outcome = outcome_of(job, lambda: function(job))
    return outcome.result, outcome.error


def _outcome(job: Job, ready: Any) -> JobOutcome[Job, Any] | str:
    """A job's outcome, or how it was lost."""
    try:
        return JobOutcome(job, *ray.get(ready))
    except TaskCancelledError:
        return "it was cancelled"
    except RayTaskError as error:  # the function could not be called at all
        return JobOutcome(job, error=f"{type(error.cause).__name__}: {error.cause}")
    except RayError as error:
        reason = str(error).partition("\n")[0] or "for an unknown reason"
        return f"{type(error).__name__}: {reason}"
