"""What changes while runs are trained, alone or together, and how it is saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from saformer.agents.agent import Agent, Sampler
from saformer.data.relabel import RelabelledStore
from saformer.data.sampling import PackedSampler, WindowSampler
from saformer.data.transitions import PackedTransitions, TransitionSampler
from saformer.engine.distributed import Ranks
from saformer.runs.checkpoint import Checkpoint
from saformer.runs.run import Run
from saformer.training.config import FitConfig
from saformer.training.optimizers import have_triton, optimizer_of
from saformer.training.pack import PackedAgent, Slot, can_be_fused
from saformer.training.precision import set_training_dtype, training_dtype
from saformer.training.stack import StackedAgent
from saformer.training.update import Batches, Learner, Update

Metrics = dict[str, float]
AHEAD = 50
"""Updates that a GPU is given at once; Ctrl-C is heard after them."""


class NonFiniteLossError(RuntimeError):
    """Training diverged; the state before the bad update was saved."""

    def __init__(self, message: str, numbers: tuple[int, ...] = (0,)) -> None:
        super().__init__(message)
        self.numbers = numbers
        """of the members of a pack that diverged"""


@dataclass(frozen=True)
class Observer:
    """What a caller may want to hear of while training goes on."""

    progress: Callable[[int, Metrics], None] = lambda update, metrics: None
    """called after every update with the latest metrics"""
    evaluate: Callable[[Agent], dict[str, Any]] | None = None
    """called every `evaluate_every` updates; its answer becomes a row of metrics"""
    row: Callable[[dict[str, Any]], None] = lambda row: None
    """called with each row of metrics, as it is written"""


@dataclass(frozen=True)
class Member:
    """One run of those that are trained together."""

    agent: Agent
    sampler: Sampler
    seed: int = 0
    run: Run | None = None
    """where checkpoints and metrics are kept, if anywhere"""
    observer: Observer = field(default_factory=Observer)
    data: RelabelledStore | None = None
    """what the agent is finished with after its last update; None: it is not finished"""


class PackTrainer:
    """All that changes while runs are trained together: weights, optimisers, random states, and how
    far they have come.

    Implements: Algorithm 2

    Several ranks draw the same windows and learn from a share each; their weights stay the same to
    the last bit.
    """

    def __init__(
        self, members: Sequence[Member], config: FitConfig, ranks: Ranks | None = None
    ) -> None:
        self.ranks = ranks or Ranks()
        self.members, self.config = tuple(members), config
        if self.ranks.are_several:
            self.members, self.config = _shared(members, config, self.ranks)
        self.update = 0
        self.seconds = 0.0
        self.device = next(members[0].agent.model.parameters()).device
        self.generators = [
            torch.Generator(self.device).manual_seed(member.seed) for member in members
        ]
        # Two streams from one seed: windows have a generator of their own, dropout uses torch's.
        torch.manual_seed(self.ranks.seed(members[0].seed))
        for member in members:
            self.ranks.copy_first(list(member.agent.model.state_dict().values()))
        self._ahead = AHEAD if self.device.type == "cuda" else 1
        self._prepare()

    def _prepare(self) -> None:
        """Build what trains from the agents as they are; on a GPU, updates are recorded when the
        first one is due."""
        self.learner = _learner_of(self.members, self.config, self.device, self.ranks)
        num_models = self.learner.num_models
        self.optimizers = {
            phase.name: optimizer_of(phase, self.config, self.device, num_models=num_models)
            for phase in self.learner.phases
        }
        self._updates_: Update | None = None

    @property
    def _updates(self) -> Update:
        if self._updates_ is None:
            self.learner.model.train(self.members[0].agent.model.training)
            self._updates_ = Update(
                self.learner,
                self.optimizers,
                self._batches(),
                self.generators,
                compile=self.config.compile,
                ranks=self.ranks,
            )
        return self._updates_

    def _batches(self) -> Batches:
        learner, size = self.learner, self.config.batch_size
        samplers = [member.sampler for member in self.members]
        if isinstance(learner, StackedAgent):
            steps = PackedTransitions(cast(list[TransitionSampler], samplers), learner.dimensions)
            return Batches(steps.gathered, lambda: steps.drawn(size, self.generators))
        if not isinstance(learner, PackedAgent):
            return _batches_of(samplers[0], size, self.generators[0])
        learner.model.get_buffer("updates").fill_(self.update)
        windows = PackedSampler(cast(list[WindowSampler], samplers), learner.dimensions)

        def gather(*drawn: Tensor) -> Any:
            learner.begin_update()
            return windows.gathered(*drawn) if drawn else windows.sample(size, self.generators)

        return Batches(
            gather, lambda: (windows.drawn(size, self.generators),) if windows.draws_apart else ()
        )

    def advance(self, most: int) -> tuple[int, list[Metrics]]:
        """Some updates, at most `most`: how many there were, and for each member the means of what
        they measured.

        A GPU is given several at once, so that it never waits. Raises NonFiniteLossError; the state
        is then what it was before the bad update.
        """
        rates = [
            self.config.learning_rate_at(self.update + ahead)
            for ahead in range(min(most, self._ahead))
        ]
        before = [generator.get_state() for generator in self.generators]
        found = self._updates.run(rates)
        self.update += found.num_updates
        if found.bad:
            self._draw_again(before, found.num_updates)
            what = ", ".join(sorted({name for names in found.bad.values() for name in names}))
            raise NonFiniteLossError(
                f"training is not finite at update {self.update}: {what}", tuple(found.bad)
            )
        rate = sum(rates) / len(rates)
        return found.num_updates, [
            {
                "learning_rate": rate,
                **{name: values[number] for name, values in found.means.items()},
            }
            for number in range(len(self.members))
        ]

    def _draw_again(self, states: Sequence[Tensor], times: int) -> None:
        """Bring the generators of windows to where good updates left them."""
        for member, generator, state in zip(self.members, self.generators, states, strict=True):
            generator.set_state(state)
            for _ in range(times):
                member.sampler.sample(self.config.batch_size, generator)

    def unpack(self, *numbers: int) -> None:
        """Give these agents, by default all, what they have learnt."""
        if isinstance(self.learner, PackedAgent | StackedAgent):
            self.learner.unpack(*numbers)

    def checkpoint(self, facts: dict[str, Any], number: int = 0) -> Checkpoint:
        """Everything that a member needs to go on as if nothing had happened, alone, in another
        pack or on more ranks.

        All ranks must ask for it: each has random states of its own.
        """
        self.unpack(number)
        groups = {"model": dict(self.members[number].agent.model.state_dict())}
        for name in self.optimizers:
            groups[f"optimizer.{name}"] = self._optimizer_tensors(name, number)
        groups["random"] = {"windows": self.generators[number].get_state()}
        for name, own in self._noise().items():
            for rank, state in enumerate(self.ranks.gathered(own)):
                groups["random"][_of_rank(name, rank)] = state
        return Checkpoint(groups, {**facts, "update": self.update, "seconds": self.seconds})

    def restore(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Go on from checkpoints of the same update, one for each member."""
        updates = {checkpoint.facts["update"] for checkpoint in checkpoints}
        if len(updates) != 1:
            raise ValueError(
                f"runs can go on together only from the same update, got {sorted(updates)}"
            )
        for member, generator, checkpoint in zip(
            self.members, self.generators, checkpoints, strict=True
        ):
            member.agent.model.load_state_dict(checkpoint.groups["model"])
            generator.set_state(checkpoint.groups["random"]["windows"])
        self._prepare()
        for name in self.optimizers:
            for number, checkpoint in enumerate(checkpoints):
                # before the first update there is no state, and so no group of that name
                self._restore_optimizer(
                    name, number, checkpoint.groups.get(f"optimizer.{name}", {})
                )
        self._restore_noise(checkpoints[0].groups["random"])
        self.update, self.seconds = checkpoints[0].facts["update"], checkpoints[0].facts["seconds"]

    def _noise(self) -> dict[str, Tensor]:
        """This rank's random states, of dropout and the like."""
        states = {"torch": torch.get_rng_state()}
        return states | (
            {"cuda": torch.cuda.get_rng_state(self.device)} if self.device.type == "cuda" else {}
        )

    def _restore_noise(self, states: dict[str, Tensor]) -> None:
        """A rank that was not there when they were saved has a stream of its own already."""
        own = {name: states.get(_of_rank(name, self.ranks.rank)) for name in ("torch", "cuda")}
        if own["torch"] is not None:
            torch.set_rng_state(own["torch"])
        if self.device.type == "cuda" and own["cuda"] is not None:
            torch.cuda.set_rng_state(own["cuda"], self.device)

    def _optimizer_tensors(self, phase: str, number: int) -> dict[str, Tensor]:
        tensors = {}
        for index, slot, shape in self._slots(phase, number):
            for key, value in self.optimizers[phase].state[slot.parameter].items():
                own = value if value.ndim == 0 else slot.read(value, shape)
                # fused parameters share their counts, and files hold nothing twice
                tensors[f"{index}.{key}"] = own.clone(memory_format=torch.contiguous_format)
        return tensors

    def _restore_optimizer(self, phase: str, number: int, tensors: dict[str, Tensor]) -> None:
        state = self.optimizers[phase].state
        for index, slot, _ in self._slots(phase, number):
            for key in [key for key in tensors if key.startswith(f"{index}.")]:
                value, name = tensors[key].to(self.device), key.split(".", 1)[1]
                if name not in state[slot.parameter]:
                    like = slot.parameter if value.ndim else value
                    state[slot.parameter][name] = torch.zeros_like(like, requires_grad=False)
                if value.ndim == 0:
                    state[slot.parameter][name].copy_(value)
                else:
                    slot.write(state[slot.parameter][name], value)

    def _slots(self, phase: str, number: int) -> Iterator[tuple[int, Slot, torch.Size]]:
        """Where a member's parameters of a phase are kept, in the order of its own phase."""
        agent = self.members[number].agent
        names = {id(parameter): name for name, parameter in agent.model.named_parameters()}
        for index, parameter in enumerate(
            next(p for p in agent.phases if p.name == phase).parameters
        ):
            if isinstance(self.learner, PackedAgent | StackedAgent):
                yield index, self.learner.slot(number, names[id(parameter)]), parameter.shape
            else:
                yield index, Slot(parameter, lambda tensor: tensor), parameter.shape


