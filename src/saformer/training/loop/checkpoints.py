"""A checkpoint's optimisers and random states, for runs that go on, in any pack, on any ranks."""

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
    slots = {str(order): slot for order, slot, _ in _slots(learner, phase, index)}
    for name, tensor in tensors.items():
        order, key = name.split(".", 1)
        parameter = slots[order].parameter
        state, value = optimizer.state[parameter], tensor.to(parameter.device)
        if key not in state:
            state[key] = torch.zeros_like(value if key == STEP else parameter, requires_grad=False)
        if key == STEP:
            state[key].copy_(value)
        else:
            slots[order].write(state[key], value)


def _slots(learner: Learner, phase: str, index: int) -> Iterator[tuple[int, Slot, torch.Size]]:
    """Where a member's parameters are kept, in the order of its phase."""
    agent = learner.agents[index]
    names = {id(parameter): name for name, parameter in agent.model.named_parameters()}
    parameters = next(p for p in agent.phases if p.name == phase).parameters
    for order, parameter in enumerate(parameters):
        yield order, learner.slot(index, names[id(parameter)]), parameter.shape


def noise_states(device: torch.device, ranks: Ranks) -> dict[str, Tensor]:
    """Every rank's random states, of dropout and the like; all ranks must call this.

    The first rank's have the names of a training alone.
    """
    own = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        own["cuda"] = torch.cuda.get_rng_state(device)
    each = {name: ranks.gathered(state) for name, state in own.items()}
    pairs = [(name, rank, state) for name in each for rank, state in enumerate(each[name])]
    return {f"{name}.{rank}" if rank else name: state for name, rank, state in pairs}


def restore_noise(states: dict[str, Tensor], device: torch.device, ranks: Ranks) -> None:
    """A rank that was not there when they were saved has a stream of its own already."""
    suffix = f".{ranks.rank}" if ranks.rank else ""
    host, gpu = states.get(f"torch{suffix}"), states.get(f"cuda{suffix}")
    if host is not None:
        torch.set_rng_state(host)
    if device.type == "cuda" and gpu is not None:
        torch.cuda.set_rng_state(gpu, device)
