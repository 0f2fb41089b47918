"""What a decision asks of the host: little, and nothing that another decision could disturb."""

import copy
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from saformer.core.budget import Budget
from saformer.core.execution import SaFormerPolicy
from saformer.core.history import History
from saformer.core.policy import as_rows, to_device
from saformer.core.rules import NoCriticOptions, NoCriticRule, PaperOptions, PaperRule
from saformer.kernels.recording import Recorder
from saformer.rules.feasible import FeasibleOptions, FeasibleRule
from saformer.rules.outlook import Outlook
from tests.contracts.test_recording import LANES, Eager, Rehearsed, episodes, policy_of

CPU = torch.device("cpu")
needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
WAYS_TO_DECIDE = [
    PaperOptions(candidates=8),
    PaperOptions(candidates=8, action_noise="two_point", past_return="highest"),
    NoCriticOptions(candidates=8, past_return="expected"),
    FeasibleOptions(candidates=8, action_noise="two_point"),
]


def rule_of(options, dimensions, device="cpu", cost_discount=1.0):
    if isinstance(options, FeasibleOptions):
        return FeasibleRule(options, Outlook(dimensions).to(device), cost_discount)
    return (PaperRule if isinstance(options, PaperOptions) else NoCriticRule)(options)


class Operations(TorchDispatchMode):
    """Counts what torch is asked to do, but for what a recording replays."""

    def __init__(self) -> None:
        super().__init__()
        self.counts, self.replaying = Counter(), False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function._schema.name] += not self.replaying
        return function(*args, **(kwargs or {}))


@pytest.fixture
def operations() -> Operations:
    counted = Operations()

    class Counted(Rehearsed):
        def _record(self, play):
            replay = super()._record(play)

            def silently():
                counted.replaying = True
                results = replay()
                counted.replaying = False
                return results

            return silently

    counted.recorder = Counted
    return counted


def step(policy: SaFormerPolicy, lanes=None) -> None:
    policy.act(torch.zeros(LANES, 2), lanes)
    policy.observe(torch.zeros(LANES, 1), torch.zeros(LANES, 1), lanes)


def test_a_decision_asks_little_of_the_host(agent, operations):
    """57 operations with views, once 87, 14 of them to check limits and actions on the host; a few
    more in another torch. Seen to fail when whole results are cut."""
    policy = policy_of(agent.model, rounds=1, recorder=operations.recorder)
    policy.reset(torch.zeros(LANES, 2), torch.full((LANES, 1), 9.0))
    for lanes in (None, torch.arange(LANES)):
        step(policy, lanes)
        operations.counts.clear()
        with operations:
            step(policy, lanes)
        assert operations.counts["aten::clone"] == 13
        assert operations.counts.total() <= 60, operations.counts


@pytest.mark.parametrize("options", [NoCriticOptions(candidates=4), FeasibleOptions(candidates=4)])
def test_nobody_asks_for_rejections_where_nothing_is_rejected(agent, operations, options):
    """Seen to fail when the host waits for what every lane decided."""
    rule = rule_of(options, agent.model.dimensions)
    policy = SaFormerPolicy(agent.model, rule, window=4, recorder=operations.recorder)
    policy.reset(torch.zeros(LANES, 2), torch.full((LANES, 1), 9.0))
    with operations:
        step(policy)
    assert "aten::nonzero" not in operations.counts


