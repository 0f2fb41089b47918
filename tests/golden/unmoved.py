"""Digests of what every agent learns and decides: `python -m tests.golden.unmoved` compares,
`--write cpq` makes an agent's anew, `--write` all.

A change that claims to move no number is held against them, to the bit where the machine is the one
that made them. Tensors are known by what they hold, not by their names, so that a rename moves
nothing.
"""

import hashlib
import json
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from saformer.agents.agent import Agent
from saformer.agents.registry import create_agent
from saformer.core.rules import NoCriticOptions, PaperOptions, ProposalOptions
from saformer.data.relabel import RelabelledStore, relabel
from saformer.envs import allowance
from saformer.kernels.recording import replayed
from saformer.rules import fitting
from saformer.rules.feasible import FeasibleOptions
from saformer.training.loop.config import FitConfig
from saformer.training.loop.presets import PUBLISHED
from saformer.training.loop.trainer import Member, PackTrainer
from tests.brief import BRIEF
from tests.contracts.cases import CASES

FILE = Path(__file__).parent / "unmoved.json"
UPDATES = 200
RULES = {
    "paper, mean": PaperOptions(fallback="mean"),
    "paper, least cost": PaperOptions(fallback="least_cost"),
    "paper, likely": PaperOptions(fallback="likely", past_return="highest"),
    "none": NoCriticOptions(past_return="expected"),
    "none, two points": NoCriticOptions(action_noise="two_point"),
    "feasible": FeasibleOptions(),
    "feasible, two points": FeasibleOptions(action_noise="two_point", may_end=True),
}


def measure(*parts: str, names: Iterable[str] = tuple(CASES)) -> dict[str, Any]:
    """By agent: weights at first and after 200 updates, and decisions; packs of two, too."""
    data = relabel(allowance.dataset(episodes=200), allowance.criteria())
    measures = {"agents": _agent, "packs": _pack}
    return {
        part: {name: measures[part](name, data) for name in names} for part in parts or measures
    }


def machine() -> str:
    """Rounding is promised to be the same on this alone: chips of one instruction set differ."""
    facts = [
        platform.machine(),
        f"torch {torch.__version__}",
        torch.backends.cpu.get_cpu_capability(),
    ]
    chip = Path("/proc/cpuinfo")
    if chip.exists():
        entries = dict(re.findall(r"^([^\t:]+)\t*: (.*)$", chip.read_text(), re.MULTILINE))
        facts += [entries.get(name, "") for name in ("model name", "model", "stepping")]
        facts.append(hashlib.sha256(entries.get("flags", "").encode()).hexdigest()[:8])
    return ", ".join(facts)


def _agent(name: str, data: RelabelledStore) -> dict[str, Any]:
    agent = create_agent(data, config(name, dropout=0.1), seed=0)
    before = digests(agent.model.state_dict().values())
    trained(data, [agent])
    found = {
        "initial": before,
        "updated": digests(agent.model.state_dict().values()),
        "size": size(agent),
    }
    if name != "saformer":
        return {**found, "decisions": digests(decisions(agent, None))}
    with patch.object(fitting, "UPDATES", BRIEF):  # as where tests run
        agent.model.add_module(
            "outlook",
            fitting.fit_outlook(agent.model, data, window=agent.config.window, replay=replayed),
        )
    by_rule = {rule: digests(decisions(agent, _eight(options))) for rule, options in RULES.items()}
    return {**found, "outlook": digests(agent.outlook.state_dict().values()), "decisions": by_rule}


def config(name: str, *, dropout: float) -> Any:
    """As published, whatever our own defaults are."""
    return replace(CASES[name].config(dropout, 1), **PUBLISHED.get(name, {}))


def _eight(options: ProposalOptions) -> ProposalOptions:
    return replace(options, candidates=min(options.candidates, 8))


def _pack(name: str, data: RelabelledStore) -> list[list[str]]:
    """Two seeds as one program."""
    agents = [create_agent(data, config(name, dropout=0.0), seed=seed) for seed in (0, 1)]
    trained(data, agents)
    return [digests(agent.model.state_dict().values()) for agent in agents]


def trained(data: RelabelledStore, agents: list[Agent]) -> None:
    config = FitConfig(batch_size=16, warmup_updates=20, updates=UPDATES)
    members = [Member(agent, agent.sampler(data), seed) for seed, agent in enumerate(agents)]
    for agent in agents:
        agent.model.train()
    trainer = PackTrainer(members, config)
    while trainer.update < UPDATES:
        trainer.advance(UPDATES - trainer.update)
    trainer.unpack()


def decisions(agent: Agent, options: Any) -> Iterator[Tensor]:
    """Actions of eight steps under three limits."""
    policy = agent.policy(options)
    generator = torch.Generator().manual_seed(0)
    states = torch.rand(8, 3, 2, generator=generator)
    policy.reset(states[0], [[0.5], [7.93], [30.0]])
    for state in states:
        decision = policy.act(state)
        policy.observe(torch.ones(3, 1), decision.action.abs())
        yield decision.action


def digests(tensors: Iterable[Tensor]) -> list[str]:
    """Of each tensor's numbers, whatever its shape and name."""
    return sorted(
        hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:12]
        for tensor in tensors
    )


def size(agent: Agent) -> float:
    """Of all weights together: what may be compared between machines."""
    return sum(float(value.detach().double().abs().sum()) for value in agent.model.parameters())


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Where digests of the old are not among the new's; what is new alone is nobody's loss."""
    if isinstance(old, dict):
        for name in old:
            if name in new:
                yield from differences(old[name], new[name], f"{path}/{name}")
    elif isinstance(old, list) and old and isinstance(old[0], list):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{path}/{number}")
    elif isinstance(old, list):
        lost = Counter(old) - Counter(new)
        if lost:
            yield f"{path}: {lost.total()} of {len(old)} tensors moved"


if __name__ == "__main__":
    now = measure()
    if "--write" in sys.argv:
        names = sys.argv[sys.argv.index("--write") + 1 :] or list(CASES)
        before = json.loads(FILE.read_text())
        if before["machine"] != machine() and set(names) != set(CASES):
            sys.exit("another machine made the other agents' digests: write all of them anew")
        before["machine"] = machine()
        for part in ("agents", "packs"):
            before[part] |= {name: now[part][name] for name in names}
        FILE.write_text(json.dumps(before, indent=1) + "\n")
    else:
        moved = list(differences(json.loads(FILE.read_text()), now))
        print("\n".join(moved) or "nothing moved")
        sys.exit(bool(moved))
