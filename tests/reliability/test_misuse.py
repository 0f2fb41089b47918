"""Wrong calls of a policy: each is refused in our words, and changes nothing."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import saformer
from saformer.agents.checked import CheckedPolicy
from saformer.agents.registry import create_agent
from saformer.data.relabel import relabel
from saformer.envs import allowance
from saformer.envs.costed import Costed
from tests.conftest import randomise, tiny_config
from tests.contracts.cases import CASES
from tests.reliability.test_foreign_code import tiny_preset

STATE, TWO = [1.0, 1.0], [[1.0, 1.0], [0.5, 1.0]]
NAN, INF = float("nan"), float("inf")
NOT_NUMBERS = {
    "None": None,
    "a word": "fast",
    "words": ["a", "b"],
    "words in an array": np.array(["a", "b"]),
    "a dictionary": {"speed": 1.0},
    "an object": object(),
    "a set": {1.0, 2.0},
    "objects": np.array([object(), None]),
    "a ragged list": [[1.0], [1.0, 2.0]],
    "truth values": [True, False],
    "complex numbers": [1j, 2j],
    "bytes": b"ab",
    "a function": print,
    "None in a list": [None, 1.0],
    "a number too large": [10**400, 1],
}
WRONG_STATES = {
    **NOT_NUMBERS,
    "a scalar": 1.0,
    "one too few": [1.0],
    "one too many": [1.0, 2.0, 3.0],
    "two rows laid flat": [1.0, 2.0, 3.0, 4.0],
    "an axis too many": [[STATE]],
    "wrong columns": [[1.0], [2.0]],
    "no rows": np.zeros((0, 2)),
    "an empty list": [],
    "transposed": np.zeros((2, 3)),
    "NaN": [NAN, 1.0],
    "infinite": [INF, 1.0],
}
WRONG_COSTS = {
    **NOT_NUMBERS,
    "too many": [1.0, 2.0, 3.0],
    "columns": [[1.0, 2.0]],
    "an axis too many": [[[1.0]]],
    "no rows": np.zeros((0, 1)),
    "NaN": NAN,
    "infinite": INF,
    "negative": -1.0,
}
WRONG_LANES = {
    "None in a list": [None],
    "a word": "all",
    "a negative one": [-1],
    "one too high": [2],
    "one of them too high": [0, 5],
    "one twice": [0, 0],
    "a fraction": [0.5],
    "truth values": [True, False],
    "none": [],
    "a matrix": [[0]],
    "a number": 0,
    "an object": object(),
    "enormous": [10**30],
}


def table() -> dict[str, tuple[int, str, tuple, dict]]:
    """Case: lanes that were reset (0: none), the method, and how it is called."""
    cases = {
        "act before reset": (0, "act", (STATE,), {}),
        "observe before reset": (0, "observe", (0.0, 0.0), {}),
        "reset of a lane before all": (0, "reset", (STATE, 1.0, [0]), {}),
        "act twice": (1, "act act", (STATE,), {}),
        "observe before act": (1, "observe", (0.0, 0.0), {}),
        "observe twice": (1, "act observe observe", (0.0, 0.0), {}),
        "one state for two lanes": (2, "act", (STATE,), {}),
        "two states for one lane": (1, "act", (TWO,), {}),
        "three states for two lanes": (2, "act", ([*TWO, STATE],), {}),
        "a state too many for the lanes named": (2, "act", (TWO, [0]), {}),
        "a cost for two lanes": (2, "act observe", ([0.0, 0.0], 0.0), {}),
        "a reward for two lanes": (2, "act observe", (0.0, [0.0, 0.0]), {}),
        "limits of three for two": (0, "reset", (TWO, [1.0, 2.0, 3.0]), {}),
        "a reset of two lanes with one state": (2, "reset", (STATE, 1.0, [0, 1]), {}),
    }
    for name, wrong in WRONG_STATES.items():
        cases[f"reset in {name}"] = (0, "reset", (wrong, 1.0), {})
        cases[f"act in {name}"] = (1, "act", (wrong,), {})
    for name, wrong in WRONG_COSTS.items():
        cases[f"limit {name}"] = (0, "reset", (STATE, wrong), {})
        cases[f"cost {name}"] = (1, "act observe", (0.0, wrong), {})
    for name, wrong in NOT_NUMBERS.items():
        cases[f"reward {name}"] = (1, "act observe", (wrong, 0.0), {})
        if wrong is not None:
            cases[f"action {name}"] = (1, "act observe", (0.0, 0.0), {"action": wrong})
    for name, wrong in WRONG_LANES.items():
        cases[f"act on lanes {name}"] = (2, "act", (STATE, wrong), {})
        cases[f"reset of lanes {name}"] = (2, "reset", (STATE, 1.0, wrong), {})
        cases[f"observe of lanes {name}"] = (2, "act observe", (0.0, 0.0, wrong), {})
    return cases


CALLS = table()


@pytest.fixture(scope="module", params=["saformer", "cdt", "cpq"])
def policy(request):
    data = relabel(allowance.dataset(episodes=20), allowance.criteria())
    config = tiny_config() if request.param == "saformer" else CASES[request.param].config(0.0, 1)
    agent = create_agent(data, config, seed=0)
    randomise(agent.model)
    return SimpleNamespace(make=lambda: CheckedPolicy(agent.policy(), agent.dimensions))


def test_wrong_calls_are_refused_in_our_words(policy):
    """ValueError, one line, what was given or what is to be done. Seen to fail without the checks,
    142 of 178: TypeError, AttributeError and RuntimeError of torch, and 26 accepted in silence."""
    assert len(CALLS) >= 88
    problems = {}
    for case, (num_lanes, verbs, arguments, keywords) in CALLS.items():
        made = policy.make()
        if num_lanes:
            made.reset(TWO[:num_lanes], 1.0)
        *before, verb = verbs.split()
        usual = {"act": (TWO[:num_lanes],), "observe": ([0.0] * num_lanes, [0.0] * num_lanes)}
        for each in before:
            getattr(made, each)(*usual[each])
        spent = made.budget.spent.clone()
        try:
            getattr(made, verb)(*arguments, **keywords)
        except ValueError as error:
            if "\n" in str(error) or not re.search("got|expect|must|call|needed|NaN", str(error)):
                problems[case] = f"says {error}"
        except Exception as error:
            problems[case] = f"raised {error!r}"
        else:
            problems[case] = "was accepted"
        if not torch.equal(made.budget.spent, spent):
            problems[case] = "was booked"
    assert not problems, f"{len(problems)} of {len(CALLS)}: {problems}"


def test_right_calls_of_every_kind_are_accepted(policy):
    """Seen to fail when one row may not lack its axis."""
    made = policy.make()
    for state in (
        STATE,
        np.array(STATE),
        torch.tensor([STATE]),
        [[1, 1]],
        torch.ones(2).requires_grad_(),
    ):
        made.reset(state, 1)
        assert made.act(state).action.shape == (1, 1)
        made.observe(1, np.float64(0.25))
        assert made.budget.spent.tolist() == [[0.25]]
    made.reset(TWO, [1.0, 2.0])
    made.act([TWO[1]], [1])
    made.observe([0.0], [[0.5]], np.array([1]), action=[0.5])
    made.reset(TWO[1], 3.0, torch.tensor([1]))
    made.act(TWO)
    assert made.budget.limit.tolist() == [[1.0], [3.0]]


def test_more_candidates_than_memory_are_refused(agent):
    """They took all memory. Seen to fail when nobody computes it."""
    with pytest.raises(ValueError, match=r"1,000,000,000 candidates would take about [\d,]+ GB"):
        agent.policy(agent.changed(agent.options_of(agent.config, "paper"), {"candidates": 10**9}))


def test_what_people_get_is_checked(tmp_path):
    """Seen to fail when `Trained.policy` gives the policy itself."""
    how = {"data_steps": 400, "out": tmp_path / "run", "device": "cpu"}
    trained = saformer.train("allowance", preset=tiny_preset(), **how)
    with pytest.raises(ValueError, match="no episode has begun"):
        trained.policy().act(STATE)


class Scalar(allowance.Allowance):
    """Observes one number where its space says two."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self._when = when

    def reset(self, **keywords):
        state, info = super().reset(**keywords)
        return (0.5 if self._when == "reset" else state), info

    def step(self, action):
        state, *others = super().step(action)
        return (np.float32(0.5) if self._when == "step" else state[:1], *others)


@pytest.mark.parametrize("when", ["reset", "step", "short"])
def test_an_observation_is_never_stretched(when):
    """Seen to fail when it is broadcast over the state: (0.5, 0.5)."""
    environment = Costed(Scalar(when), ())

    def one_step():
        environment.reset(seed=0)
        environment.step(np.zeros(1))

    with pytest.raises(ValueError, match=r"gave an observation of shape \(1?,?\), its space says"):
        one_step()
