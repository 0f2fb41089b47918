"""What `saformer play` is asked: what to play, how, and where the page is served."""

from dataclasses import dataclass, field

LOOPBACK = ("127.0.0.1", "localhost", "::1")
FIRST_SEED = 1_000_000  # as `evaluate`: seeds that no dataset uses


@dataclass(frozen=True)
class PlaySettings:
    """How lanes begin, and where their page is."""

    limits: tuple[str, ...] = ("p50",)
    """A lane for each, two at most: percentiles of the data's episode costs (p10) or costs (4300);
    commas separate constraints. All can be moved on the page."""
    rule: str | None = None
    """How SaFormer decides: feasible (its default), paper (Algorithm 1) or none (no critic)."""
    shield: bool = False
    """Begin with a shield around the policy (see docs/shield.md)."""
    seed: int = 0
    """Decides the first state and the proposals; 0 begins as the first episode of `evaluate`."""
    host: str = "127.0.0.1"
    """Address of the page. Any other than this machine's own gets a token into its address."""
    port: int = 8765
    """Port of the page; 0 for any that is free."""
    browser: bool = True
    """Open the page in a browser (--no-browser: only print its address)."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.limits) <= 2:
            raise ValueError(f"one or two lanes can be played, got {len(self.limits)} limits")
        if not 0 <= self.port < 2**16:
            raise ValueError(f"a port is a number from 0 to 65535, got {self.port}")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can see the page."""
        return self.host in LOOPBACK


@dataclass(frozen=True)
class RecordSettings:
    """What `evaluate` writes beside its report, to be watched."""

    record: bool = False
    """Also play an episode under each limit and write it as a page that plays by itself, into
    recordings/ beside the report, which links them."""
    video: bool = False
    """The same as MP4, or else as GIF; needs saformer[mujoco] and a way to render (OpenGL)."""


@dataclass(frozen=True)
class Acting:
    """How a lane's policy acts: of which run, by which rule, with which changes of its options."""

    run: str
    rule: str | None = None
    options: dict[str, object] = field(default_factory=dict)
    shield: bool = False
    floor: tuple[float, ...] = ()  # for the shield, as in `EvaluateSettings`
    may_end: bool | None = None  # by default as the data says
