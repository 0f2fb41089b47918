"""One update of every phase, of one model or of a pack."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from saformer.agents.agent import Phase
from saformer.engine.distributed import Ranks
from saformer.runs.metrics import GRADIENT_NORM, WATCHED
from saformer.training.loop.losses import losses_of, summed, weighed
from saformer.training.loop.metrics import RunningMetrics
from saformer.training.loop.optimizers import Optimizer
from saformer.training.packs.learner import Batches, Learner


class Update:
    """Losses, gradients, clipping, steps and metrics of every phase, one update a call.

    From the first loss or gradient that is not finite on, no update changes anything. On a GPU
    phases run beside each other, and the host waits for nothing. Several ranks each have a share of
    the batch, and compute the losses and gradients of all of it.
    """

    def __init__(
        self,
        learner: Learner,
        optimizers: Mapping[str, Optimizer],
        batches: Batches,
        device: torch.device,
        ranks: Ranks | None = None,
    ) -> None:
        self.phases, self.optimizers, self.batches = learner.phases, optimizers, batches
        self.metrics, self._ranks = RunningMetrics(device), ranks or Ranks()
        count, counted = learner.num_models, self._ranks.are_several
        self.losses = {p.name: losses_of(p, count, counted=counted) for p in self.phases}
        self._averages: dict[float, tuple[list[Tensor], list[Tensor]]] = {}  # by rate
        for part in learner.averages:
            own, followed = self._averages.setdefault(part.rate, ([], []))
            own += part.average
            followed += part.followed
        self._rates: dict[str, float] = {}
        self._on_gpu = device.type == "cuda"
        others = self.phases[1:] if self._on_gpu else ()
        self._streams = [torch.cuda.Stream(device) for _ in others]
        for optimizer in optimizers.values() if self._on_gpu else ():
            optimizer.found_inf = self.metrics.non_finite

    def set_learning_rate(self, scheduled: float) -> None:
        """For the updates to come; phases with a rate of their own keep it."""
        for phase in self.phases:
            rate = phase.learning_rate or scheduled
            if self._rates.get(phase.name) == rate:
                continue
            self._rates[phase.name] = rate
            for group in self.optimizers[phase.name].param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate

    def __call__(self, *drawn: Tensor) -> None:
        """One update, with the samples that were drawn, if any were."""
        batch = self.batches.gather(*(drawn or self.batches.draw()))
        kind, columns = type(batch), dict(vars(batch))
        metrics: dict[str, Tensor] = {}
        for phase, stream in self._side_by_side():
            with stream:
                losses, watched, counts = self.losses[phase.name](kind, columns)
                means = losses | watched
                if self._ranks.are_several:
                    means = weighed(means, counts, self._ranks)
                loss = torch.stack([means[name] for name in losses]).sum()
                gradients = torch.autograd.grad(loss, phase.parameters)
                if self._ranks.are_several:
                    means, gradients = summed(means, gradients, self._ranks)
                norm = self.optimizers[phase.name].take(gradients)
                for name, value in means.items():
                    label = WATCHED + name if name in watched else name
                    metrics[f"{phase.name}/{label}"] = value.detach()
                metrics[f"{phase.name}/{GRADIENT_NORM}"] = norm.detach()
        self.metrics.add(metrics)
        if self._on_gpu or not self.metrics.non_finite:
            self._step()

    def _step(self) -> None:
        """Move the parameters, and what follows them."""
        for phase, stream in self._side_by_side():
            with stream:
                self.optimizers[phase.name].step()
        is_good = 1 - self.metrics.non_finite if self._on_gpu else 1
        for rate, averages in self._averages.items():
            _follow(*averages, rate * is_good)

    def _side_by_side(self) -> Iterator[tuple[Phase, AbstractContextManager[Any]]]:
        """Phases and where to run them: on a GPU all begin together, on streams of their own."""
        for stream in self._streams:  # before anything of the first phase is queued
            stream.wait_stream(torch.cuda.current_stream())
        yield self.phases[0], nullcontext()
        for index, phase in enumerate(self.phases[1:]):
            yield phase, torch.cuda.stream(self._streams[index]) if self._on_gpu else nullcontext()
        for stream in self._streams:
            torch.cuda.current_stream().wait_stream(stream)


@torch.no_grad()
def _follow(average: list[Tensor], followed: list[Tensor], rate: float | Tensor) -> None:
    if isinstance(rate, Tensor):  # which has no such function, on a GPU
        gaps = torch._foreach_sub(followed, average)
        torch._foreach_mul_(gaps, rate)
        torch._foreach_add_(average, gaps)
    else:
        torch._foreach_lerp_(average, followed, rate)
