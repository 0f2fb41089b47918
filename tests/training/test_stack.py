"""Agents of single steps are trained together by vmap: each for its own limit, on its own data."""

from dataclasses import replace

import pytest
import torch
import torch._inductor.config

from saformer.agents.agent import Agent
from saformer.agents.bc_safe import BCSafeAgent, BCSafeConfig
from saformer.agents.registry import create_agent
from saformer.core.transformer import TrunkConfig
from saformer.data.store import TrajectoryStore
from saformer.data.transitions import PackedTransitions, TransitionSampler, _concatenated
from saformer.training.loop.config import FitConfig
from saformer.training.loop.trainer import Member, PackTrainer
from saformer.training.packs.grouping import grouped
from saformer.training.packs.stack import StackedAgent
from tests.alone import Trainer
from tests.contracts.cases import CASES
from tests.training.test_update import CHEETAH, HOPPER, robot

CONFIG = FitConfig(updates=6, batch_size=8, warmup_updates=2)
DATA = (CHEETAH, robot(17, 6, seed=2), CHEETAH)
LIMITS = (4.0, 30.0, 12.0)
NAMES = ("bcq_lag", "cpq", "coptidice")
every_agent = pytest.mark.parametrize("name", NAMES)


def made(name: str, *, dropout: float = 0.0) -> list[Agent]:
    agents = []
    for seed, (data, limit) in enumerate(zip(DATA, LIMITS, strict=True)):
        agents.append(
            create_agent(data, replace(CASES[name].config(dropout, 1), limit=(limit,)), seed=seed)
        )
        agents[-1].model.double()  # so that nothing but a mistake tells runs apart
    return agents


def members(agents: list[Agent]) -> list[Member]:
    return [
        Member(a, a.sampler(d), seed) for seed, (a, d) in enumerate(zip(agents, DATA, strict=True))
    ]


@pytest.fixture
def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """What losses draw from torch's own stream is half of everything: a stack draws other numbers
    than one model."""
    monkeypatch.setattr(torch, "randn_like", lambda x: torch.full_like(x, 0.5))
    monkeypatch.setattr(torch, "rand_like", lambda x: torch.full_like(x, 0.5))
    monkeypatch.setattr(
        torch, "randn", lambda *shape, **how: torch.full(shape, 0.5, dtype=how["dtype"])
    )


@pytest.mark.usefixtures("without_noise")
@every_agent
def test_stacked_runs_equal_the_same_runs_alone(name):
    """Losses of every update, and weights, targets and multipliers after the last.

    Seen to fail when all models are held to the first one's limit, and when their gradients are
    clipped as one.
    """
    alone, together = made(name), made(name)
    trainers = [Trainer(m.agent, m.sampler, CONFIG, seed=m.seed) for m in members(alone)]
    expected = [[trainer.step() for _ in range(CONFIG.updates)] for trainer in trainers]
    pack = PackTrainer(members(together), CONFIG)
    for update in range(CONFIG.updates):
        for number, row in enumerate(pack.advance(1)[1]):
            assert row == pytest.approx(expected[number][update], rel=1e-6, abs=1e-6), update
    pack.unpack()
    for one, other in zip(alone, together, strict=True):
        for (key, mine), theirs in zip(
            one.model.named_parameters(), other.model.parameters(), strict=True
        ):
            assert torch.allclose(mine, theirs, rtol=0, atol=1e-10), key


@pytest.mark.usefixtures("without_noise")
@every_agent
def test_a_run_saved_in_a_stack_goes_on_alone(name):
    """Seen to fail when an optimiser's averages are those of another model."""
    whole = PackTrainer(members(made(name)), CONFIG)
    while whole.update < 3:
        whole.advance(1)
    saved = [whole.checkpoint({}, number) for number in range(len(DATA))]
    agent = made(name)[1]
    rest = Trainer(agent, agent.sampler(DATA[1]), CONFIG, seed=9)
    rest.restore([saved[1]])
    while whole.update < CONFIG.updates:
        whole.advance(1)
        rest.step()
    whole.unpack()
    stacked = whole.members[1].agent.model.state_dict()
    for key, value in agent.model.state_dict().items():
        assert torch.allclose(value, stacked[key], rtol=0, atol=1e-10), key


@every_agent
def test_the_data_is_gone_through_once_for_all_seeds_and_limits(name, monkeypatch):
    """Seen to fail when each run finds its units by itself."""
    data, gather, read = robot(17, 6, seed=3), TrajectoryStore.gather, []
    monkeypatch.setattr(
        TrajectoryStore, "gather", lambda store, *how: read.append(how) or gather(store, *how)
    )
    config = CASES[name].config(0.0, 1)
    first = create_agent(data, config, seed=0)
    assert read
    read.clear()
    other = create_agent(data, replace(config, limit=(7.0,)), seed=1)
    assert not read
    units = [dict(agent.model.get_submodule("units").named_buffers()) for agent in (first, other)]
    assert {key for key in units[0] if not torch.equal(units[0][key], units[1][key])} == {"limit"}


