"""How to fine-tune."""

from __future__ import annotations

from dataclasses import dataclass, field

from saformer.agents.finetuned import EntropyConfig
from saformer.core.rules import Fallback
from saformer.training.attenuation import attenuation_factors


@dataclass(frozen=True)
class FinetuneConfig:
    """Exploration and what is learnt from it. What the paper leaves open is noted in
    docs/deviations.md."""

    episodes: int = 200
    """Allowance: trajectories to collect at most. Episodes of evaluations are not among them."""
    lanes: int = 10
    """Episodes of a round: explored at once, then learnt from."""
    attenuation: float = 0.95
    """alpha: what a limit is multiplied with, once more at every exploration, when it is asked
    for."""
    exploration_fallback: Fallback = "least_cost"
    """What to try where no proposal is safe, beside what the policy does: rounds take the one that
    was cheaper."""
    exploration_rounds: int = 1
    """Rounds of proposals while exploring, if the policy has more: below the data they are mostly
    in vain."""
    floor: float = 0.85
    """The smallest factor; after it, attenuation begins anew."""
    ceiling: tuple[float, ...] | None = None
    """Cost per constraint at which an episode of exploration is ended; by default none is."""
    updates: int = 200
    """Updates after each round."""
    new_share: float = 0.5
    """Share of new trajectories' windows in every batch."""
    learning_rate: float | None = None
    """Peak of the schedule; by default a third of the original run's."""
    warmup_updates: int = 100
    """Updates until the peak."""
    evaluate_every: int = 2
    """Rounds between evaluations of all limits."""
    evaluation_episodes: int = 10
    """Episodes under each limit in an evaluation; limits that hold are explored no more."""
    entropy: EntropyConfig = field(default_factory=EntropyConfig)
    """The constraint on the actor."""

    def __post_init__(self) -> None:
        for name in ("episodes", "lanes", "updates", "evaluate_every", "exploration_rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.evaluation_episodes < 2:
            raise ValueError(
                f"evaluation_episodes must be at least 2, got {self.evaluation_episodes}"
            )
        if not 0 < self.new_share < 1:
            raise ValueError(f"new_share must lie between 0 and 1, got {self.new_share}")
        if self.warmup_updates < 0:
            raise ValueError(f"warmup_updates must be at least 0, got {self.warmup_updates}")
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be above 0, got {self.learning_rate}")
        if self.ceiling is not None and not all(bound > 0 for bound in self.ceiling):
            raise ValueError(f"a ceiling must be above 0, got {self.ceiling}")
        attenuation_factors(self.attenuation, self.floor)

    @property
    def num_rounds(self) -> int:
        """How often exploration and updates take turns if no limit holds before."""
        return -(-self.episodes // self.lanes)

    @property
    def factors(self) -> tuple[float, ...]:
        """What a limit is multiplied with, one exploration after the other."""
        return attenuation_factors(self.attenuation, self.floor)
