"""How to fine-tune. docs/deviations.md notes what the paper leaves open."""

from dataclasses import dataclass, field, replace

from saformer.agents.finetuned import EntropyConfig
from saformer.core.rules import Fallback
from saformer.training.loop.config import FitConfig

LEARNING_RATE_SHARE = 1 / 3
"""Of the original run's peak."""


@dataclass(frozen=True)
class FinetuneConfig:
    """Exploration and what is learnt from it."""

    episodes: int = 200
    """Allowance: trajectories to collect at most. Episodes of evaluations are not among them."""
    lanes: int = 10
    """Episodes of a round: explored at once, then learnt from."""
    attenuation: float = 0.95
    """alpha: an exploration aims at so much less than was reached; at first, the data's least."""
    exploration_fallback: Fallback = "mean"
    """What to try where no proposal is safe, beside the policy's own; rounds use the cheaper."""
    exploration_rounds: int = 1
    """Rounds of proposals while exploring at most: below the data, more are mostly in vain."""
    floor: float = 0.85
    """Share of a limit below which nothing is asked for."""
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
        positive = ("episodes", "lanes", "updates", "evaluate_every", "exploration_rounds")
        least = {**dict.fromkeys(positive, 1), "evaluation_episodes": 2, "warmup_updates": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ValueError(f"{name} must be at least {bound}, got {getattr(self, name)}")
        if not 0 < self.new_share < 1:
            raise ValueError(f"new_share must lie between 0 and 1, got {self.new_share}")
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be above 0, got {self.learning_rate}")
        if self.ceiling is not None and not all(bound > 0 for bound in self.ceiling):
            raise ValueError(f"a ceiling must be above 0, got {self.ceiling}")
        check_attenuation(self.attenuation, self.floor)

    @property
    def num_rounds(self) -> int:
        """At most: exploration and updates take turns until every limit holds."""
        return -(-self.episodes // self.lanes)

    def fit_config(self, original: FitConfig) -> FitConfig:
        """As the run was trained, at a lower rate, for as long as the allowance lasts."""
        return replace(
            original,
            updates=self.num_rounds * self.updates,
            learning_rate=self.learning_rate or LEARNING_RATE_SHARE * original.learning_rate,
            warmup_updates=self.warmup_updates,
            evaluate_every=0,
        )


def check_attenuation(attenuation: float, floor: float) -> None:
    """Refuse what would not lead down, or to nothing."""
    if not 0 < attenuation <= 1:
        raise ValueError(f"attenuation must lie in (0, 1], got {attenuation}; 0.95 means 5% less")
    if not 0 < floor <= attenuation:
        bounds, remedy = f"(0, attenuation = {attenuation}]", "lower the floor or raise attenuation"
        raise ValueError(f"floor must lie in {bounds}, got {floor}: {remedy}")
