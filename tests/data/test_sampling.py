"""Windows and transitions: what they hold, and where they end."""

import gc
import weakref

import numpy as np
import torch

from saformer.core.normalizer import Normalizer
from saformer.criteria import torque
from saformer.data.relabel import relabel
from saformer.data.sampling import (
    PackedSampler,
    WindowSampler,
    centre_and_half_range,
    dimensions_of,
    mean_and_deviation,
    statistics_of,
)
from saformer.data.store import EnvironmentSpec, TrajectoryStore
from saformer.data.trajectory import Trajectory
from saformer.data.transitions import TransitionSampler


def test_windows_are_consecutive_steps_padded_at_the_end(data):
    """Seen to fail when a window runs on into the next trajectory."""
    sampler = WindowSampler(data, window=4)
    batch = sampler.windows(torch.tensor([0, 17, 19, 20]))  # episodes are 20 steps long
    assert batch.valid.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
    assert batch.timestep[0].tolist() == [0, 1, 2, 3]
    assert batch.timestep[1, :3].tolist() == [17, 18, 19]
    state = torch.tensor(data.store.steps["state"])
    assert torch.equal(batch.state[1, :3], state[17:20])
    assert torch.allclose(
        batch.cost_to_go[2, 0], torch.tensor(data.cost_to_go[19], dtype=torch.float32)
    )
    assert torch.allclose(
        batch.limit[:, 0], torch.tensor(data.episode_cost[[0, 0, 0, 1], 0], dtype=torch.float32)
    )


def test_limit_is_the_cost_of_the_whole_trajectory(data):
    """D = C_0: what was spent is their difference. Seen to fail when D is the cost-to-go of the
    window's start."""
    batch = WindowSampler(data, window=4).windows(torch.tensor([5]))
    spent = data.cost[:5, 0].sum()
    assert torch.allclose(
        batch.limit[0] - batch.cost_to_go[0, 0],
        torch.tensor([spent], dtype=torch.float32),
        atol=1e-5,
    )


def test_every_step_is_drawn_and_a_seed_repeats(data):
    sampler = WindowSampler(data, window=2)
    first = sampler.sample(64, torch.Generator().manual_seed(0))
    again = sampler.sample(64, torch.Generator().manual_seed(0))
    assert torch.equal(first.state, again.state)
    drawn = sampler.sample(20_000, torch.Generator().manual_seed(1)).timestep[:, 0]
    counts = torch.bincount(drawn, minlength=20)
    assert counts.min() > 800, "1,000 expected for each of 20 steps"
    assert counts.max() < 1200


def test_packed_windows_can_be_drawn_before_they_are_gathered(data):
    """As a recorded update has it. Seen to fail when every model draws by the first one's
    generator."""
    packed = PackedSampler([WindowSampler(data, window=4)] * 2, dimensions_of(data))
    alone, others = ([torch.Generator().manual_seed(seed) for seed in (0, 1)] for _ in range(2))
    expected = [WindowSampler(data, window=4).sample(8, generator) for generator in alone]
    found = packed.gathered(packed.drawn(8, others))
    assert packed.draws_apart
    for name, value in vars(found).items():
        assert torch.equal(value, torch.cat([getattr(part, name) for part in expected])), name


def test_statistics_standardise_every_kind(data):
    """Seen to fail when the limit is scaled like the cost-to-go."""
    normalizer = Normalizer(dimensions_of(data))
    normalizer.set_statistics(statistics_of(data))
    limits = normalizer.normalize("limit", torch.tensor(data.episode_cost, dtype=torch.float32))
    states = normalizer.normalize("state", torch.tensor(data.store.steps["state"]))
    for values in (limits, states):
        assert torch.allclose(values.mean(0), torch.zeros(1), atol=1e-4)
        assert torch.allclose(values.std(0), torch.ones(1), atol=1e-2)
    raw = torch.randn(5, 2)
    assert torch.allclose(
        normalizer.restore("state", normalizer.normalize("state", raw)), raw, atol=1e-6
    )


