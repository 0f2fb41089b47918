"""What every page shares: its looks, its sections, and the account of how it was made."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from saformer import __version__
from saformer.files import write_atomically
from saformer.report import figure
from saformer.runs.run import Run

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, Helvetica, Arial, sans-serif; color: #1c2128; background: #fff;
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0.2rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 0.4rem; }
p.lead { font-size: 1.05rem; } p.note, figcaption { color: #57606a; font-size: 0.9rem; }
.caution { border-left: 4px solid #b5342d; background: #fbeceb; padding: 0.5rem 0.9rem; margin: 1rem 0; }
figcaption { margin-top: 0.4rem; } .caution ul { margin: 0.3rem 0; padding-left: 1.2rem; }
figure { margin: 0.5rem 0; overflow-x: auto; } figure svg { width: 100%; min-width: 36rem; height: auto; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.88rem; white-space: nowrap; }
th, td { text-align: right; padding: 0.25rem 0.6rem; border-bottom: 1px solid #d8dee4; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff;
  background-clip: padding-box; }
td.met { background: #cfe8d8; } td.missed { background: #f3d1ce; }
td.met, td.missed { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
dt { font-weight: 600; } dd { margin: 0 0 0.3rem 1.2rem; overflow-wrap: anywhere; }
pre { background: #f6f8fa; padding: 0.7rem; overflow-x: auto; font-size: 0.82rem; }
@media (max-width: 40rem) { table { font-size: 0.76rem; } th, td { padding: 0.2rem 0.3rem; } }
@media print {
  @page { size: A4 landscape; margin: 12mm; }
  body { margin: 0; max-width: none; font-size: 12px; }
  figure svg, tr { break-inside: avoid; } h2 { break-after: avoid; }
  .wide, figure { overflow: visible; } figure svg { min-width: 0; max-height: 165mm; }
  table { font-size: 0.68rem; } th, td { padding: 0.1rem 0.25rem; } thead { display: table-header-group; }
}
"""


def write_page(path: str | Path, title: str, parts: Sequence[str]) -> Path:
    """One self-contained page, whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    meta = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>{html.escape(title)}"
    head = f"<head>{meta}</title><style>{STYLE}</style></head>"
    body = "\n".join(parts)
    write_atomically(path, f"<!doctype html><html lang='en'>{head}<body>{body}</body></html>")
    return path


def section(title: str, svg: str, caption: str = "") -> str:
    """A figure under a heading."""
    described = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return f"<h2>{html.escape(title)}</h2><figure>{svg}{described}</figure>"


def learning(run: Run) -> list[str]:
    """The learning curves, if the run kept any metrics."""
    rows = list(run.metrics())
    limit = run.spec.agent_config.get("limit", ())
    return [section("Learning curves", figure.learning_curves(rows, limit))] if rows else []


def how_it_was_made(run: Run, command: str | None, facts: dict[str, Any]) -> list[str]:
    """The run's spec and these facts, to the letter."""
    done = run.read_json("done.json") if run.is_done else {"updates": "unfinished"}
    asked = {"command": command} if command else {}
    whole = {"saformer": __version__, **asked, "trained": done, **facts, **run.spec.plain()}
    return ["<h2>How this was made</h2>", f"<pre>{html.escape(json.dumps(whole, indent=1))}</pre>"]
