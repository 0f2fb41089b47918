"""Every agent on generated data, trained together: a row of JSON for each agent, task, limit and
seed.

python -m benchmarks.agents --work DIR --out DIR [--agents cpq bcq_lag ...] [--updates 20000]
[--compile record] python -m benchmarks.agents --out DIR --show             tables in Markdown, and
BCQ-L's curve (bcq_lag.svg)

What has finished is never redone: runs lie under --work, rows in rows.jsonl under --out, appended
as they come.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saformer import Listener, build_data, data_of, load, sweep, train_together
from saformer.agents.cpq import CPQAgent
from saformer.agents.registry import KINDS, find_kind
from saformer.core.policy import Decision, Policy
from saformer.data.canonical import frontier_of
from saformer.data.limits import Limit, parse_limit
from saformer.data.relabel import RelabelledStore, relabelled
from saformer.data.store import TrajectoryStore
from saformer.evaluation.evaluate import Terms, evaluate_policy
from saformer.runs.run import Run
from saformer.training.loop.presets import Preset, paper

TASKS = ("hopper-medium", "halfcheetah-medium", "walker2d-medium")
LIMITS = {"walker2d-medium": ("p10", "p20", "p50"), "hopper-medium": ("p10", "p20", "p30", "p50")}
"""Judged under these where the agent can be told any limit; elsewhere, and for the rest, p20 and
p50."""
VARIANTS = {
    "bcq_lag": {"bcq_lag, 3 candidates": {"candidates": 3}},
    "cdt": {"cdt, sampled": {"noise": "normal"}},
    "coptidice": {"coptidice, mean action": {"sample": False}},
}
"""Other ways to act that are judged beside the usual one: docs/log.md says why."""
FRESH_SEED, FRESH_STEPS = 1, 20_000
"""Of data that no agent was trained on."""
VALUE, EXPECTED_COST = "multiplier/watched/value_0", "multiplier/watched/expected_cost_0"
Row = dict[str, Any]


class Rows:
    """What was found so far."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "rows.jsonl"

    def __iter__(self) -> Iterator[Row]:
        if self.path.exists():
            yield from (json.loads(line) for line in self.path.read_text().splitlines())

    def of(self, **facts: Any) -> list[Row]:
        """Those that say all of this."""
        return [row for row in self if all(row.get(name) == value for name, value in facts.items())]

    def add(self, row: Row) -> None:
        """One more."""
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


class SideBySide:
    """Several policies, each with lanes of its own, as one: their environments are stepped
    together."""

    def __init__(self, policies: Sequence[Policy], num_lanes: Sequence[int]) -> None:
        ends = np.cumsum(num_lanes).tolist()
        self._parts = [
            (policy, end - own, end)
            for policy, own, end in zip(policies, num_lanes, ends, strict=True)
        ]

    def reset(self, state: Tensor, limit: Tensor, lanes: Tensor | None = None) -> None:
        """Begin episodes on all lanes."""
        for policy, first, end in self._parts:
            policy.reset(state[first:end], limit[first:end])

    def act(self, state: Tensor, lanes: Tensor) -> Decision:
        """Choose one action per lane."""
        decided = [
            policy.act(state[mine], lanes[mine] - first).action
            for policy, first, mine in self._mine(lanes)
        ]
        return Decision(torch.cat(decided))

    def observe(self, reward: Tensor, cost: Tensor, lanes: Tensor) -> None:
        """Tell each what its lanes brought."""
        for policy, first, mine in self._mine(lanes):
            policy.observe(reward[mine], cost[mine], lanes[mine] - first)

    def _mine(self, lanes: Tensor) -> Iterator[tuple[Policy, int, Tensor]]:
        for policy, first, end in self._parts:
            mine = (lanes >= first) & (lanes < end)
            if mine.any():
                yield policy, first, mine


def judged_under(agent: str, task: str) -> tuple[str, ...]:
    """The limits that an agent is judged under."""
    limits = LIMITS.get(task, ("p20", "p50"))
    return limits if task != "hopper-medium" or agent in ("saformer", "cdt") else ("p20", "p50")


