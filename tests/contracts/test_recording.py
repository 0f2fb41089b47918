"""Decisions replayed on a GPU are those that were computed, and nothing grows while deciding."""

import copy
import gc
import warnings

import pytest
import torch

from saformer.core.execution import SaFormerPolicy
from saformer.core.policy import over_tensors
from saformer.core.rules import PaperOptions, PaperRule
from saformer.core.transformer import KVCache
from saformer.kernels.recording import Recorder, _room_for

needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
LANES = 5


class Eager:
    """Calls functions plainly, on any device."""

    def __init__(self, num_lanes: int, device: torch.device) -> None:
        pass

    def recorded(self, function, *, trimmed: bool = True):
        return function

    def both(self, first, second):
        return first(), second()

    def second(self, first, second):
        return Recorder.second(first, second)


class Rehearsed(Recorder):
    """What a GPU does, on a CPU: results always in one place, with a row for each lane that was
    made room for."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        super().__init__(capacity, device)
        self._records = True

    def _record(self, play):
        results = play()

        def replay():
            over_tensors(lambda kept, new: kept.copy_(new), results, play())
            return results

        return replay


def episodes(policy, steps: int = 4):
    """Decisions under limits from hopeless to generous: of all lanes, of fewer, of one begun anew,
    of all again."""
    generator = torch.Generator().manual_seed(0)
    limits = torch.tensor([[0.5], [7.93], [8.2], [9.0], [30.0]])
    policy.reset(torch.zeros(LANES, 2), limits)
    for number, lanes in enumerate(
        [None, torch.tensor([0, 2, 3]), torch.tensor([3]), None, torch.tensor([4, 1, 0])]
    ):
        if number == 3:
            policy.reset(torch.zeros(1, 2), [[7.0]], lanes=torch.tensor([1]))
        count = LANES if lanes is None else len(lanes)
        for _ in range(steps):
            yield policy.act(torch.randn(count, 2, generator=generator), lanes)
            policy.observe(
                torch.zeros(count, 1), 0.5 * torch.rand(count, 1, generator=generator), lanes
            )


@pytest.fixture
def model(agent):
    return copy.deepcopy(agent.model).cuda()


def policy_of(model, *, recorder=Recorder, **changes) -> SaFormerPolicy:
    rule = PaperRule(PaperOptions(candidates=8, **changes))
    return SaFormerPolicy(model, rule, window=4, recorder=recorder)


def assert_same(decisions, others) -> None:
    rounds = set()
    for one, other in zip(decisions, others, strict=True):
        for name in ("chosen", "num_rounds", "num_safe", "fell_back"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name
        assert torch.allclose(one.action, other.action, atol=1e-5)
        assert torch.allclose(one.candidates.return_to_go, other.candidates.return_to_go, atol=1e-4)
        rounds |= set(one.num_rounds.tolist())
    assert len(rounds) > 1, "some decisions took several rounds"


@needs_a_gpu
@pytest.mark.parametrize("fallback", ["mean", "likely"])
def test_replayed_decisions_are_the_computed_ones(model, fallback):
    replayed = list(episodes(policy_of(model, fallback=fallback)))
    assert_same(replayed, list(episodes(policy_of(model, fallback=fallback, recorder=Eager))))


def test_rehearsed_decisions_are_the_computed_ones(agent):
    """All of it but the GPU, over decisions that are kept. Seen to fail when results are not the
    caller's own."""
    computed = list(episodes(policy_of(agent.model)))
    assert_same(list(episodes(policy_of(agent.model, recorder=Rehearsed))), computed)


def test_a_decision_is_the_callers_own(agent):
    """Seen to fail when its tensors may not be changed, or when changing them changes the past."""
    policy = policy_of(agent.model)
    policy.reset(torch.zeros(1, 2), 9.0)
    decision = policy.act(torch.zeros(1, 2))
    before = policy.history.action.clone()
    decision.action.add_(1.0)
    assert torch.equal(policy.history.action, before)


def test_what_a_recording_reads_stays_in_its_place(agent):
    """Limits, spendings and the past are changed in place. Seen to fail when a new limit is put in
    another place."""
    policy = policy_of(agent.model)
    policy.reset(torch.zeros(2, 2), [[30.0], [30.0]])
    budget, history = policy.budget, policy.history

    def places() -> list[int]:
        kept = (budget.limit, budget.spent, budget.num_steps, history.state, history.timestep)
        return [tensor.data_ptr() for tensor in kept]

    before = places()
    policy.act(torch.zeros(2, 2))
    policy.observe(torch.zeros(2, 1), torch.ones(2, 1))
    policy.budget.limit = torch.tensor([[0.5], [30.0]])
    assert policy.act(torch.zeros(2, 2)).fell_back.tolist() == [True, False]
    policy.reset(torch.zeros(2, 2), [[20.0], [30.0]])
    assert policy.budget is budget
    assert policy.history is history
    assert places() == before


