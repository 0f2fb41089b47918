"""A policy's decision as a file that onnxruntime runs, and a manifest that says how to drive it."""

import hashlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saformer import __version__
from saformer.api.loaded import Changes, Loaded
from saformer.core.execution import SaFormerPolicy
from saformer.core.rules import ProposalOptions
from saformer.data.statistics import percentiles
from saformer.files import check_is_new, publish, unfinished_folder, write_json
from saformer.onnx.driver import GRAPH, MANIFEST, Arrays, GraphDriver
from saformer.onnx.graph import DecisionGraph
from saformer.runs.export import EXPORTS

TOLERANCE = 1e-4  # how far an action may be off torch's, in halves of its range
REHEARSED = 40  # decisions that are held against torch's before an export is kept
INPUTS = {
    "state": "what the machine shows now",
    "limit": "what the episode may cost, at least 0; may be moved between decisions",
    "cost": "what the last step cost, at least 0; not read as an episode begins",
    "executed": "the action that was executed last; not read as an episode begins",
    "return_noise": "standard normal numbers, drawn anew for each decision",
    "action_noise": "standard normal numbers, drawn anew for each decision",
    "memory": "zeros as an episode begins, then next_memory of the last decision",
}
OUTPUTS = {
    "action": "what to execute, from action_low to action_high",
    "next_memory": "the memory of the next decision",
    "remaining": "limit less what was spent before this decision; negative once it is passed",
    "forecast": "what the rule expects this decision and what follows to cost; NaN by rule none",
    "num_safe": "candidates of the deciding round that keep the budget",
    "num_rounds": "rounds of proposals until one did not fall back",
    "fell_back": "whether no candidate was admissible, so that the fallback decided",
}


def export_graph(
    loaded: Loaded, out: Path, rule: str | None = None, options: Changes = None
) -> Path:
    """Write a decision by these options as a graph, with a manifest, to a new folder."""
    check_is_new(out, EXPORTS)
    loaded = replace(loaded, context=replace(loaded.context, device="cpu"))
    acting, spec, totals = loaded.options(rule, options), loaded.run.spec, loaded.totals
    costs = zip(spec.criteria, totals.episode_cost.T, strict=True)
    facts = {
        "saformer": __version__,
        "run": spec.name,
        "agent": spec.agent,
        "acting": loaded.described(acting),
        "environment": totals.environment.identifier,
        "cost_percentiles": {name: percentiles(values) for name, values in costs},
    }
    manifest = write_graph(out, loaded.agent.policy(acting), facts)
    off = f"its actions are within {manifest['largest_difference']:.1g} of torch's"
    loaded.listener.say(f"exported to {out}: {GRAPH} and {MANIFEST}; {off}")
    return out


def write_graph(path: Path, policy: Any, facts: dict[str, Any]) -> dict[str, Any]:
    """A new folder with graph and manifest, all of it or nothing; returns the manifest. Facts are
    what is known of the run, for people to read."""
    if not isinstance(policy, SaFormerPolicy):
        agent = facts.get("agent", type(policy).__name__)
        raise ValueError(
            f"{agent} cannot be exported as ONNX, only saformer can: export it without --format"
        )
    for needed in ("onnxscript", "onnxruntime"):  # before all work
        import_module(needed)
    with unfinished_folder(path, EXPORTS) as folder:
        graph = DecisionGraph(policy).eval()
        inputs, program = _traced(graph, policy)
        (folder / GRAPH).write_bytes(_anonymous(program.model_proto).SerializeToString())
        with torch.inference_mode():
            outputs = dict(zip(OUTPUTS, graph(*inputs.values()), strict=True))
        manifest = {
            **facts,
            **_how_to_drive(policy, graph),
            "sha256": hashlib.sha256((folder / GRAPH).read_bytes()).hexdigest(),
            "inputs": _ports(inputs, INPUTS),
            "outputs": _ports(outputs, OUTPUTS),
        }
        write_json(folder / MANIFEST, manifest)
        manifest["largest_difference"] = rehearse(policy, GraphDriver(folder))
        write_json(folder / MANIFEST, manifest)
        publish(folder, path, EXPORTS)
    return manifest


