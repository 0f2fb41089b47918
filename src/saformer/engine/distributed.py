"""One training on several processes, each with its own processor, which `torchrun` starts."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as processes
from torch import Tensor

from saformer.engine import torchrun

PATIENCE = timedelta(hours=3)  # of ranks with one that makes data or rolls a policy out
SEEDS_APART = 1_000_003


@dataclass(frozen=True)
class Ranks:
    """The processes that train one model together; every rank must make the same calls in order."""

    rank: int = 0
    size: int = 1

    @property
    def are_several(self) -> bool:
        return self.size > 1

    @property
    def is_first(self) -> bool:
        """Whether this one writes, evaluates and speaks."""
        return self.rank == 0

    def seed(self, seed: int) -> int:
        """Each rank's own, for noise; the first's is the seed itself."""
        return seed + SEEDS_APART * self.rank

    def share(self, count: int) -> slice:
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, the same to the last bit on each."""
        if self.are_several:
            tensor = tensor.clone()
            processes.all_reduce(tensor)
        return tensor

    def sum_together(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sums of several tensors, in one message."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        if self.are_several:
            processes.all_reduce(flat)
        sums = zip(flat.split([tensor.numel() for tensor in tensors]), tensors, strict=True)
        return [part.view_as(tensor).to(tensor.dtype) for part, tensor in sums]

    def any(self, flag: bool) -> bool:
        return bool(self.sum(torch.tensor(int(flag)))) if self.are_several else flag

    def as_first(self, flag: bool) -> bool:
        """The first rank's flag."""
        return self.any(flag and self.is_first)

    @torch.no_grad()
    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Give every rank the first one's values, in place."""
        if self.are_several:
            for tensor in tensors:
                processes.broadcast(tensor, src=0)

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's, in order; all of one size."""
        if not self.are_several:
            return [tensor]
        tensors = [torch.empty_like(tensor) for _ in range(self.size)]
        processes.all_gather(tensors, tensor)
        return tensors

    def wait(self) -> None:
        self.any(False)

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """The first rank goes through this before the others, which then see what it made."""
        if not self.is_first:
            self.wait()
        yield
        if self.is_first:
            self.wait()


@contextmanager
def joined_ranks(device: torch.device) -> Iterator[tuple[Ranks, torch.device]]:
    """The ranks that torchrun started, or this process alone, and its device: of GPUs, unless it
    has an index, that of the local rank."""
    if torchrun.size() == 1:
        yield Ranks(), device
        return
    backend = "gloo"
    if device.type == "cuda":
        local = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        device = torch.device("cuda", local) if device.index is None else device
        torch.cuda.set_device(device)
        if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count():
            backend = "cpu:gloo,cuda:nccl"  # NCCL refuses to share a GPU between ranks
    begun_here = not processes.is_initialized()
    if begun_here:
        processes.init_process_group(backend, timeout=PATIENCE)
    try:
        yield Ranks(processes.get_rank(), processes.get_world_size()), device
    finally:
        if begun_here:
            processes.destroy_process_group()