@needs_a_gpu
def test_a_decision_stays_as_it_was(model):
    """Later replays do not reach into what was handed out."""
    policy = policy_of(model)
    steps = episodes(policy)
    first = next(steps)
    kept = over_tensors(torch.clone, first)
    for _ in steps:
        pass
    for name in ("action", "return_to_go", "chosen", "num_rounds"):
        assert torch.equal(getattr(first, name), getattr(kept, name)), name


@needs_a_gpu
def test_a_seed_repeats_and_a_reset_keeps_recordings(model):
    policy = policy_of(model)
    once, twice = list(episodes(policy)), list(episodes(policy))
    for one, other in zip(once, twice, strict=True):
        assert torch.equal(one.action, other.action)


@needs_a_gpu
def test_what_cannot_be_recorded_is_computed(model):
    """A risk that asks the host; three lanes, so that the reading has more rows than there are
    lanes."""

    def waits(forecast):
        return forecast.mean + 0.0 * forecast.mean.sum().item()

    rule = PaperRule(PaperOptions(candidates=8), risk=waits)
    policy = SaFormerPolicy(model, rule, window=4, recorder=Recorder)
    policy.reset(torch.zeros(LANES, 2), torch.full((LANES, 1), 8.0))
    lanes = torch.tensor([0, 2, 3, 4])
    with pytest.warns(UserWarning, match="not recorded"):
        decision = policy.act(torch.zeros(4, 2), lanes)
    plain = policy_of(model, recorder=Eager)
    plain.reset(torch.zeros(LANES, 2), torch.full((LANES, 1), 8.0))
    assert torch.equal(decision.chosen, plain.act(torch.zeros(4, 2), lanes).chosen)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = policy.act(torch.zeros(4, 2), lanes)
    assert torch.equal(again.chosen, plain.act(torch.zeros(4, 2), lanes).chosen)


@needs_a_gpu
def test_recordings_among_garbage_spoil_no_new_one(model):
    """Collected while another was made, they did: "decisions are not recorded"."""
    for _ in episodes(policy_of(model)):
        pass  # recorded, and referred to by itself alone from here on
    usual = gc.get_threshold()
    try:
        policy = policy_of(model)
        gc.set_threshold(1, 1, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in episodes(policy):
                pass
    finally:
        gc.set_threshold(*usual)


@needs_a_gpu
def test_memory_of_a_gpu_does_not_grow(model):
    policy = policy_of(model)
    for _ in episodes(policy, steps=10):
        pass
    allocated = []
    for _ in range(2):
        for _ in episodes(policy, steps=50):
            pass
        gc.collect()
        allocated.append(torch.cuda.memory_allocated())
    assert allocated[0] == allocated[1]


def bytes_of_all_tensors() -> int:
    """In this process, as far as Python can reach them."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter):
            storages[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    return sum(storages.values())


def test_memory_does_not_grow_with_the_episode(agent):
    """Seen to fail when decisions are kept."""
    policy = agent.policy()
    policy.reset(torch.zeros(2, 2), [[4.0], [9.0]])
    sizes = []
    for step in range(80):
        policy.act(torch.zeros(2, 2))
        policy.observe(torch.zeros(2, 1), torch.full((2, 1), 0.01))
        if step in (10, 79):
            sizes.append(bytes_of_all_tensors())
    assert sizes[0] == sizes[1]


def test_few_sizes_hold_any_number_of_lanes():
    """Seen to fail when a recording is too small."""
    assert [_room_for(n, 64) for n in (1, 2, 3, 16, 17, 32, 33, 64)] == [
        1,
        2,
        4,
        16,
        32,
        32,
        64,
        64,
    ]
    assert [_room_for(n, 5) for n in range(1, 6)] == [1, 2, 3, 5, 5]
    assert len({_room_for(n, 720) for n in range(1, 721)}) == 11


def test_over_tensors_reaches_all_of_them():
    """Seen to fail when what lies in a tuple is left out."""
    cache = KVCache((torch.ones(2), torch.ones(2)), (torch.ones(2),), torch.zeros(2))
    doubled = over_tensors(lambda one, other: one + other, cache, cache)
    assert [key.tolist() for key in doubled.keys] == [[2.0, 2.0], [2.0, 2.0]]
    assert doubled.values[0].tolist() == [2.0, 2.0]
