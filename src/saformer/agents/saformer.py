"""SaFormer: a budget-conditioned actor and a critic that forecasts cost, trained side by side."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from saformer.agents.agent import Phase
from saformer.agents.checked import check_memory
from saformer.agents.levels import OnLevels, make_room_for_levels
from saformer.agents.networks import fix_action_units
from saformer.agents.sequence import SequenceAgent, SequenceConfig
from saformer.core.batch import Dimensions, WindowBatch
from saformer.core.execution import SaFormerPolicy
from saformer.core.model import SaFormer
from saformer.core.objectives import PerSample, actor_nll, critic_loss
from saformer.core.rules import (
    ActionNoise,
    NoCriticOptions,
    NoCriticRule,
    PaperOptions,
    PaperRule,
    PastReturn,
    ProposalOptions,
    Rule,
)
from saformer.data.levels import LEVELS
from saformer.data.relabel import RelabelledStore
from saformer.data.sources.source import Progress
from saformer.kernels.decisions import fastest
from saformer.kernels.recording import Recorder, replayed
from saformer.rules.feasible import FeasibleOptions, FeasibleRule
from saformer.rules.fitting import fit_outlook
from saformer.rules.outlook import Outlook

RULES = {"feasible": FeasibleOptions, "paper": PaperOptions, "none": NoCriticOptions}


@dataclass(frozen=True)
class SaFormerConfig(SequenceConfig):
    """What is learnt. The defaults are the paper's Table 6: 1.46 M parameters in all."""

    penalty: float = 0.25
    """lambda: weight of the penalty on a forecast that rises (Eq. 7), in model units."""
    candidates: int = 128
    """N: returns and actions proposed per decision, unless the policy's options say otherwise."""
    temperature: float = 1.0
    """Spread of the proposals, in deviations, unless the policy is asked for another."""
    action_noise: ActionNoise = "normal"
    """normal: actions are sampled as in the paper. two_point: a deviation off the mean."""
    past_return: PastReturn = "selected"
    """Which proposed return-to-go enters the past: the selected, the expected or the highest."""
    to_go_weight: float = 0.01
    """Weight of Eq. 5's first two terms, so that the actor learns to act: unweighted, the action's
    term has a hundredth of the gradient. The paper has 1."""
    rule: Literal["feasible", "paper", "none"] = "feasible"
    """By which the policy acts, unless it is asked for another."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("penalty", "to_go_weight"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")


class SaFormerAgent(SequenceAgent):
    """The paper's method. Its phases are the inner loop of Algorithm 2 (`training.loop.fit`)."""

    name, verifies = "saformer", True
    description = "one policy for all limits: proposes returns and actions, rejects likely overruns"
    config_type, rules = SaFormerConfig, RULES
    config: SaFormerConfig
    model: SaFormer

    def __init__(self, dimensions: Dimensions, config: SaFormerConfig) -> None:
        super().__init__(dimensions, config)
        self.model = SaFormer(dimensions, config.trunk)
        self.model.register_load_state_dict_pre_hook(_make_room)
        self.model.register_load_state_dict_pre_hook(make_room_for_levels)

    def fix_units(self, data: RelabelledStore) -> None:
        fix_action_units(self.model, data)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Actor, then critic; neither sees the other's loss."""
        return (
            Phase("actor", tuple(self.model.actor.parameters()), self.actor_terms),
            Phase("critic", tuple(self.model.critic.parameters()), self.critic_terms),
        )

    def actor_terms(self, batch: WindowBatch) -> dict[str, PerSample]:
        """Eq. 5, in model units, its terms weighed."""
        batch = self.model.normalizer.window(batch)
        return balanced(actor_nll(self.model.actor(batch), batch), self.config.to_go_weight)

    def critic_terms(self, batch: WindowBatch) -> dict[str, PerSample]:
        """Eq. 7, in model units."""
        batch = self.model.normalizer.window(batch)
        forecast = self.model.critic(batch)
        return critic_loss(forecast, batch.cost_to_go, batch.valid, penalty=self.config.penalty)

    def finish(self, data: RelabelledStore, progress: Progress | None = None) -> None:
        """Fit the outlook in this data, for the weights as they are, if the rule acts by it."""
        if self.config.rule == "feasible":
            how: Any = {"window": self.config.window, "replay": replayed, "progress": progress}
            outlook = fit_outlook(self.model, data, **how)
            self.model.add_module("outlook", outlook)

    @property
    def outlook(self) -> Outlook | None:
        """Fitted as training ends; weights of an unfinished training have none."""
        return self.model._modules.get("outlook")  # type: ignore[return-value]

    def options(self, *, shielded: bool = False) -> ProposalOptions:
        """By its config's rule; until an outlook is fitted, by the paper's. Within a shield, which
        keeps the limit, by what is expected alone."""
        options = self.options_of(self.config)
        if not isinstance(options, FeasibleOptions):
            return options
        if self.outlook is None:
            return self.options_of(self.config, "paper")
        return replace(options, candidates=1) if shielded else options

    def mean_options(self, options: ProposalOptions | None = None) -> NoCriticOptions:
        """The first of the candidates, the mean of both heads, whatever it costs."""
        return NoCriticOptions(candidates=1)

    def policy(self, options: ProposalOptions | None = None) -> SaFormerPolicy:
        """Algorithm 1 with what has been learnt so far, by the rule that the options belong to."""
        rule, config = self._rule(options or self.options()), self.config
        check_memory(rule.options.candidates, self.model, config.trunk.width)
        how: Any = {"window": config.window, "cost_discount": config.cost_discount}
        model, levels = fastest(self.model), self.model._buffers.get(LEVELS)
        proposing: Any = model if levels is None else OnLevels(model, levels)
        return SaFormerPolicy(proposing, rule, recorder=Recorder, **how)

    def _rule(self, options: ProposalOptions) -> Rule:
        if isinstance(options, PaperOptions):
            return PaperRule(options)
        if isinstance(options, NoCriticOptions):
            return NoCriticRule(options)
        if not isinstance(options, FeasibleOptions):
            raise TypeError(f"saformer acts by no rule of {type(options).__name__}")
        if self.outlook is None:
            raise ValueError(
                "the rule 'feasible' is fitted as training ends, but this is unfinished, trained "
                "as published or of an older version: act by the paper's rule (rule 'paper'), or "
                "train to the end by preset small or full"
            )
        return FeasibleRule(options, self.outlook, self.config.cost_discount)


def balanced(terms: dict[str, PerSample], to_go_weight: float) -> dict[str, PerSample]:
    """Eq. 5's terms, with a weight on the first two; 1 as published."""
    return {n: term if n == "action" else term.scaled(to_go_weight) for n, term in terms.items()}


def _make_room(model: Any, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before weights are loaded: give the model an outlook if they hold one, else take it away.
    What an older version fitted in its place is left out."""
    outdated = f"{prefix}outlook.state_axes" not in state_dict
    old = (f"{prefix}reserve.", *([f"{prefix}outlook."] if outdated else []))
    for name in [name for name in state_dict if name.startswith(old)]:
        del state_dict[name]
    if not any(name.startswith(f"{prefix}outlook.") for name in state_dict):
        model._modules.pop("outlook", None)
    elif "outlook" not in model._modules:
        with torch.random.fork_rng(devices=[]):
            model.add_module("outlook", Outlook(model.dimensions).to(model.action_low.device))
