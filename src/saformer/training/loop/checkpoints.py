"""What a checkpoint holds besides weights, to go on alone, in another pack or on more ranks: an
optimiser's averages and random states."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from saformer.engine.distributed import Ranks
from saformer.training.loop.optimizers import Optimizer
from saformer.training.packs.learner import Learner, Slot

STEP = "step"
"""The one entry of an optimiser's state that counts; all others have their parameter's shape."""


def optimizer_tensors(
    optimizer: Optimizer, learner: Learner, phase: str, index: int
) -> dict[str, Tensor]:
    """The state of one member's parameters."""
    tensors = {}
    for order, slot, shape in _slots(learner, phase, index):
        for key, value in optimizer.state[slot.parameter].items():
            own = value if key == STEP else slot.read(value, shape)
            # fused parameters share their counts, and files hold nothing twice
            tensors[f"{order}.{key}"] = own.clone(memory_format=torch.contiguous_format)
    return tensors


def restore_optimizer(
    optimizer: Optimizer, learner: Learner, phase: str, index: int, tensors: dict[str, Tensor]
) -> None:
    """Put one member's state where the learner keeps it."""
    for order, slot, _ in _slots(learner, phase, index):
        state = optimizer.state[slot.parameter]
        for name in [name for name in tensors if name.startswith(f"{order}.")]:
            value, key = tensors[name].to(slot.parameter.device), name.split(".", 1)[1]
            if key not in state:
                like = value if key == STEP else slot.parameter
                state[key] = torch.zeros_like(like, requires_grad=False)
            if key == STEP:
                state[key].copy_(value)
            else:
                slot.write(state[key], value)


def _slots(learner: Learner, phase: str, index: int) -> Iterator[tuple[int, Slot, torch.Size]]:
    """Where a member's parameters are kept, in the order of its phase."""
    agent = learner.agents[index]
    names = {id(parameter): name for name, parameter in agent.model.named_parameters()}
    parameters = next(p for p in agent.phases if p.name == phase).parameters
    for order, parameter in enumerate(parameters):
        yield order, learner.slot(index, names[id(parameter)]), parameter.shape


def noise_states(device: torch.device, ranks: Ranks) -> dict[str, Tensor]:
    """Every rank's random states, of dropout and the like; all ranks must call this."""
    own = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        own["cuda"] = torch.cuda.get_rng_state(device)
    each = {name: ranks.gathered(state) for name, state in own.items()}
    return {_of_rank(n, rank): state for n in each for rank, state in enumerate(each[n])}


def restore_noise(states: dict[str, Tensor], device: torch.device, ranks: Ranks) -> None:
    """A rank that was not there when they were saved has a stream of its own already."""
    host, gpu = (states.get(_of_rank(name, ranks.rank)) for name in ("torch", "cuda"))
    if host is not None:
        torch.set_rng_state(host)
    if device.type == "cuda" and gpu is not None:
        torch.cuda.set_rng_state(gpu, device)


def _of_rank(name: str, rank: int) -> str:
    """The name of a rank's random state; the first's is that of a training alone."""
    return name if rank == 0 else f"{name}.{rank}"
