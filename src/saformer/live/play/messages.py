"""What a page may ask. Each message is held against its type before anything is done."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from saformer.live.play.settings import Acting

if TYPE_CHECKING:
    from saformer.live.play.stage import Stage

LARGEST_MESSAGE = 4096  # bytes
Index = Annotated[int, Field(ge=0, le=15)]
Name = Annotated[str, Field(max_length=500)]
Number = Annotated[float, Field(ge=-1e30, le=1e30, allow_inf_nan=False)]


class Message(BaseModel):
    """One wish of a page."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    def apply(self, stage: "Stage") -> None:
        raise NotImplementedError


class Go(Message):
    """Start, pause, take one step, or begin the episode again."""

    do: Literal["start", "pause", "step", "reset"]

    def apply(self, stage: "Stage") -> None:
        getattr(stage, self.do)()


class Seed(Message):
    do: Literal["seed"]
    seed: Annotated[int, Field(ge=0, le=2**31)]

    def apply(self, stage: "Stage") -> None:
        stage.reset(self.seed)


class Speed(Message):
    """Steps per second, as far as the machine can."""

    do: Literal["speed"]
    speed: Annotated[float, Field(ge=0.1, le=1000, allow_inf_nan=False)]

    def apply(self, stage: "Stage") -> None:
        stage.set_speed(self.speed)


class MoveLimit(Message):
    do: Literal["limit"]
    lane: Index
    constraint: Index
    limit: Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]

    def apply(self, stage: "Stage") -> None:
        stage.move_limit(self.lane, self.constraint, self.limit)


class Act(Message):
    """How a lane's policy acts from now on: its episode begins again."""

    do: Literal["act"]
    lane: Index
    run: Name
    rule: Name | None = None
    options: Annotated[dict[Name, Number | Name], Field(max_length=20)] = {}
    shield: bool = False

    def apply(self, stage: "Stage") -> None:
        stage.act(self.lane, Acting(self.run, self.rule, dict(self.options), self.shield))


class Lanes(Message):
    """One lane, or two side by side."""

    do: Literal["lanes"]
    count: Annotated[int, Field(ge=1, le=2)]

    def apply(self, stage: "Stage") -> None:
        stage.set_lanes(self.count)


Request = Annotated[
    Go | Seed | Speed | MoveLimit | Act | Lanes,
    Field(discriminator="do"),
]
_REQUEST: TypeAdapter[Message] = TypeAdapter(Request)


def read_request(text: str | bytes) -> Message:
    """The message, or a ValueError of one line that says what is wrong with it."""
    if len(text) > LARGEST_MESSAGE:
        raise ValueError(f"a message has at most {LARGEST_MESSAGE} bytes, got {len(text)}")
    try:
        return _REQUEST.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"a message that is none: {where}: {first['msg']}") from None
