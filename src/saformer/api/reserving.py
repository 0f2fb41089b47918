"""Give a trained run a reserve: what verification by it needs to know beside the run's own
networks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from saformer.agents.agent import Agent
from saformer.agents.saformer import SaFormerAgent
from saformer.api.listener import Listener
from saformer.api.run_data import data_of
from saformer.core.proposals import ExecutionOptions, resolved
from saformer.reserve import Reserve
from saformer.runs.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from saformer.runs.export import read_groups
from saformer.runs.run import Run
from saformer.training.reserve import fit_reserve

GROUP, RULE = "reserve", 5
"""Of what is kept, and the number of the rule that acts by it: a run's older reserve is made anew,
an export's does without what it lacks, and what was calibrated by an older rule is to be calibrated
again."""


def with_reserve(agent: Agent, run: Run) -> Agent:
    """The agent, with the run's reserve if it has one."""
    if isinstance(agent, SaFormerAgent):
        agent.reserve = kept_reserve(agent, run)
    return agent


def kept_reserve(agent: SaFormerAgent, run: Run) -> Reserve | None:
    """What was prepared for this run, or exported with it."""
    if run.is_export:
        weights = read_groups(run, GROUP, optional=True)
    elif run.reserve_path.exists():
        kept = load_checkpoint(run.reserve_path, groups=(GROUP,))
        is_this = (kept.facts.get("spec"), kept.facts.get("version")) == (run.spec.digest, RULE)
        weights = kept.groups[GROUP] if is_this else {}
    else:
        weights = {}
    if not weights:
        return None
    reserve = Reserve(agent.dimensions)
    reserve.load_state_dict(weights, strict=not run.is_export)
    return reserve.to(agent.model.normalizer.scale("state").device).eval().requires_grad_(False)


def prepared(
    agent: SaFormerAgent,
    run: Run,
    options: ExecutionOptions,
    *,
    data: str | Path | None = None,
    listener: Listener | None = None,
) -> ExecutionOptions:
    """The options with a verification that is named, and the agent with a reserve if that needs
    one.

    Exports of older versions have none: they verify by the paper's rule unless told otherwise.
    """
    if options.verification in ("reserve", "told") or (
        options.verification == "auto" and not run.is_export
    ):
        prepare_reserve(agent, run, data=data, listener=listener)
    return resolved(options, has_reserve=agent.reserve is not None)


def within_a_shield(given: Any, options: Any) -> Any:
    """How to act in a shield: unless it was said how, without ending episodes early, since the
    limit is kept anyway."""
    is_usual = (
        isinstance(given, ExecutionOptions)
        and given.verification == "auto"
        and options.verification == "reserve"
    )
    return replace(options, verification="told", candidates=1) if is_usual else options


def prepare_reserve(
    agent: SaFormerAgent,
    run: Run,
    *,
    data: str | Path | None = None,
    listener: Listener | None = None,
) -> None:
    """Fit a reserve for the agent on its run's data, and keep it beside the run; at once if it is
    there already."""
    if agent.reserve is not None:
        return
    if run.is_export:
        raise ValueError(
            f"{run.path} was exported without a reserve, by an older version: export its run "
            "again, or name another "
            "verification (--verification paper)"
        )
    listener = listener or Listener()
    listener.say("fitting what steps cost, for verification by reserve (once for each run)")
    agent.reserve = fit_reserve(
        agent.model, data_of(run, listener, data=data), window=agent.config.window
    )
    weights = {name: value.cpu() for name, value in agent.reserve.state_dict().items()}
    save_checkpoint(
        run.reserve_path, Checkpoint({GROUP: weights}, {"spec": run.spec.digest, "version": RULE})
    )