class Trainer(PackTrainer):
    """One run."""

    def __init__(self, agent: Agent, sampler: Sampler, config: FitConfig, *, seed: int) -> None:
        super().__init__([Member(agent, sampler, seed)], config)
        self.agent = agent

    def step(self) -> Metrics:
        """One update of every phase. Raises NonFiniteLossError before anything is changed."""
        return self.advance(1)[1][0]


def _shared(
    members: Sequence[Member], config: FitConfig, ranks: Ranks
) -> tuple[tuple[Member, ...], FitConfig]:
    """Members that gather this rank's share of their batches; nothing is recorded, since ranks meet
    in between."""
    if config.batch_size < ranks.size:
        raise ValueError(
            f"{ranks.size} ranks cannot share a batch of {config.batch_size}: use a larger "
            "--batch-size"
        )
    for member in members:
        if not isinstance(member.sampler, WindowSampler):
            raise ValueError(
                f"{member.agent.name} learns from statistics of its whole batch, which ranks "
                "cannot share: "
                "train it on one processor, without torchrun"
            )
    parts = {
        member.sampler: cast(WindowSampler, member.sampler).sharing(ranks.share)
        for member in members
    }
    return tuple(replace(member, sampler=parts[member.sampler]) for member in members), replace(
        config, compile="off"
    )


