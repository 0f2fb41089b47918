"""Updates: of one model, of a pack, and after something went wrong."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from saformer.agents.agent import Phase
from saformer.agents.saformer import SaFormerAgent
from saformer.core.objectives import PerSample
from saformer.core.transformer import TrunkConfig
from saformer.criteria import energy, torque
from saformer.data.relabel import RelabelledStore, relabel
from saformer.data.sampling import WindowSampler
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory
from saformer.kernels.recording import compile_losses
from saformer.training.loop.config import FitConfig
from saformer.training.loop.fit import _until_next_event
from saformer.training.loop.metrics import Measured
from saformer.training.loop.optimizers import optimizer_of
from saformer.training.loop.trainer import Member, PackTrainer
from saformer.training.loop.update import Update, _follow
from saformer.training.packs.learner import Batches, SingleAgent
from saformer.training.packs.pack import PackedAgent
from tests.alone import Trainer
from tests.conftest import randomise, tiny_config

CONFIG = FitConfig(updates=20, batch_size=6, warmup_updates=2)
CPU = torch.device("cpu")


def robot(num_states: int, num_actions: int, seed: int) -> RelabelledStore:
    """Data in the shape of a robot's."""
    rng = np.random.default_rng(seed)
    parts = [
        Trajectory.of(
            rng.standard_normal((steps, num_states)),
            rng.uniform(-1, 1, (steps, num_actions)),
            rng.standard_normal(steps),
            np.zeros(num_states),
            terminated=True,
            truncated=False,
        )
        for steps in rng.integers(3, 30, 20)
    ]
    return relabel(
        TrajectoryStore.of(parts, EnvironmentSpec((-1.0,) * num_actions, (1.0,) * num_actions, 30)),
        [torque],
    )


HOPPER, CHEETAH = robot(11, 3, seed=0), robot(17, 6, seed=1)


def agents(dtype: torch.dtype = torch.float32) -> list[SaFormerAgent]:
    made = [
        SaFormerAgent.create(data, tiny_config(), seed=seed)
        for seed, data in enumerate((HOPPER, CHEETAH))
    ]
    for seed, agent in enumerate(made):
        randomise(agent.model, seed=seed)
        agent.model.to(dtype)
    return made


def sampler(data: RelabelledStore, device: torch.device = CPU) -> WindowSampler:
    return WindowSampler(data, window=4, device=device)


def run(update: Update, learning_rates: list[float]) -> Measured:
    for rate in learning_rates:
        update.set_learning_rate(rate)
        update()
    return update.metrics.read()


def train_alone(members: list[SaFormerAgent]) -> list[list[dict[str, float]]]:
    trainers = [
        Trainer(agent, sampler(data), CONFIG, seed=seed)
        for seed, (agent, data) in enumerate(zip(members, (HOPPER, CHEETAH), strict=True))
    ]
    return [[trainer.step() for _ in range(CONFIG.updates)] for trainer in trainers]


def train_packed(members: list[SaFormerAgent]) -> tuple[PackedAgent, list[list[dict[str, float]]]]:
    pairs = zip(members, (HOPPER, CHEETAH), strict=True)
    trainer = PackTrainer(
        [Member(agent, sampler(data), seed) for seed, (agent, data) in enumerate(pairs)], CONFIG
    )
    found = [trainer.advance(1)[1] for _ in range(CONFIG.updates)]
    trainer.unpack()
    assert isinstance(trainer.learner, PackedAgent)
    return trainer.learner, found


def test_packed_runs_equal_the_same_runs_alone():
    """Hopper and HalfCheetah: losses and gradient norms of every update, and what the models then
    say.

    Seen to fail when gradients are clipped by the norm of the whole pack.
    """
    alone, together = agents(), agents()
    expected, (_, found) = train_alone(alone), train_packed(together)
    for update, rows in enumerate(found):
        for number, row in enumerate(rows):
            assert row == pytest.approx(expected[number][update], rel=1e-5, abs=1e-5), (
                update,
                number,
            )
    for one, other, data in zip(alone, together, (HOPPER, CHEETAH), strict=True):
        batch = sampler(data).windows(torch.arange(0, 60, 7))
        with torch.no_grad():
            first, second = (
                agent.model.actor(agent.model.normalizer.window(batch)) for agent in (one, other)
            )
        assert torch.allclose(first.action.mean, second.action.mean, atol=1e-5)
        assert torch.allclose(first.return_to_go.mean, second.return_to_go.mean, atol=1e-5)