def rehearse(policy: SaFormerPolicy, driver: GraphDriver) -> float:
    """The graph beside torch with the same noise, on made-up states: how far actions differ at
    most. Refused beyond `TOLERANCE`."""
    model, generator = policy.model, torch.Generator().manual_seed(0)
    sizes, normalizer = model.dimensions, model.normalizer
    typical = normalizer.restore("cost_to_go", torch.zeros(sizes.constraints)).clamp(min=1e-3)
    noise, worst = SameNoise(policy), 0.0
    policy.reset(torch.zeros(1, sizes.state), typical[None])
    driver.reset(typical.double().numpy())
    for _ in range(REHEARSED):
        drawn = torch.randn(sizes.state, generator=generator)
        state = normalizer.restore("state", drawn)
        own = policy.act(state[None])
        found = driver.act(state.numpy(), noise.draw(own.num_rounds))
        worst = max(worst, _difference(policy, own.action.numpy(), found["action"]))
        cost = typical * torch.rand(sizes.constraints, generator=generator) / REHEARSED
        policy.observe(0.0, cost[None])
        driver.observe(cost.double().numpy())
    if not worst <= TOLERANCE:
        raise ValueError(f"the graph's actions are off by {worst:.1g}: it was not exported")
    return worst


class SameNoise:
    """What a policy of one lane draws, for a graph to be given too."""

    def __init__(self, policy: SaFormerPolicy) -> None:
        self._policy = policy
        self._generator = torch.Generator().manual_seed(policy.seed)

    def draw(self, num_rounds: Tensor | None) -> Arrays:
        """Of the decision that the policy took in so many rounds; what a graph is given for others
        must not matter."""
        rounds = [self._round() for _ in range(1 if num_rounds is None else int(num_rounds))]
        unread = self._policy.rule.rounds - len(rounds)
        rounds += [tuple(-part for part in rounds[0])] * unread
        for_returns, for_actions = (torch.cat(part).numpy() for part in zip(*rounds, strict=True))
        return {"return_noise": for_returns, "action_noise": for_actions}

    def _round(self) -> tuple[Tensor, ...]:
        options: ProposalOptions = self._policy.rule.options
        return options.draw(1, self._policy.model.dimensions.action, self._generator)


def _difference(policy: SaFormerPolicy, own: Any, other: Any) -> float:
    low, high = (policy.model.get_buffer(f"action_{end}").numpy() for end in ("low", "high"))
    half = np.where(np.isfinite(high - low) & (high > low), (high - low) / 2, 1.0)
    return float((np.abs(own - other) / half).max())


def _traced(graph: DecisionGraph, policy: SaFormerPolicy) -> tuple[dict[str, Tensor], Any]:
    """Inputs as an episode begins, and torch's export of the graph."""
    sizes, rule = policy.model.dimensions, policy.rule
    proposals = (rule.rounds, rule.options.candidates)
    zeros = {
        "state": torch.zeros(1, sizes.state),
        "limit": torch.zeros(1, sizes.constraints, dtype=torch.float64),
        "cost": torch.zeros(1, sizes.constraints, dtype=torch.float64),
        "executed": torch.zeros(1, sizes.action),
        "return_noise": torch.zeros(proposals),
        "action_noise": torch.zeros(*proposals, sizes.action),
        "memory": torch.zeros(1, sum(graph.columns.values()), dtype=torch.float64),
    }
    with _quietly(), torch.no_grad():
        try:
            program = torch.export.export(graph, tuple(zeros.values()), strict=False)
            names: Any = {"input_names": list(zeros), "output_names": list(OUTPUTS)}
            exported = torch.onnx.export(program, verbose=False, **names)
        except Exception as error:  # whatever a rule of somebody's own brings about
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ValueError(
                f"{type(rule).__name__} cannot be written as a graph ({reason}): a rule must "
                "compute with tensors alone; export with --rule feasible, paper or none"
            ) from error
    return zeros, exported


def _anonymous(proto: Any) -> Any:
    """Without the exporter's notes, which name the files and folders of this machine."""
    for part in (proto.graph, *proto.graph.node, *proto.graph.value_info):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    return proto


@contextmanager
def _quietly() -> Iterator[None]:
    """torch's exporter warns of packages that nobody needs here."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _ports(tensors: dict[str, Tensor], meanings: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "means": meanings[name],
        }
        for name, tensor in tensors.items()
    ]


def _how_to_drive(policy: SaFormerPolicy, graph: DecisionGraph) -> dict[str, Any]:
    model = policy.model
    low, high = (model.get_buffer(f"action_{end}").tolist() for end in ("low", "high"))
    is_bounded = bool(np.isfinite([low, high]).all())
    return {
        "units": "all quantities are in the machine's own units, as the data had them",
        "noise": "standard normal, independent; other noise, other candidates, the same policy",
        "action_low": low if is_bounded else None,
        "action_high": high if is_bounded else None,
        "horizon": model.dimensions.horizon,
        "window": policy.window,
        "cost_discount": policy.budget.cost_discount,
        "memory": graph.columns,
    }