def _batches_of(sampler: Sampler, size: int, generator: torch.Generator) -> Batches:
    """Those of one run."""
    if isinstance(sampler, TransitionSampler):
        return Batches(sampler.transitions, lambda: sampler.drawn(size, generator))
    if isinstance(sampler, WindowSampler):
        return Batches(sampler.windows, lambda: (sampler.starts(size, generator),))
    return Batches(lambda: sampler.sample(size, generator))


def _of_rank(name: str, rank: int) -> str:
    """What a rank's random state is called; the first's is that of a training alone."""
    return name if rank == 0 else f"{name}.{rank}"


def _learner_of(
    members: Sequence[Member], config: FitConfig, device: torch.device, ranks: Ranks
) -> Learner:
    """What is trained: the agent itself, or a pack; transformers on a GPU are packed even if alone,
    to be fused."""
    agents = [member.agent for member in members]
    dtype = training_dtype(agents[0].model, config.precision, device)
    fused = have_triton(device) and dtype == torch.bfloat16 and all(map(can_be_fused, agents))
    if len(agents) == 1 and not (fused and config.compile != "off"):
        set_training_dtype(agents[0].model, dtype)
        return agents[0]
    if isinstance(members[0].sampler, TransitionSampler):
        return StackedAgent(agents)
    seeds = [ranks.seed(member.seed) for member in members]
    pack = PackedAgent(agents, seeds=seeds, fused=fused and config.compile != "off")
    set_training_dtype(pack.model, dtype)
    return pack