def test_packed_weights_equal_to_1e_10_in_double_precision():
    """Seen to fail when padded actions count in the likelihood."""
    alone, together = agents(torch.float64), agents(torch.float64)
    train_alone(alone)
    train_packed(together)
    for one, other in zip(alone, together, strict=True):
        for (name, mine), theirs in zip(
            one.model.named_parameters(), other.model.parameters(), strict=True
        ):
            assert torch.allclose(mine, theirs, rtol=0, atol=1e-10), name


def test_what_is_padded_learns_nothing():
    """Seen to fail when outputs that a model lacks are not filled."""
    pack, _ = train_packed(agents())
    embedding = pack.model.get_parameter("actor.embedding.of_kind.state.weight")  # [2, E, 17]
    assert (embedding[0, :, 11:] == 0).all()
    assert (embedding[1, :, 11:] != 0).any()
    head = pack.model.get_parameter(
        "actor.action_head.linear.weight"
    )  # [2, 12, E]: six means, six log-deviations
    assert (head[0, [3, 4, 5, 9, 10, 11]] == 0).all()


def test_packing_and_unpacking_loses_nothing():
    members = agents()
    before = [parameter.clone() for agent in members for parameter in agent.model.parameters()]
    PackedAgent(members).unpack()
    after = [parameter for agent in members for parameter in agent.model.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_only_like_is_packed_with_like():
    first, _ = agents()
    wider = SaFormerAgent.create(
        CHEETAH, tiny_config(trunk=TrunkConfig(layers=1, width=32)), seed=0
    )
    with pytest.raises(ValueError, match="one kind and one configuration"):
        PackedAgent([first, wider])
    two_costs = SaFormerAgent.create(
        relabel(CHEETAH.store, [torque, energy]), tiny_config(), seed=0
    )
    with pytest.raises(ValueError, match="as many constraints"):
        PackedAgent([first, two_costs])


def test_after_a_bad_update_nothing_changes():
    """A GPU is given many updates at once: those after a bad one must do no harm.

    Seen to fail when only the bad update itself is skipped.
    """
    agent = agents()[0]
    trainer = Trainer(agent, sampler(HOPPER), CONFIG, seed=0)
    trainer.step()
    good = {name: value.clone() for name, value in agent.model.state_dict().items()}
    drawn = iter([float("nan"), 0.0, 0.0])
    whole = sampler(HOPPER)

    def spoilt():
        batch = whole.windows(torch.arange(6))
        return replace(batch, state=batch.state + next(drawn))

    update = Update(SingleAgent(agent), trainer.optimizers, Batches(spoilt), CPU)
    measured = run(update, [1e-3] * 3)
    assert measured.num_updates == 0
    assert "actor/action" in measured.non_finite[0]
    assert all(torch.equal(value, good[name]) for name, value in agent.model.state_dict().items())


def test_what_is_watched_is_no_part_of_the_loss():
    """It is reported, not minimised. Seen to fail when it is added to the loss."""
    model = torch.nn.Linear(1, 1, bias=False)

    def terms(batch):
        value = model.weight.flatten().expand(4)
        return {
            "loss": PerSample(value, torch.ones(4)),
            "seen": PerSample(9 * value, torch.ones(4), watched=True),
        }

    phase = Phase("one", tuple(model.parameters()), terms)
    learner = SimpleNamespace(phases=(phase,), averages=(), model=model, num_models=1)
    optimizers = {"one": optimizer_of(phase, replace(CONFIG, gradient_clip=100.0), CPU)}
    draw = lambda: sampler(HOPPER).windows(torch.arange(4))  # noqa: E731
    update = Update(learner, optimizers, Batches(draw), CPU)
    weight = model.weight.item()
    means = run(update, [1e-3]).means
    assert model.weight.grad.item() == 1.0
    assert means["one/watched/seen"] == pytest.approx([9 * weight])


def test_every_update_learns_from_what_was_drawn_at_its_own_rate():
    """One draw for each, handed to `gather`. Seen to fail when a new learning rate is passed
    over."""
    model, seen = torch.nn.Linear(1, 1, bias=False), []
    phase = Phase(
        "one",
        tuple(model.parameters()),
        lambda _: {"loss": PerSample(model.weight[0].expand(4), 1)},
    )
    learner = SimpleNamespace(phases=(phase,), averages=(), model=model, num_models=1)
    drawn, batch = iter(range(9)), sampler(HOPPER).windows(torch.arange(4))
    batches = Batches(
        lambda number: seen.append(number.item()) or batch, lambda: (torch.tensor(next(drawn)),)
    )
    optimizers = {"one": optimizer_of(phase, CONFIG, CPU)}
    update = Update(learner, optimizers, batches, CPU)
    weights = [model.weight.item()]
    for rates in ([1e-3, 1e-3], [2e-3]):
        run(update, rates)
        weights.append(model.weight.item())
    assert seen == [0, 1, 2]
    assert weights[0] - weights[1] == pytest.approx(2e-3, rel=0.01)
    assert weights[1] - weights[2] == pytest.approx(2e-3, rel=0.01)


@pytest.mark.parametrize("rate", [0.25, torch.tensor(0.25)])
def test_averages_follow_by_their_rate(rate):
    """On a CPU and as a GPU does it. Seen to fail when a GPU's averages jump to what they
    follow."""
    average, followed = (
        [torch.zeros(2), torch.full((3,), 8.0)],
        [torch.full((2,), 4.0), torch.zeros(3)],
    )
    _follow(average, followed, rate)
    assert [part.tolist() for part in average] == [[1.0] * 2, [6.0] * 3]
    assert [part.tolist() for part in followed] == [[4.0] * 2, [0.0] * 3]
    _follow(average, followed, torch.tensor(0.0))
    assert [part.tolist() for part in average] == [[1.0] * 2, [6.0] * 3]


def test_a_phase_that_cannot_be_compiled_is_left_as_it_is(monkeypatch):
    """The others are compiled, and one line names it. Seen to fail when one failure leaves all of
    them."""
    agent = agents()[0]
    trainer = Trainer(agent, sampler(HOPPER), CONFIG, seed=0)
    batch = sampler(HOPPER).windows(torch.arange(6))
    update = Update(SingleAgent(agent), trainer.optimizers, Batches(lambda: batch), CPU)
    plain, compiled = dict(update.losses), []

    def compile_all_but_the_critic(losses, *, dynamic):
        def call(kind, values):
            if losses is plain["critic"]:
                raise RuntimeError("PassManager::run failed")
            compiled.append(losses)
            return losses(kind, values)

        return call

    monkeypatch.setattr(torch, "compile", compile_all_but_the_critic)
    with pytest.warns(
        UserWarning, match=r"^losses of critic are not compiled \(RuntimeError: PassManager"
    ) as said:
        compile_losses(update, batch)
    assert len(said) == 1
    assert update.losses["critic"] is plain["critic"]
    assert update.losses["actor"] is not plain["actor"]
    assert compiled == [plain["actor"]]


def test_updates_are_counted_up_to_the_next_event():
    """Seen to fail when a report is passed over."""
    config = FitConfig(updates=1000, report_every=100, checkpoint_every=250, evaluate_every=0)
    assert [_until_next_event(update, config) for update in (0, 99, 100, 240, 999)] == [
        100,
        1,
        100,
        10,
        1,
    ]


def test_blocks_in_bfloat16_leave_tokens_and_outputs_alone():
    """Seen to fail when heads are computed in bfloat16: likelihoods would be rounded."""
    agent = agents()[0]
    Trainer(agent, sampler(HOPPER), replace(CONFIG, precision="bfloat16"), seed=0)
    assert agent.model.actor.trunk.training_dtype == torch.bfloat16
    batch = agent.model.normalizer.window(sampler(HOPPER).windows(torch.arange(6)))
    predicted = agent.model.actor(batch).action.mean
    assert predicted.dtype == torch.float32
    assert (predicted != predicted.bfloat16().float()).any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_on_a_gpu_recorded_updates_equal_plain_ones_and_resume(tmp_path, dropout):
    """Ordinary updates, recorded ones, and recorded ones that were saved half-way.

    To within 1e-3: a GPU adds gradients of embeddings in any order, so that no two runs are alike
    to the bit.
    """

    def trainer(**changes):
        config = tiny_config(trunk=TrunkConfig(layers=2, width=16, dropout=dropout))
        agent = SaFormerAgent.create(HOPPER, config, seed=0)
        agent.model.to("cuda").train()
        device_sampler = WindowSampler(HOPPER, window=4, device="cuda")
        return Trainer(
            agent, device_sampler, replace(CONFIG, precision="float32", **changes), seed=0
        )

    def advance(one, until):
        while one.update < until:
            one.advance(until - one.update)
        return one

    recorded = advance(trainer(), 20)
    halfway = advance(trainer(), 10).checkpoint({})
    resumed = trainer()
    resumed.restore([halfway])
    advance(resumed, 20)
    weights = [dict(one.agent.model.named_parameters()) for one in (recorded, resumed)]
    assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-3) for name in weights[0])
    if dropout == 0:
        plain = advance(trainer(compile="off"), 20)
        for name, parameter in plain.agent.model.named_parameters():
            assert torch.allclose(parameter, weights[0][name], atol=1e-3), name
