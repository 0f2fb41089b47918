"""What changes while runs are trained, alone or together, and how it is saved."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from saformer.agents.agent import Agent, Sampler
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import WindowSampler
from saformer.data.sources.source import Progress
from saformer.data.transitions import TransitionSampler
from saformer.engine.distributed import Ranks
from saformer.kernels.precision import set_training_dtype, training_dtype
from saformer.kernels.recording import RecordedUpdate
from saformer.kernels.sizes import can_fuse, have_triton
from saformer.runs.checkpoint import Checkpoint
from saformer.runs.run import Run
from saformer.training.loop.checkpoints import (
    noise_states,
    optimizer_tensors,
    restore_noise,
    restore_optimizer,
)
from saformer.training.loop.config import FitConfig
from saformer.training.loop.optimizers import optimizer_of
from saformer.training.loop.update import Update
from saformer.training.packs.learner import Learner, SingleAgent
from saformer.training.packs.pack import PackedAgent
from saformer.training.packs.stack import StackedAgent

Metrics = dict[str, float]
AHEAD = 50
"""Updates that a GPU is given at once; Ctrl-C is heard after them."""


class NonFiniteLossError(RuntimeError):
    """Training diverged; the state before the bad update was saved."""

    def __init__(self, message: str, indices: tuple[int, ...] = (0,)) -> None:
        super().__init__(message)
        self.indices = indices  # of the members of a pack that diverged


@dataclass(frozen=True)
class Observer:
    """Callbacks while training goes on."""

    progress: Callable[[int, Metrics], None] = lambda update, metrics: None  # after every update
    # every `evaluate_every` updates; its result becomes a row of metrics
    evaluate: Callable[[Agent], dict[str, Any]] | None = None
    row: Callable[[dict[str, Any]], None] = lambda row: None  # with each row that is written
    finishing: Progress | None = None  # (update, of how many) of what is fitted after the last one


@dataclass(frozen=True)
class Member:
    """One run of those that are trained together."""

    agent: Agent
    sampler: Sampler
    seed: int = 0
    run: Run | None = None  # where checkpoints and metrics are kept, if anywhere
    observer: Observer = field(default_factory=Observer)
    data: RelabelledStore | None = None  # to finish the agent with after its last update, if at all


class PackTrainer:
    """All that changes while runs are trained together: weights, optimisers, random states, and how
    far they have come. A run alone is a pack of one.

    Several ranks draw the same windows and learn from a share each; their weights stay the same.
    """

    def __init__(
        self, members: Sequence[Member], config: FitConfig, ranks: Ranks | None = None
    ) -> None:
        self.ranks = ranks or Ranks()
        self.members, self.config = tuple(members), config
        if self.ranks.are_several:
            self.members, self.config = _shared(members, config, self.ranks)
        self.update, self.seconds = 0, 0.0
        self.device = next(members[0].agent.model.parameters()).device
        self.generators = [torch.Generator(self.device).manual_seed(m.seed) for m in members]
        # Two streams from one seed: windows have a generator of their own, dropout uses torch's.
        torch.manual_seed(self.ranks.seed(members[0].seed))
        for member in members:
            self.ranks.copy_first(list(member.agent.model.state_dict().values()))
        self._prepare()

    def _prepare(self) -> None:
        """Pack the agents as they are."""
        self.learner = _learner_of(self.members, self.config, self.device, self.ranks)
        phases, count = self.learner.phases, self.learner.num_models
        options = self.config, self.device
        self.optimizers = {p.name: optimizer_of(p, *options, num_models=count) for p in phases}
        self._program: tuple[Update, Callable[[], None]] | None = None

    def _built(self) -> tuple[Update, Callable[[], None]]:
        """The update, and what runs it: itself or, on a GPU, a recording of it."""
        self.learner.model.train(self.members[0].agent.model.training)
        samplers, size = [member.sampler for member in self.members], self.config.batch_size
        batches = self.learner.batches(samplers, size, self.generators, self.update)
        update = Update(self.learner, self.optimizers, batches, self.device, self.ranks)
        if self.device.type != "cuda" or self.config.compile == "off":
            return update, update
        compiled, model = self.config.compile == "auto", self.learner.model
        return update, RecordedUpdate(update, model, self.generators, compiled=compiled)

    def advance(self, most: int) -> tuple[int, list[Metrics]]:
        """Make at most `most` updates: how many there were, and each member's mean metrics.

        A GPU is given several at once, so that it never waits. Raises NonFiniteLossError; the state
        is then what it was before the bad update.
        """
        if self._program is None:  # not before: to record an update takes data to learn from
            self._program = self._built()
        update, run_update = self._program
        count = min(most, AHEAD if self.device.type == "cuda" else 1)
        rates = [self.config.learning_rate_at(self.update + ahead) for ahead in range(count)]
        before = [generator.get_state() for generator in self.generators]
        for rate in rates:
            update.set_learning_rate(rate)
            run_update()
        measured = update.metrics.read()
        self.update += measured.num_updates
        if measured.non_finite:
            # bring the generators of windows to where good updates left them
            for member, generator, state in zip(self.members, self.generators, before, strict=True):
                generator.set_state(state)
                for _ in range(measured.num_updates):
                    member.sampler.sample(self.config.batch_size, generator)
            names = sorted({name for names in measured.non_finite.values() for name in names})
            message = f"training is not finite at update {self.update}: {', '.join(names)}"
            raise NonFiniteLossError(message, tuple(measured.non_finite))
        mean_rate = {"learning_rate": sum(rates) / len(rates)}
        return measured.num_updates, [
            mean_rate | {name: values[index] for name, values in measured.means.items()}
            for index in range(len(self.members))
        ]

    def unpack(self, *indices: int) -> None:
        """Give these agents, by default all, what they have learnt."""
        self.learner.unpack(*indices)

    def checkpoint(self, facts: dict[str, Any], index: int = 0) -> Checkpoint:
        """All that a member needs to go on; every rank must call this, for its random states."""
        self.unpack(index)
        groups = {"model": dict(self.members[index].agent.model.state_dict())}
        for name, optimizer in self.optimizers.items():
            groups[f"optimizer.{name}"] = optimizer_tensors(optimizer, self.learner, name, index)
        windows = {"windows": self.generators[index].get_state()}
        groups["random"] = windows | noise_states(self.device, self.ranks)
        return Checkpoint(groups, {**facts, "update": self.update, "seconds": self.seconds})

    def restore(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Go on from checkpoints of the same update, one for each member."""
        updates = sorted({checkpoint.facts["update"] for checkpoint in checkpoints})
        if len(updates) != 1:
            raise ValueError(f"runs can go on together only from the same update, got {updates}")
        groups = [checkpoint.groups for checkpoint in checkpoints]
        for member, generator, own in zip(self.members, self.generators, groups, strict=True):
            member.agent.model.load_state_dict(own["model"])
            generator.set_state(own["random"]["windows"])
        self._prepare()
        for name, optimizer in self.optimizers.items():
            for index, own in enumerate(groups):
                # before the first update there is no state, and so no group of that name
                tensors = own.get(f"optimizer.{name}", {})
                restore_optimizer(optimizer, self.learner, name, index, tensors)
        restore_noise(groups[0]["random"], self.device, self.ranks)
        self.update, self.seconds = checkpoints[0].facts["update"], checkpoints[0].facts["seconds"]


