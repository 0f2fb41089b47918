"""What the networks are fed: windows of consecutive steps, and the sizes of everything in them."""

from dataclasses import dataclass

from torch import Tensor

KINDS = ("limit", "cost_to_go", "return_to_go", "state", "action")  # as the actor reads them


@dataclass(frozen=True)
class Dimensions:
    """The sizes that a task imposes on the networks."""

    state: int
    action: int
    constraints: int = 1
    horizon: int = 1000
    """Longest episode in steps: the size of the time embedding; later steps share its last one."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")

    def of(self, kind: str) -> int:
        """Width of one token of this kind, before embedding."""
        widths = (self.constraints, self.constraints, 1, self.state, self.action)
        return widths[KINDS.index(kind)]


@dataclass(frozen=True)
class WindowBatch:
    """B windows of K consecutive steps each. Where `valid` is False the content means nothing."""

    limit: Tensor  # [B, C] D: the limit, held constant throughout the window
    cost_to_go: Tensor  # [B, K, C] cost still to come, this step included
    return_to_go: Tensor  # [B, K, 1] reward still to come, this step included
    state: Tensor  # [B, K, S]
    action: Tensor  # [B, K, A]
    timestep: Tensor  # [B, K] int64, counted from the start of the episode
    valid: Tensor  # [B, K] bool, False where the window reaches beyond its trajectory

    def __post_init__(self) -> None:
        for name in KINDS[1:]:
            shape = getattr(self, name).shape
            assert len(shape) == 3, f"{name} must be [B, K, _], got {shape}"
            assert shape[:2] == self.valid.shape, f"{name} is {shape}, valid {self.valid.shape}"
        assert self.timestep.shape == self.valid.shape
        assert self.limit.shape == (len(self.valid), self.cost_to_go.shape[-1])

    def tokens(self, kinds: tuple[str, ...]) -> dict[str, Tensor]:
        """The values of these token kinds, each [B, K, _]; the limit is repeated at every step."""
        limit = self.limit[:, None].expand(-1, self.valid.shape[1], -1)
        return {kind: limit if kind == "limit" else getattr(self, kind) for kind in kinds}