@every_agent
def test_saving_one_of_a_stack_leaves_the_others_alone(name):
    """Seen to fail when all are unpacked for each that is saved, which takes as many copies as
    members squared."""
    pack = PackTrainer(members(made(name)), CONFIG)
    pack.advance(1)
    before = [
        {key: value.clone() for key, value in m.agent.model.state_dict().items()}
        for m in pack.members
    ]
    pack.checkpoint({}, 1)
    changed = [
        any(not torch.equal(old[key], value) for key, value in m.agent.model.state_dict().items())
        for old, m in zip(before, pack.members, strict=True)
    ]
    assert changed == [False, True, False]


@every_agent
def test_every_model_has_noise_of_its_own(name):
    """Three times the same run: dropout and samples tell them apart. Seen to fail when all draw the
    same."""
    agent = create_agent(CHEETAH, CASES[name].config(0.3, 1), seed=0)
    pack = PackTrainer([Member(agent, agent.sampler(CHEETAH), 0)] * 3, CONFIG)
    pack.advance(1)
    moved = {"bcq_lag": "perturbation.output.weight", "cpq": "vae.decoder.output.weight"}
    name = moved.get(name, "actor.head.linear.weight")
    first, second, third = pack.learner.model.get_parameter(name)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


@every_agent
def test_limits_and_tasks_of_one_size_are_one_program(name):
    """Seen to fail when runs for other limits are kept apart."""
    hopper = create_agent(HOPPER, CASES[name].config(0.0, 1), seed=0)
    given = [*members(made(name)), Member(hopper, hopper.sampler(HOPPER))]
    assert [len(group) for group in grouped(given, torch.device("cuda"))] == [3, 1]
    with pytest.raises(ValueError, match="one kind, one configuration and one size"):
        StackedAgent([member.agent for member in given])


def test_bc_safe_of_several_limits_is_one_pack():
    """Each learns from the trajectories within its own limit."""
    trunk = TrunkConfig(layers=1, width=16, dropout=0.0)
    costs = sorted(CHEETAH.episode_cost[:, 0])
    pairs = []
    for limit in (costs[4], costs[12]):
        agents = [
            BCSafeAgent.create(CHEETAH, BCSafeConfig(limit=(limit,), trunk=trunk), seed=0)
            for _ in range(2)
        ]
        for agent in agents:
            agent.model.double()
        pairs.append([Member(agent, agent.sampler(CHEETAH)) for agent in agents])
    together = [pair[0] for pair in pairs]
    assert [len(group) for group in grouped(together, torch.device("cuda"))] == [2]
    pack = PackTrainer(together, CONFIG)
    pack.advance(1)
    pack.unpack()
    for packed, alone in pairs:
        Trainer(alone.agent, alone.sampler, CONFIG, seed=0).step()
        weights = zip(packed.agent.model.parameters(), alone.agent.model.parameters(), strict=True)
        assert all(torch.allclose(*both, rtol=0, atol=1e-10) for both in weights)


def test_a_table_of_all_data_gives_each_model_its_own():
    """As a GPU gathers it. Seen to fail when a model is given its neighbour's beginnings."""
    samplers = [TransitionSampler(data) for data in DATA[:2]]
    generators = [[torch.Generator().manual_seed(seed) for seed in (0, 1)] for _ in range(2)]
    packed = PackedTransitions(samplers, made("cpq")[0].dimensions)
    expected = packed.sample(5, generators[0])
    packed._table = _concatenated(samplers, made("cpq")[0].dimensions)
    found = packed.sample(5, generators[1])
    for name, value in vars(expected).items():
        assert torch.equal(getattr(found, name), value), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every_agent
@torch._inductor.config.patch(fallback_random=True)  # compiled losses draw what plain ones do
def test_on_a_gpu_stacks_are_recorded(name):
    """Compiled or not: after two hundred updates losses are those of the same stack run plainly,
    more or less."""
    found = []
    for compiled in ("record", "auto", "off"):
        agents = made(name)
        for agent in agents:
            agent.model.float().to("cuda").train()
        pack = PackTrainer(
            [
                Member(a, a.sampler(d, "cuda"), s)
                for s, (a, d) in enumerate(zip(agents, DATA, strict=True))
            ],
            replace(CONFIG, updates=200, batch_size=256, compile=compiled),
        )
        rows = {}
        while pack.update < 200:
            rows = pack.advance(50)[1]
        found.append(rows)
    for recorded, compiled, plain in zip(*found, strict=True):
        assert recorded.keys() == compiled.keys() == plain.keys()
        for key in (key for key in plain if "gradient" not in key):
            assert recorded[key] == pytest.approx(plain[key], rel=0.3, abs=0.3), key
            assert compiled[key] == pytest.approx(plain[key], rel=0.3, abs=0.3), key