def _shared(
    members: Sequence[Member], config: FitConfig, ranks: Ranks
) -> tuple[tuple[Member, ...], FitConfig]:
    """Members that gather this rank's share of batches; unrecorded, since ranks meet in between."""
    if config.batch_size < ranks.size:
        shared = f"{ranks.size} ranks cannot share a batch of {config.batch_size}"
        raise ValueError(f"{shared}: use a larger --batch-size")
    parts: dict[Sampler, WindowSampler] = {}
    for member in members:
        if not isinstance(member.sampler, WindowSampler):
            unshared = f"{member.agent.name} learns from statistics of its whole batch"
            advice = "train it on one processor, without torchrun"
            raise ValueError(f"{unshared}, which ranks cannot share: {advice}")
        if member.sampler not in parts:  # members may have one in common
            parts[member.sampler] = member.sampler.sharing(ranks.share)
    sharing = tuple(replace(member, sampler=parts[member.sampler]) for member in members)
    return sharing, replace(config, compile="off")


def _learner_of(
    members: Sequence[Member], config: FitConfig, device: torch.device, ranks: Ranks
) -> Learner:
    """The agent itself, or a pack; transformers on a GPU are packed even if alone, to be fused."""
    agents = [member.agent for member in members]
    dtype = training_dtype(agents[0].model, config.precision, device)
    fused = have_triton(device) and dtype == torch.bfloat16 and config.compile != "off"
    fused = fused and all(map(can_fuse, agents))
    learner: Learner
    if len(agents) == 1 and not fused:
        learner = SingleAgent(agents[0])
    elif isinstance(members[0].sampler, TransitionSampler):
        learner = StackedAgent(agents)
    else:
        learner = PackedAgent(agents, seeds=[ranks.seed(m.seed) for m in members], fused=fused)
    set_training_dtype(learner.model, dtype)
    return learner