def test_naming_all_lanes_changes_nothing(agent):
    """And naming some changes these alone. Seen to fail when every lane remembers what some did."""
    unnamed, named = (policy_of(agent.model) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    for policy in (unnamed, named):
        policy.reset(torch.zeros(LANES, 2), torch.tensor([[0.5], [7.9], [8.2], [9.0], [30.0]]))
    for _ in range(6):
        state, cost = (
            torch.randn(LANES, 2, generator=generator),
            torch.rand(LANES, 1, generator=generator),
        )
        for policy, lanes in ((unnamed, None), (named, torch.arange(LANES))):
            policy.act(state, lanes)
            policy.observe(torch.zeros(LANES, 1), cost, lanes)
        assert torch.equal(unnamed.history.steps, named.history.steps)
        assert torch.equal(unnamed.history.timestep, named.history.timestep)
    before, some = named.history.steps.clone(), torch.tensor([3, 1])
    named.act(torch.zeros(2, 2), some)
    changed = (named.history.steps != before).flatten(1).any(1)
    assert changed.nonzero()[:, 0].tolist() == [1, 3]


def test_one_cost_is_booked_on_every_lane():
    """Seen to fail when a cost that is the same for all is not spread over them."""
    budget = Budget(torch.full((3, 2), 9.0), cost_discount=0.5)
    for _ in range(2):
        budget.spend(torch.tensor([[4.0, 2.0]]), torch.tensor([2, 0]))
    assert budget.spent.tolist() == [[6.0, 3.0], [0.0, 0.0], [6.0, 3.0]]
    assert budget.num_steps.tolist() == [2, 0, 2]
    plain = Budget(torch.full((2, 1), 9.0))
    plain.spend(torch.tensor([[4.0]]), torch.arange(2))
    assert plain.spent.tolist() == [[4.0], [4.0]]


@pytest.mark.parametrize("options", [PaperOptions(6, 0.5), FeasibleOptions(6, 0.5)])
@pytest.mark.parametrize("action_noise", ["normal", "two_point"])
def test_what_was_drawn_stays_as_it_was(agent, options, action_noise):
    """A recording reads it in its place. Seen to fail when it is scaled there."""
    model = agent.model
    rule = rule_of(replace(options, action_noise=action_noise), model.dimensions)
    budget = Budget(torch.full((2, 1), 9.0))
    history = History(2, 3, model.dimensions, CPU)
    lanes = torch.arange(2)
    prefix = model.prefill(history.prompt(torch.zeros(2, 2), budget.rows(lanes), lanes))
    drawn = rule.options.draw(2, 1, torch.Generator().manual_seed(0))
    kept = [part.clone() for part in drawn]
    once, twice = rule.deviations(prefix, *drawn), rule.deviations(prefix, *drawn)
    assert all(torch.equal(part, before) for part, before in zip(drawn, kept, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(once, twice, strict=True))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_a_gpu)])
@pytest.mark.parametrize(
    "options", WAYS_TO_DECIDE, ids=lambda one: f"{type(one).__name__}-{one.action_noise}"
)
@pytest.mark.parametrize("cost_discount", [1.0, 0.9])
def test_replayed_and_plain_policies_go_the_same_way(agent, device, options, cost_discount):
    """Steps of all lanes, of fewer in any order, of one begun anew. Seen to fail when a row is not
    handed over."""
    model = copy.deepcopy(agent.model).to(device)
    rule = rule_of(options, model.dimensions, device, cost_discount)
    ways = []
    for recorder in (Recorder if device == "cuda" else Rehearsed, Eager):
        policy = SaFormerPolicy(
            model, rule, window=4, cost_discount=cost_discount, recorder=recorder
        )
        decisions = list(episodes(policy))
        ways.append((decisions, policy))
    (ours, replayed), (theirs, plain) = ways
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.chosen, other.chosen)
        assert torch.allclose(one.action, other.action, atol=1e-5)
    assert torch.allclose(replayed.history.steps, plain.history.steps, atol=1e-4)
    assert torch.equal(replayed.history.timestep, plain.history.timestep)
    assert torch.equal(replayed.budget.spent, plain.budget.spent)
    assert torch.equal(replayed.budget.num_steps, plain.budget.num_steps)


@pytest.mark.parametrize("size", [1, 2, 9, 704])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_number_is_found_wherever_it_stands(size, bad):
    """Seen to fail when only the least number is looked at."""
    for place in {0, size // 2, size - 1}:
        values = 9e29 * (-1.0) ** torch.arange(size)
        assert torch.equal(as_rows(values, size, "state", CPU)[0], values)
        values[place] = bad
        with pytest.raises(ValueError, match=r"the state of lane 0 is (nan|inf|-inf)"):
            as_rows(values, size, "state", CPU)


def test_no_rows_are_fine_and_too_little_is_not():
    """Seen to fail when what is too little passes."""
    assert as_rows(torch.zeros(0, 3), 3, "limit").shape == (0, 3)
    with pytest.raises(ValueError, match=r"cost of lane 7 is -0\.5: a number from 0 to"):
        as_rows([[1.0, 0.5, 2.0], [1.0, -0.5, 2.0]], 3, "cost", lanes=torch.tensor([3, 7]))


@needs_a_gpu
@pytest.mark.parametrize("pinned", [False, True])
def test_what_is_on_its_way_cannot_be_overwritten(pinned):
    """The stream is kept busy, so that the copy comes after the caller's next values."""
    device = torch.device("cuda")
    values = torch.ones(64, 11, pin_memory=pinned)
    busy = torch.randn(4096, 4096, device=device)
    for number in range(20):
        values.fill_(float(number))
        busy = busy @ busy / 4096
        there = to_device(values, device)
        values.fill_(-1.0)
        assert there.is_cuda
        assert (there == number).all()
