"""Wrong calls of policies and wrong commands: each is refused in our words, and changes nothing."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch

from saformer.agents.checked import CheckedPolicy
from scripts.attack.campaign import Campaign
from scripts.attack.numbers import agents
from scripts.attack.process import run
from scripts.attack.world import command, copy

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
COMMANDS = """train nowhere
train store --agent nobody
train store --updates -1
train store --width 17 --heads 4
train store --held-out 2
train store --agent bc_safe
train store --criteria nothing
train store --criteria 1/0
train store --criteria __import__('os')
train store --resume --out never
train store --out run
train store --out store
train
evaluate nowhere
evaluate store
evaluate run --limits p200
evaluate run --limits much
evaluate run --limits nan
evaluate run --limits -1
evaluate run --episodes 0
evaluate run --rate 2
evaluate run --rate 0.123
evaluate run --candidates 0
evaluate run --rule nobody
evaluate run --environment Nowhere-v0
evaluate run --workers -3
evaluate run --data nowhere
evaluate run --device abacus
evaluate pretrained:nobody
evaluate --limits p50 run
calibrate run --rate 0
calibrate run --margins 2
calibrate run --confidence 1
sweep run --option nothing --values 1
export run run
export exported again
export nowhere again
finetune run
finetune run --limit p50 p50
finetune exported --limit 1
finetune run --limit 1 --attenuation 2
data import
data import nowhere.csv
data import log.csv --state nothing
data import log.csv --state s --action a --reward s --episode ep --out run
data inspect nowhere
data inspect log.hdf5 --limits p101
data build nobody
data build store
data build allowance --steps 0
data export store bad
data check nowhere
doctor store/steps
experiment nobody
experiment thresholds --render nowhere
nonsense
data nonsense""".splitlines()


def call_wrongly(policy: CheckedPolicy, case: str) -> str | None:
    """What is wrong with how this call of the table is answered."""
    num_lanes, verbs, arguments, keywords = CALLS[case]
    if num_lanes:
        policy.reset(TWO[:num_lanes], 1.0)
    *before, verb = verbs.split()
    usual: dict[str, Any] = {"act": (TWO[:num_lanes],)}
    usual["observe"] = ([0.0] * num_lanes, [0.0] * num_lanes)
    for each in before:
        getattr(policy, each)(*usual[each])
    spent = policy.budget.spent.clone()
    problem: str | None = "was accepted"
    try:
        getattr(policy, verb)(*arguments, **keywords)
    except ValueError as error:
        is_clear = re.search("got|expect|must|call|needed|NaN", str(error))
        problem = None if is_clear and "\n" not in str(error) else f"says {error}"
    except Exception as error:
        problem = f"raised {error!r}"
    return problem if torch.equal(policy.budget.spent, spent) else "was booked"


def attempt(seed: int) -> str | None:
    """The first are commands, the others calls, of one kind of agent after the other."""
    if seed < len(COMMANDS):
        words = COMMANDS[seed]
        ended = run(lambda: command(words), copy("folder", words))
        is_refused = ended.code in {1, 2} and ended.said.strip()
        return ended.problem or (
            None if is_refused else f"{words}: exit {ended.code}, {ended.said}"
        )
    kind, index = divmod(seed - len(COMMANDS), len(CALLS))
    case, agent = list(CALLS)[index], agents()[kind % len(agents())]
    problem = call_wrongly(CheckedPolicy(agent.policy(), agent.dimensions), case)
    return f"{agent.name}, {case}: {problem}" if problem else None


CAMPAIGN = Campaign("misuses", len(COMMANDS) + 8 * len(CALLS), attempt)