def preset_of(agent: str, options: argparse.Namespace) -> Preset:
    """The paper's sizes, for as many updates as asked for."""
    usual, updates = paper(agent), options.updates
    fit = replace(
        usual.fit,
        updates=updates,
        warmup_updates=min(1000, updates // 10),
        compile=options.compile,
        report_every=max(1, updates // 100),
        checkpoint_every=max(1, updates // 4),
    )
    return Preset(usual.agent, fit)


def train(agent: str, options: argparse.Namespace) -> list[Run]:
    """A run for every task and seed and, where the agent is trained for one, limit."""
    said: list[float] = [time.perf_counter()]

    def tell(update: int, updates: int, _: Any) -> None:
        if time.perf_counter() - said[0] > 10:
            said[0] = time.perf_counter()
            log(f"{agent}: update {update} of {updates}")

    limits = sorted({limit for task in options.tasks for limit in judged_under(agent, task)})
    return train_together(
        options.tasks,
        seeds=range(options.seeds),
        agent=agent,
        limit=limits if find_kind(agent).has_one_limit else None,
        preset=preset_of(agent, options),
        data_steps=options.data_steps,
        out=options.work / "runs",
        device=options.device,
        listener=Listener(
            say=lambda text: log(f"{agent}: {text}") if "failed" in text else None, training=tell
        ),
    )


def judge(
    agent: str,
    task: str,
    runs: Sequence[Run],
    rows: Rows,
    options: argparse.Namespace,
    *,
    name: str,
    acting: Row,
) -> None:
    """All cells of an agent and a task in one rollout, in rows of this name."""
    wanted = judged_under(agent, task)
    known = {(row["limit"], row["seed"]) for row in rows.of(kind="cell", agent=name, task=task)}
    policies, cells = [], []
    data = data_of(runs[0])
    for run in runs:
        own = [run.spec.limit] if run.spec.limit else list(wanted)
        missing = [
            limit for limit in own if limit in wanted and (limit, run.spec.seed) not in known
        ]
        if missing:
            trained = load(run.path, device=options.device)
            policies.append((trained.policy(**acting), len(missing) * options.episodes))
            cells += [(run, parse_limit(limit, data)) for limit in missing]
    if not cells:
        return
    limits = [limit for _, limit in cells]
    found = evaluate_policy(
        SideBySide(*zip(*policies, strict=True)),
        data,
        limits,
        episodes=options.episodes,
        workers=options.workers,
        terms=Terms([frontier_of(run.spec.task, data, limit) for run, limit in cells]),
    )
    lengths = np.array([row.num_steps for row in found.rows]).reshape(len(cells), -1).mean(1)
    for (run, limit), verdict, length in zip(cells, found.verdicts, lengths, strict=True):
        rows.add(
            cell(
                name,
                task,
                limit,
                run.spec.seed,
                verdict,
                updates=options.updates,
                length=float(length),
            )
        )


def cell(agent: str, task: str, limit: Limit, seed: int, verdict: Any, **more: Any) -> Row:
    """One row of the table."""
    return {
        **{"kind": "cell", "agent": agent, "task": task, "limit": limit.name, "seed": seed},
        **{"at_most": limit.values[0], "cost": verdict.mean_cost[0]},
        **{"return": verdict.mean_return, "within": verdict.within, "met": verdict.met},
        **{"share": verdict.frontier_share, "episodes": verdict.num_episodes, **more},
    }


def watch_multiplier(runs: Sequence[Run], rows: Rows) -> None:
    """BCQ-L: multiplier and expected cost over the updates, beside the limit."""
    for run in runs:
        spec = run.spec
        key = {
            "kind": "curve",
            "agent": spec.agent,
            "task": spec.task_name,
            "limit": spec.limit,
            "seed": spec.seed,
        }
        if not rows.of(**key):
            metrics = [row for row in run.metrics() if VALUE in row]
            curve = [[row[n] for row in metrics] for n in ("update", VALUE, EXPECTED_COST)]
            rows.add({**key, "at_most": spec.agent_config["limit"][0], "curve": curve})


@torch.no_grad()
def ask_critic(runs: Sequence[Run], rows: Rows) -> None:
    """CPQ: what the cost critic says of evenly drawn actions and of the data's own, in states that
    it never saw."""
    for run in runs:
        spec = run.spec
        key = {
            "kind": "critic",
            "agent": spec.agent,
            "task": spec.task_name,
            "limit": spec.limit,
            "seed": spec.seed,
        }
        if rows.of(**key):
            continue
        agent, fresh = load(run.path, device="cpu"), fresh_data(spec.task_name)
        assert isinstance(agent, CPQAgent)
        model = agent.model.eval()
        steps = agent.sampler(fresh).sample(4096, torch.Generator().manual_seed(0))
        steps = model.units.transitions(steps)
        generator = torch.Generator().manual_seed(1)
        evenly = 2 * torch.rand(steps.action.shape, generator=generator) - 1
        said = [
            model.units.raw_cost(
                model.cost_critic(model.timed(steps.state, steps.timestep), a).mean(0)
            )
            .mean()
            .item()
            for a in (evenly, steps.action)
        ]
        rows.add({**key, "uniform": said[0], "data": said[1]})


def fresh_data(task: str) -> RelabelledStore:
    """States that no agent was trained on: another seed of the same behaviours."""
    path = build_data(task, steps=FRESH_STEPS, seed=FRESH_SEED)
    return relabelled(TrajectoryStore.open(path), ())


def ask_for_returns(runs: Sequence[Run], rows: Rows, options: argparse.Namespace) -> None:
    """DT: what it earns if asked for more or less, beside what the behaviour earned."""
    for run in runs:
        spec = run.spec
        key = {"kind": "sweep", "agent": spec.agent, "task": spec.task_name, "seed": spec.seed}
        if rows.of(**key) or spec.seed >= options.swept_seeds:
            continue
        earned = data_of(run).episode_return
        found = sweep(
            run.path,
            limits=["p50"],
            episodes=options.episodes,
            device=options.device,
            workers=options.workers,
        )
        tried = [[trial.value, trial.mean_return, trial.mean_cost[0]] for trial in found.trials]
        rows.add({**key, "behaviour": float(earned.mean()), "tried": tried})


def log(text: str, began: float = time.perf_counter()) -> None:
    """Progress, with the seconds since the program began."""
    print(f"{time.perf_counter() - began:7.1f} s  {text}", flush=True)


def timed(what: str, do: Callable[[], Any]) -> Any:
    """Do it and say how long it took."""
    began = time.perf_counter()
    done = do()
    log(f"{what}: {time.perf_counter() - began:.1f} s")
    return done


def measure(options: argparse.Namespace) -> None:
    """Everything that is missing."""
    rows = Rows(options.out)
    for task in options.tasks:
        timed(f"data of {task}", functools.partial(build_data, task, steps=options.data_steps))
    for agent in options.agents:
        runs = [
            run
            for run in timed(f"{agent}: trained", functools.partial(train, agent, options))
            if run.is_done
        ]
        for task in options.tasks:
            own = [run for run in runs if run.spec.task == task]
            if not own:
                continue
            for name, acting in {agent: {}, **VARIANTS.get(agent, {})}.items():
                do = functools.partial(
                    judge, agent, task, own, rows, options, name=name, acting=acting
                )
                timed(f"{name}, {task}: judged", do)
        if agent == "bcq_lag":
            watch_multiplier(runs, rows)
        if agent == "cpq":
            timed("cpq: critic asked", functools.partial(ask_critic, runs, rows))
        if agent == "dt":
            timed("dt: swept", functools.partial(ask_for_returns, runs, rows, options))


def main() -> None:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--work", type=Path, default=Path("agents-work"), help="where runs are kept"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("agents-out"), help="where rows and figures are kept"
    )
    parser.add_argument("--agents", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument(
        "--swept-seeds", type=int, default=1, help="of how many seeds DT's returns are swept"
    )
    parser.add_argument("--updates", type=int, default=20_000)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument(
        "--data-steps", type=int, default=None, help="by default the canonical million"
    )
    parser.add_argument("--compile", default="auto", choices=("auto", "record", "off"))
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--workers", type=lambda text: text if text == "auto" else int(text), default="auto"
    )
    parser.add_argument(
        "--show", action="store_true", help="print tables and draw the figure; measure nothing"
    )
    options = parser.parse_args()
    if options.show:
        from scripts.figures.agents import show  # Matplotlib may not be where agents are trained

        show(Rows(options.out), options.out)
    else:
        measure(options)


if __name__ == "__main__":
    main()
