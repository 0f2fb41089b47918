"""Table 3 and Figure 4 from what `benchmarks.finetuning` found."""

from __future__ import annotations

from typing import Any

from saformer.report.figure import Line, Panel, line_panels


def table(found: dict[str, Any]) -> str:
    """The paper's Table 3, the returns that it leaves out, and what is asked of both."""
    rows = found["limits"]
    kinds = ["in sample" if row["in_sample"] else "below" for row in rows]
    seconds = ", ".join(f"{what} {spent:.0f} s" for what, spent in found["seconds"].items())
    return "\n".join(
        [
            _line("", kinds),
            _line("cost limit", [f"{row['limit']:.5g}" for row in rows]),
            *_lines(rows),
            "the same policies by our own rule",
            *_lines(found["by_ours"]),
            f"{found['limits_met']} of {len(rows)} limits met ({found['limits_met_before']} "
            "before) after "
            f"{found['new_trajectories']} new trajectories, {found['broke_ceiling']:.0%} of "
            "which broke the ceiling; "
            f"weights of the evaluation after {found['done']['kept_after']}",
            f"time: {seconds}",
        ]
    )


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    """What was found under each limit, before and after."""
    least = ["-" if row["least_return"] is None else f"{row['least_return']:.5g}" for row in rows]
    return [
        _line("mean cost, offline", [_number(row, "before", "mean_cost") for row in rows]),
        _line("mean cost, fine-tuned", [_number(row, "after", "mean_cost") for row in rows]),
        _line("met", ["yes" if row["met"] else "NO" for row in rows]),
        _line("mean return, offline", [_number(row, "before", "mean_return") for row in rows]),
        _line("mean return, fine-tuned", [_number(row, "after", "mean_return") for row in rows]),
        _line("return asked for", least),
        _line("earned", ["yes" if row["earned"] else "NO" for row in rows]),
    ]


def figure(found: dict[str, Any]) -> str:
    """The paper's Figure 4, and the returns beside it, as SVG."""
    limits = [row["limit"] for row in found["limits"]]

    def line(label: str, when: str, name: str) -> Line:
        return Line(label, limits, [_first(row[when][name]) for row in found["limits"]])

    asked = [
        (row["limit"], row["least_return"])
        for row in found["limits"]
        if row["least_return"] is not None
    ]
    costs = [line("offline", "before", "mean_cost"), line("fine-tuned", "after", "mean_cost")]
    returns = [line("offline", "before", "mean_return"), line("fine-tuned", "after", "mean_return")]
    panels = [
        Panel(found["task"], [*costs, Line("limit", limits, limits)], "limit", "mean episode cost"),
        Panel(
            "",
            [*returns, Line("asked for", *zip(*asked, strict=True))],
            "limit",
            "mean episode return",
        ),
    ]
    return line_panels(panels, columns=2)


def _number(row: dict[str, Any], when: str, name: str) -> str:
    return f"{_first(row[when][name]):.5g}"


def _first(value: Any) -> float:
    """Costs have a column per constraint; there is one here."""
    number: float = value[0] if isinstance(value, list | tuple) else value
    return number


def _line(name: str, cells: list[str]) -> str:
    return f"{name:<24}" + "".join(f"{cell:>10}" for cell in cells)
