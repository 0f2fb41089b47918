"""One self-contained HTML page about a run that was rolled out."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from saformer.report import rollouts
from saformer.report.exploration import exploration
from saformer.report.frame import how_it_was_made, learning, section, write_page
from saformer.report.table import has_shield, numbers, summary, verdict_html
from saformer.runs.run import Run
from saformer.runs.spec import RunSpec

SHIELDED = (
    " Shielded: steps whose action was made cheaper so that no episode passes its limit. It says "
    "nothing of what was "
    "learnt: judge that without the shield."
)


def write_report(run: Run, path: str | Path, *, command: str | None = None) -> Path:
    """Describe an evaluated run for people to read. Needs nothing but the run's folder."""
    evaluation, trace = run.read_json("evaluation.json"), run.read_json("trace.json")
    spec = run.spec
    parts = [
        f"<h1>{html.escape(spec.task_name)}</h1>",
        f'<p class="note">{html.escape(spec.agent)}, seed {spec.seed}; {html.escape(_promise(spec, evaluation))}.</p>',
        f'<p class="lead">{html.escape(summary(evaluation))}.</p>',
        verdict_html(evaluation),
        '<p class="note">Met: the mean cost is within the limit. Frontier: the mean of the five best stored returns '
        "within the limit. Share: (return - lowest stored return) / (frontier - lowest stored "
        "return), at most 1.25. "
        "Redrawn: steps that took more than one round of proposals. Fallback: steps in which no "
        "round held a safe "
        "candidate (by reserve: in which the limit was at stake). "
        f"Both are 0 for agents that propose nothing.{_of_the_shield(evaluation)}</p>",
        section("Cost and return against the limit", rollouts.cost_and_return(evaluation)),
        section("Among the data", rollouts.among_the_data(evaluation, trace["data"])),
        section(
            "How episodes spent their budgets",
            rollouts.cost_paths(trace),
            "Up to five episodes a limit; the dot marks the end, green if within the limit.",
        ),
        *_decisions(trace),
        *exploration(run),
        *learning(run),
        *how_it_was_made(
            run,
            command,
            {"execution": evaluation["options"], "evaluation seed": evaluation["seed"]},
        ),
    ]
    return write_page(path, spec.task_name, parts)


def _of_the_shield(evaluation: dict[str, Any]) -> str:
    """What it means that there was one, if there was."""
    return SHIELDED if has_shield(evaluation) else ""


def _promise(spec: RunSpec, evaluation: dict[str, Any]) -> str:
    """What the policy was made for, and what it is judged by."""
    if spec.limit is not None:
        return f"trained for the limit {spec.limit} = {numbers(spec.agent_config['limit'])} alone"
    if spec.finetuning is not None:
        return f"fine-tuned to {', '.join(spec.finetuning['limits'])} from {spec.finetuning['from']['run']}"
    return (
        f"one policy, asked to keep {len(evaluation['verdicts'])} limits it was not retrained for"
    )


def _decisions(trace: dict[str, Any]) -> list[str]:
    if not trace["decisions"]:
        return []
    telling = max(trace["decisions"], key=lambda moment: moment["balance"])
    caption = (
        "Each point is a proposed return and action, at the cost that the critic forecasts for "
        "it. Candidates beyond "
        "the remaining budget are rejected; of the rest, the one that asks for the highest "
        "return is executed. "
        "By reserve, the expected one is, until the limit is at stake."
    )
    return [section("One decision", rollouts.decision(telling, trace["data"]["criteria"]), caption)]
