"""One self-contained HTML page about a run."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from saformer import __version__
from saformer.report import figure
from saformer.report.table import summary, verdict_html
from saformer.runs.checkpoint import write_atomically
from saformer.runs.run import Run

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, Helvetica, Arial, sans-serif; color: #1c2128; background: #fff;
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0.2rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 0.4rem; }
p.lead { font-size: 1.05rem; } p.note, figcaption { color: #57606a; font-size: 0.9rem; }
figure { margin: 0.5rem 0; overflow-x: auto; } figure svg { width: 100%; min-width: 36rem; height: auto; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.88rem; white-space: nowrap; }
th, td { text-align: right; padding: 0.25rem 0.6rem; border-bottom: 1px solid #d8dee4; }
th:first-child, td:first-child { text-align: left; } td.met { background: #cfe8d8; } td.missed { background: #f3d1ce; }
pre { background: #f6f8fa; padding: 0.7rem; overflow-x: auto; font-size: 0.82rem; }
@media print { body { margin: 0; max-width: none; } figure, table { break-inside: avoid; } h2 { break-after: avoid; } }
"""


def write_report(run: Run, path: str | Path, *, command: str | None = None) -> Path:
    """Describe an evaluated run for people to read. Needs nothing but the run's folder."""
    evaluation, trace = run.read_json("evaluation.json"), run.read_json("trace.json")
    spec = run.spec
    sections = [
        f"<h1>{html.escape(spec.task)}</h1>",
        f'<p class="note">{html.escape(spec.agent)}, seed {spec.seed}; one policy, asked to keep '
        f"{len(evaluation['verdicts'])} limits it was not retrained for.</p>",
        f'<p class="lead">{html.escape(summary(evaluation))}.</p>',
        verdict_html(evaluation),
        '<p class="note">Met: the mean cost is within the limit. Frontier: the mean of the five best stored returns '
        "within the limit. Share: (return - lowest stored return) / (frontier - lowest stored return), at most 1.25. "
        "Redrawn: steps that took more than one round of proposals. Fallback: steps in which no round held a safe "
        "candidate.</p>",
        _section("Cost and return against the limit", figure.cost_and_return(evaluation)),
        _section("Among the data", figure.among_the_data(evaluation, trace["data"])),
        _section(
            "How episodes spent their budgets",
            figure.cost_paths(trace),
            "Up to five episodes a limit; the dot marks the end, green if within the limit.",
        ),
        *_decisions(trace),
        *_learning(run),
        "<h2>How this was made</h2>",
        f"<pre>{html.escape(_provenance(run, evaluation, command))}</pre>",
    ]
    body = "\n".join(sections)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    title = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>{html.escape(spec.task)}"
    head = f"<head>{title}</title><style>{STYLE}</style></head>"
    write_atomically(path, f"<!doctype html><html lang='en'>{head}<body>{body}</body></html>")
    return path


def _section(title: str, svg: str, caption: str = "") -> str:
    described = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return f"<h2>{html.escape(title)}</h2><figure>{svg}{described}</figure>"


def _decisions(trace: dict[str, Any]) -> list[str]:
    if not trace["decisions"]:
        return []
    telling = max(trace["decisions"], key=lambda moment: moment["balance"])
    caption = (
        "Each point is a proposed return and action, at the cost that the critic forecasts for it. Candidates beyond "
        "the remaining budget are rejected; of the rest, the one that asks for the highest return is executed."
    )
    return [_section("One decision", figure.decision(telling), caption)]


def _learning(run: Run) -> list[str]:
    rows = list(run.metrics())
    return [_section("Learning curves", figure.learning_curves(rows))] if rows else []


def _provenance(run: Run, evaluation: dict[str, Any], command: str | None) -> str:
    done = run.read_json("done.json") if run.is_done else {"updates": "unfinished"}
    facts = {
        "saformer": __version__,
        **({"command": command} if command else {}),
        "trained": done,
        "execution": evaluation["options"],
        "evaluation seed": evaluation["seed"],
        **run.spec.plain(),
    }
    return json.dumps(facts, indent=1)
