"""Which runs are trained as one program."""

from collections.abc import Hashable, Sequence

import torch

from saformer.agents.saformer import SaFormerAgent
from saformer.data.sampling import WindowSampler
from saformer.data.transitions import TransitionSampler
from saformer.training.loop.trainer import Member
from saformer.training.packs.pack import but_for_the_limit

LARGEST_PACK = 32
"""More models take no less time each, and more memory."""


def grouped(members: Sequence[Member], device: torch.device) -> list[list[Member]]:
    """Members that can be packed together, in the order in which they came; a CPU packs none."""
    groups: dict[Hashable, list[list[Member]]] = {}
    for index, member in enumerate(members):
        packs = groups.setdefault(_kind(member) if device.type == "cuda" else index, [[]])
        if len(packs[-1]) == LARGEST_PACK:
            packs.append([])
        packs[-1].append(member)
    return [pack for packs in groups.values() for pack in packs]


def _kind(member: Member) -> Hashable:
    """What members of a pack have in common."""
    agent = member.agent
    config = repr(but_for_the_limit(agent.config))
    if isinstance(member.sampler, TransitionSampler):
        tensors = tuple((name, part.shape) for name, part in agent.model.named_buffers())
        return type(agent), config, agent.dimensions, tensors, _update(member)
    if not isinstance(member.sampler, WindowSampler):
        return id(member)
    # padded actions change nothing for SaFormer's losses alone, and CDT's know one horizon
    own = agent.dimensions
    sizes = None if isinstance(agent, SaFormerAgent) else (own.action, own.horizon)
    return type(agent), config, own.constraints, sizes, _update(member)


def _update(member: Member) -> int | None:
    """Where a run stopped; None before it began."""
    if member.run is None or not member.run.checkpoint_path.exists():
        return None
    return int(member.run.load(groups=()).facts["update"])
