"""Figures and a table of what `scripts.figures.method_episodes` watched."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from saformer.report.figure import ACCEPTED, POINTS, REJECTED, STYLE, svg
from saformer.rules.reserve import EMPHASIS, num_narrow
from scripts.figures.method_episodes import (
    NARROW,
    PAPER,
    RESERVE,
    TOLD_THE_LIMIT,
    Account,
    Proposals,
    Scene,
)

LEFT, FORECAST, SHADE = "#24558f", "#c8641b", "#f3e0dd"
COLOURS = {PAPER: REJECTED, NARROW: POINTS, TOLD_THE_LIMIT: LEFT, RESERVE: ACCEPTED}
LINES = {PAPER: "--", NARROW: "-.", TOLD_THE_LIMIT: ":", RESERVE: "-"}
NOTE: Any = {"fontsize": 8.5}
SIZE = (9.0, 3.9)
"""In inches: 864 pixels, as wide as a page of documentation shows it."""


def table(scene: Scene) -> str:
    """What every way came to, and what there was to choose from in the step that is drawn."""
    needed = f"needed at first {scene.needed[0]:.1f}, margin {scene.margin:.1f}"
    known = f"stop cost {scene.stop_cost:.1f}, {needed}"
    lines = [f"{scene.task} under {scene.limit_name} = {scene.limit:.1f}, {known}"]
    for way, accounts in scene.accounts.items():
        costs = ", ".join(f"{account.cost:.0f}" for account in accounts)
        held = ", ".join(_share(account.held) for account in accounts)
        wide = sum(account.num_wide for account in accounts)
        earned = np.mean([account.earned[-1] for account in accounts])
        lines.append(f"{way}: {_within(accounts)}, costs {costs}, mean return {earned:.0f}")
        lines.append(f"    held {held} steps; {wide} took one of the second half")
        if way == RESERVE and scene.tells:
            told = ", ".join(
                f"{value:.0f}"
                for value in np.unique(np.concatenate([one.told for one in accounts]))
            )
            idle = ", ".join(_share(account.idles) for account in accounts)
            lines.append(f"    told {told}; idled {idle} steps")
    found = scene.accounts[RESERVE][scene.shown].proposals
    lines.append(f"shown: episode {scene.shown}" + (f", {_told(found)}" if found else ""))
    return "\n".join(lines)


def _told(found: Proposals) -> str:
    parts = [f"step {found.step}, chosen number {found.chosen}"]
    for name, some in _halves(found).items():
        spans = [
            f"{values[some].min():.2f} to {values[some].max():.2f}"
            for values in (found.forecast, found.step_cost)
        ]
        parts.append(f"{name}: forecast {spans[0]}, step cost {spans[1]}")
    return "; ".join(parts)


def budgets(scene: Scene) -> str:
    """One episode by the paper's rule and by reserve: what is left of the limit, and what is
    forecast to be needed."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.subplots(1, 2, sharex=True, sharey=True)
        for axis, way in zip(axes, (PAPER, RESERVE), strict=True):
            _budget(
                axis,
                scene.accounts[way][scene.shown],
                shaded={PAPER: "all rejected", RESERVE: "at stake"}[way],
            )
        by_paper, by_reserve = (scene.accounts[way][scene.shown].held for way in (PAPER, RESERVE))
        axes[0].set(
            title=f"the paper's rule: all proposals rejected in {_share(by_paper)} steps",
            ylabel="cost",
        )
        axes[1].set_title(f"by reserve: the limit is at stake in {_share(by_reserve)} steps")
        kept = scene.kept[
            : max(len(scene.accounts[way][scene.shown].left) for way in (PAPER, RESERVE))
        ]
        axes[1].plot(kept, color="k", lw=0.9, ls=":")
        axes[1].text(5, kept[0], f"{kept[0]:.0f}: needed and margin", va="bottom", **NOTE)
        return svg(figure)


def _budget(axis: Axes, account: Account, *, shaded: str) -> None:
    _shade(axis, account.held, shaded)
    axis.plot(
        account.forecast, color=FORECAST, lw=1.3, ls="--", label="forecast after the mean proposal"
    )
    axis.plot(account.left, color=LEFT, lw=1.6, label="remains of the limit")
    axis.axhline(0, color="k", lw=0.8)
    axis.set_xlabel("step")
    for patch in axis.legend(loc="upper right").get_patches():
        patch.set_edgecolor(POINTS)  # it may lie on its own colour
    end, colour = (len(account.held), account.left[-1]), ACCEPTED if account.is_within else REJECTED
    axis.plot(*end, "o", ms=6, color=colour)
    reached = f"ends after {end[0]} steps\ncost {account.cost:.0f}, limit {account.left[0]:.0f}"
    arrow = {"arrowstyle": "-", "lw": 0.6}
    axis.annotate(
        reached, end, (0.98, 0.5), textcoords="axes fraction", ha="right", arrowprops=arrow, **NOTE
    )