def test_statistics_are_found_once_for_each_data(data, monkeypatch):
    """Runs of several seeds and limits share them; a part of the data has its own, and nothing
    outlives its data.

    Seen to fail when every run goes through the data again.
    """
    part, read = data.filter(np.arange(len(data.store)) < 3), []
    gather = TrajectoryStore.gather
    monkeypatch.setattr(
        TrajectoryStore, "gather", lambda store, *how: read.append(how) or gather(store, *how)
    )
    first = statistics_of(part)
    assert read
    read.clear()
    assert statistics_of(part) is first
    assert not read
    assert not torch.equal(statistics_of(data)["limit"][0], first["limit"][0])
    kept = weakref.ref(first["limit"][0])
    del part, first
    gc.collect()
    assert kept() is None


def test_a_constant_column_keeps_scale_1():
    """Seen to fail with a division by zero."""
    centre, scale = mean_and_deviation(
        lambda: [torch.tensor([[5.0, 1.0]]), torch.tensor([[5.0, 3.0]])]
    )
    assert centre.tolist() == [5.0, 2.0]
    assert scale.tolist() == [1.0, 1.0]
    centre, scale = centre_and_half_range(torch.tensor([-2.0, 1.0]), torch.tensor([4.0, 1.0]))
    assert centre.tolist() == [1.0, 1.0]
    assert scale.tolist() == [3.0, 1.0]


def test_transitions_lead_to_the_next_state_and_end_where_their_trajectory_does(data):
    """Seen to fail when the last step leads to its own state, and when every step has its
    trajectory's end."""
    sampler = TransitionSampler(data)
    batch = sampler.transitions(torch.tensor([0, 18, 19, 20]), torch.tensor([0, 1, 2, 3]))
    state, store = torch.tensor(data.store.steps["state"]), data.store  # episodes are 20 steps long
    assert batch.timestep.tolist() == [0, 18, 19, 0]
    assert torch.equal(batch.next_state[[0, 1, 3]], state[[1, 19, 21]])
    assert torch.equal(batch.next_state[2], torch.tensor(store.episodes["final_state"][0]))
    assert batch.terminated.tolist() == [False, False, True, False]
    assert not batch.truncated.any()
    assert torch.equal(batch.cost, torch.tensor(data.cost[[0, 18, 19, 20]]))
    assert torch.equal(batch.reward[:, 0], torch.tensor(store.steps["reward"][[0, 18, 19, 20]]))
    assert torch.equal(batch.initial_state, state[[0, 20, 40, 60]])


def test_transitions_of_a_view_are_those_of_its_trajectories():
    """Seen to fail when first states are looked up where the whole store has them."""
    rng = np.random.default_rng(0)
    parts = [
        Trajectory.of(
            rng.standard_normal((steps, 2)),
            rng.uniform(-1, 1, (steps, 1)),
            rng.standard_normal(steps),
            rng.standard_normal(2),
            terminated=steps > 3,
            truncated=steps <= 3,
        )
        for steps in (4, 2, 5, 3)
    ]
    box = EnvironmentSpec((-1.0,), (1.0,), 5)
    chosen, places, begun = np.array([3, 1]), torch.arange(5), torch.tensor([1, 0, 1, 0, 0])
    view = relabel(TrajectoryStore.of(parts, box).filter(chosen), [torque])
    apart = relabel(TrajectoryStore.of([parts[i] for i in chosen], box), [torque])
    ours, theirs = (TransitionSampler(data).transitions(places, begun) for data in (view, apart))
    assert all(
        torch.equal(a, b) for a, b in zip(vars(ours).values(), vars(theirs).values(), strict=True)
    )
    assert ours.truncated.tolist() == [False, False, True, False, True]
    assert torch.equal(ours.initial_state[0], torch.tensor(parts[1].state[0]))


def test_every_transition_is_drawn_and_a_seed_repeats(data):
    sampler = TransitionSampler(data)
    first, again = (sampler.sample(64, torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(first.action, again.action)
    counts = torch.bincount(
        sampler.sample(20_000, torch.Generator().manual_seed(1)).timestep, minlength=20
    )
    assert counts.min() > 800, "1,000 expected for each of 20 steps"
    assert counts.max() < 1200
