"""What the contracts need to know of each agent: one entry each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from saformer.agents.bc_safe import BCSafeConfig
from saformer.agents.bcq_lag import BCQLagConfig, BCQLagOptions
from saformer.agents.bcrl import BCRLConfig
from saformer.agents.caps import CAPSConfig
from saformer.agents.cdt import CDTConfig, CDTOptions
from saformer.agents.coptidice import COptiDICEConfig, COptiDICEOptions
from saformer.agents.cpq import CPQConfig
from saformer.agents.dt import DTConfig, DTOptions
from saformer.agents.markov import MarkovOptions
from saformer.agents.saformer import SaFormerConfig
from saformer.agents.sequence import SequenceOptions
from saformer.core.rules import PaperOptions
from saformer.core.transformer import TrunkConfig


@dataclass(frozen=True)
class Case:
    """A tiny agent, and which part of its model each term of its losses reaches."""

    config: Callable[[float, int], Any]
    """(dropout, number of constraints) -> a config that a test can afford"""
    certain: Any
    """options under which the policy draws no random numbers; None if there are none"""
    reaches: Mapping[str, frozenset[str]]
    """phase/term -> the modules that its gradient reaches, of all that any term reaches"""
    reads_windows: bool = True
    """whether it learns from windows rather than from single steps"""
    takes_any_weights: bool = True
    """whether random weights of any size make sense, so that tests may see every input matter"""
    several_constraints: bool = True
    """whether it can keep more than one; else it must refuse them"""

    @property
    def modules(self) -> frozenset[str]:
        """Everything that can be reached."""
        return frozenset().union(*self.reaches.values())


def _trunk(dropout: float) -> TrunkConfig:
    return TrunkConfig(layers=2, width=16, heads=2, dropout=dropout)


def _limit(constraints: int) -> tuple[float, ...]:
    return (12.0,) * constraints


ACTOR, CRITIC = frozenset({"actor"}), frozenset({"critic"})
NETWORK = frozenset({"embedding", "trunk", "action_head"})
INNER = frozenset({"sequence.embedding", "sequence.trunk"})

CASES = {
    "saformer": Case(
        lambda dropout, _: SaFormerConfig(window=4, candidates=8, trunk=_trunk(dropout)),
        PaperOptions(candidates=1),
        {
            "actor/cost_to_go": ACTOR,
            "actor/return_to_go": ACTOR,
            "actor/action": ACTOR,
            "critic/forecast_error": CRITIC,
            "critic/rising_forecast": CRITIC,
        },
    ),
    "dt": Case(
        lambda dropout, _: DTConfig(window=4, trunk=_trunk(dropout)),
        DTOptions(),
        {"actor/action": NETWORK},
    ),
    "cdt": Case(
        lambda dropout, _: CDTConfig(window=4, trunk=_trunk(dropout)),
        CDTOptions(),
        {
            "actor/action": INNER | {"sequence.action_head"},
            "actor/entropy_bonus": INNER | {"sequence.action_head"},
            "actor/cost_error": INNER | {"cost_head"},
            "temperature/dual": frozenset({"temperature"}),
        },
    ),
    "bc_safe": Case(
        lambda dropout, constraints: BCSafeConfig(
            limit=_limit(constraints), window=4, trunk=_trunk(dropout)
        ),
        SequenceOptions(),
        {"actor/action": NETWORK},
    ),
    "bcq_lag": Case(
        lambda dropout, constraints: BCQLagConfig(
            limit=_limit(constraints),
            hidden=(16, 16),
            candidates=3,
            acting_candidates=5,
            dropout=dropout,
        ),
        BCQLagOptions(candidates=1),  # the code's middle
        {
            "vae/reconstruction": frozenset({"vae"}),
            "vae/kl": frozenset({"vae"}),
            "critics/reward_error": frozenset({"critic"}),
            "critics/cost_error": frozenset({"cost_critic"}),
            "perturbation/reward": frozenset({"perturbation", "critic"}),
            "perturbation/cost": frozenset({"perturbation", "cost_critic"}),
            "multiplier/excess": frozenset({"multiplier"}),
        },
        reads_windows=False,
        takes_any_weights=False,
    ),
    "cpq": Case(
        lambda dropout, constraints: (
            CPQConfig(  # some steps look safe from the first, and some do not
                limit=(9.0,) * constraints, hidden=(16, 16), candidates=4, dropout=dropout
            )
        ),
        MarkovOptions(),
        {
            "vae/reconstruction": frozenset({"vae"}),
            "vae/kl": frozenset({"vae"}),
            "cost_critic/error": frozenset({"cost_critic"}),
            "cost_critic/penalty": frozenset(),  # alpha begins at 0
            "cost_critic/alpha": frozenset({"alpha"}),
            "critic/error": frozenset({"critic"}),
            "actor/reward": frozenset({"actor", "critic"}),
        },
        reads_windows=False,
        takes_any_weights=False,
    ),
    "coptidice": Case(
        lambda dropout, constraints: COptiDICEConfig(
            limit=_limit(constraints), hidden=(16, 16), components=2, dropout=dropout
        ),
        COptiDICEOptions(sample=False),
        {
            "value/initial": frozenset({"value"}),
            "value/conjugate": frozenset({"value"}),
            "bound/highest": frozenset({"chi", "log_tau"}),
            "multiplier/excess": frozenset({"multiplier"}),
            "actor/action": frozenset({"actor"}),
        },
        reads_windows=False,
        takes_any_weights=False,
    ),
    "caps": Case(
        lambda dropout, _: CAPSConfig(hidden=(16, 16), heads=3, components=2, dropout=dropout),
        MarkovOptions(),
        {
            "least_cost/error": frozenset({"cost_critic"}),
            "least_cost/expectile": frozenset({"cost_value"}),
            "reward/error": frozenset({"critic"}),
            "reward/expectile": frozenset({"value"}),
            "heads/action": frozenset({"representation", "heads"}),
        },
        reads_windows=False,
        takes_any_weights=False,
    ),
    "bcrl": Case(
        lambda dropout, _: BCRLConfig(hidden=(16, 16), components=2, dropout=dropout),
        MarkovOptions(),
        {
            "least_cost/error": frozenset({"cost_critic"}),
            "least_cost/expectile": frozenset({"cost_value"}),
            "reward/error": frozenset({"critic"}),
            "reward/expectile": frozenset({"value"}),
            "actor/action": frozenset({"actor"}),
            "actor/fallback": frozenset({"fallback"}),
        },
        reads_windows=False,
        takes_any_weights=False,
    ),
}