def stopping(scene: Scene) -> str:
    """How episodes go on once no more is left than is needed to see them out, and what there is to
    choose from then."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SIZE, layout="constrained")
        axis, beside = figure.subplots(1, 2)
        for way, accounts in scene.accounts.items():
            _endings(axis, accounts, scene.kept, way)
        axis.axhline(0, color="k", lw=0.8)
        axis.set(
            title=f"{len(accounts)} episodes each way",
            xlabel="steps since no more remained than needed and margin",
            ylabel="remains of the limit (below 0: passed)",
        )
        axis.legend(loc="lower left")
        _choice(beside, scene)
        return svg(figure)


def _endings(axis: Axes, accounts: list[Account], kept: NDArray[np.float64], way: str) -> None:
    lasts = [
        one.left[np.logical_or.accumulate(one.left <= kept[: len(one.left)])] for one in accounts
    ]
    for number, left in enumerate(lasts):
        label = f"{way}: {_within(accounts)}" if number == 0 else None
        axis.plot(left, color=COLOURS[way], ls=LINES[way], lw=1.3, label=label)
        axis.plot(range(len(left))[-1:], left[-1:], "o", ms=4.5, color=COLOURS[way])


def course(scene: Scene) -> str:
    """What the whole episode is forecast to cost, step by step, where it cannot be ended; and one
    choice."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SIZE, layout="constrained")
        axis, beside = figure.subplots(1, 2, width_ratios=(3, 2))
        for way, accounts in scene.accounts.items():
            account = accounts[scene.shown]
            whole = np.append(account.forecast, 0.0) + scene.limit - account.left
            axis.plot(whole, color=COLOURS[way], lw=1.2, label=f"{way}: cost {account.cost:.0f}")
            axis.plot(len(account.held), whole[-1], "o", ms=5, color=COLOURS[way])
        by_reserve = scene.accounts[RESERVE][scene.shown]
        held, least = (
            by_reserve.held,
            (scene.limit - by_reserve.left + scene.needed[: len(by_reserve.left)]),
        )
        _shade(axis, held, "at stake by reserve")
        if np.isfinite(least).all():
            axis.plot(least, color=LEFT, lw=1.2, ls="-.", label="by reserve: spent + needed")
        axis.axhline(scene.limit, color="k", lw=0.9, ls="--", label=f"limit {scene.limit:.0f}")
        axis.axhline(
            scene.limit - scene.margin, color="k", lw=0.9, ls=":", label="limit, less the margin"
        )
        axis.set(
            title=f"by reserve at stake in {_share(held)} steps",
            xlabel="step",
            ylabel="spent + forecast after the mean",
        )
        _legend_above(axis)
        _choice(beside, scene)
        return svg(figure)


def telling(scene: Scene) -> str:
    """What an episode spends and earns if the actor is told the limit, and if it is told what earns
    most."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SIZE, layout="constrained")
        spent, earned = figure.subplots(1, 2, sharex=True)
        for way, name in ((TOLD_THE_LIMIT, "told the limit"), (RESERVE, "told what earns most")):
            account, style = scene.accounts[way][scene.shown], {"color": COLOURS[way], "lw": 1.5}
            spent.plot(
                account.left[0] - account.left, label=f"{name}: cost {account.cost:.0f}", **style
            )
            earned.plot(account.earned, label=f"{name}: return {account.earned[-1]:.0f}", **style)
        account = scene.accounts[RESERVE][scene.shown]
        spent.axhline(scene.limit, color="k", lw=0.9, ls="--", label=f"limit {scene.limit:.0f}")
        least = scene.limit - scene.kept[: len(account.left)]
        spent.plot(least, color="k", lw=0.9, ls=":", label="limit, less needed and margin")
        for axis in (spent, earned):
            _shade(axis, account.idles, f"told {account.told.min():.0f}, to idle")
            axis.set_xlabel("step")
            _legend_above(axis)
        spent.set(
            title=f"told {account.told.max():.0f}, and to idle in {_share(account.idles)} steps",
            ylabel="spent",
        )
        earned.set(title="what that earns", ylabel="earned")
        return svg(figure)


def _choice(axis: Axes, scene: Scene) -> None:
    """What each proposal costs now and leads to; what lies below the line has a smaller price than
    the mean."""
    found = scene.accounts[RESERVE][scene.shown].proposals
    if found is None:
        axis.set_title("the limit was never at stake")
        return
    remarks = ("", "" if found.had_wide else " (not taken here)")
    for (name, some), colour, remark in zip(
        _halves(found).items(), (LEFT, FORECAST), remarks, strict=True
    ):
        style: Any = {"s": 13, "c": colour, "linewidths": 0, "alpha": 0.75, "label": name + remark}
        axis.scatter(found.step_cost[some], found.forecast[some], **style)
    mean, taken = (
        np.array([found.step_cost[number], found.forecast[number]]) for number in (0, found.chosen)
    )
    axis.plot(*mean, "k+", ms=9, mew=1.6, ls="", label="the mean")
    axis.plot(*taken, "o", ms=10, mfc="none", mec="k", mew=1.4, ls="", label="the one taken")
    above_and_below = np.array([found.forecast.max(), found.forecast.min()]) - mean[1]
    price = f"as dear as the mean: forecast + {EMPHASIS:.0f} x step cost"
    axis.plot(
        mean[0] - above_and_below / EMPHASIS, mean[1] + above_and_below, "k:", lw=0.9, label=price
    )
    axis.set(
        title=f"the {len(found.forecast)} proposals of step {found.step}",
        xlabel="step cost",
        ylabel="forecast",
    )
    _legend_above(axis)


def _legend_above(axis: Axes) -> None:
    """What the marks mean, in room made for it above them."""
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + 0.6 * (high - low))
    axis.legend(loc="upper left")


def _halves(found: Proposals) -> dict[str, slice]:
    middle = num_narrow(len(found.forecast))
    return {"spread as usual": slice(middle), "spread widely": slice(middle, None)}


def _shade(axis: Axes, flags: NDArray[np.bool_], label: str) -> None:
    edges = np.flatnonzero(np.diff([False, *flags, False])).reshape(-1, 2)
    for number, (start, end) in enumerate(edges):
        axis.axvspan(
            start, end, fc=SHADE, ec=SHADE, lw=0.4, zorder=0, label=label if number == 0 else None
        )


def _share(flags: NDArray[np.bool_]) -> str:
    return f"{flags.sum()} of {len(flags)}"


def _within(accounts: list[Account]) -> str:
    return f"{sum(account.is_within for account in accounts)} of {len(accounts)} within"
