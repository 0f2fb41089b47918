"""What clients say and hear: requests that are held against a schema, and refusals of one line."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo

from saformer.core.batch import Dimensions
from saformer.core.budget import LARGEST

STATUS = {
    "input": 400,
    "token": 401,
    "origin": 403,
    "session": 404,
    "time": 408,
    "step": 409,
    "size": 413,
    "rate": 429,
    "policy": 500,
    "busy": 503,
    "sessions": 503,
    "stopping": 503,
    "disk": 507,
}
"""The HTTP status of each reason to refuse."""


class RefusedError(Exception):
    """An answer of one line that says what is wrong and what to do."""

    def __init__(self, message: str, reason: str = "input") -> None:
        super().__init__(message)
        self.reason, self.status = reason, STATUS[reason]


@dataclass(frozen=True)
class Terms:
    """What a policy needs to be told."""

    dimensions: Dimensions
    limit_of: Callable[[str], tuple[float, ...]]
    """the costs that a name such as p50 stands for"""
    needs_reward: bool
    told: Callable[[Sequence[float]], Sequence[float]] = list
    """what the policy hears of a limit; less than it is, where a violation rate is kept by that"""
    may_move: bool = True
    """whether limits can be moved mid-episode"""


def _in_list(value: Any) -> Any:
    return [value] if isinstance(value, int | float) else value


def _limit(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return _in_list(value)
    assert isinstance(info.context, Terms)
    return list(info.context.limit_of(value[:100]))


Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Cost = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Numbers = Annotated[list[Number], BeforeValidator(_in_list)]
Costs = Annotated[list[Cost], BeforeValidator(_in_list)]
LimitCosts = Annotated[list[Cost], BeforeValidator(_limit)]


class ActRequest(BaseModel):
    """One step of one session: where the machine is, and what its last action cost."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    session: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,80}$")]
    """Name of the session, chosen by the client; 1 to 80 letters, digits and . _ : -"""
    step: Annotated[int, Field(ge=0, le=2**53)] | None = None
    """0 begins an episode, then 1, 2, ...; a repeated request gets the stored answer. Over a
    websocket it may be left out: the next."""
    state: Numbers | None = None
    """The machine's state; left out when an episode ends."""
    limit: LimitCosts | None = None
    """What the episode may cost, for each constraint, or a percentile of the data's costs such as
    "p50". Needed at step 0; later it moves the limit."""
    cost: Costs | None = None
    """What the last action cost, for each constraint; needed after step 0."""
    reward: Number | None = None
    """What the last action earned; agents with a target return need it."""
    action: Numbers | None = None
    """What was executed, if it was not the last answer's action."""
    end: bool = False
    """Ends the episode: books the last cost, and decides nothing."""

    @property
    def digest(self) -> str:
        """Equal for a repeated request."""
        plain = self.model_dump_json(exclude={"session", "step"})
        return hashlib.sha256(plain.encode()).hexdigest()[:32]


def parsed(content: Any, terms: Terms) -> ActRequest:
    """A checked request from JSON bytes, or from what a frame held."""
    try:
        if isinstance(content, bytes):
            request = ActRequest.model_validate_json(content, context=terms)
        else:
            request = ActRequest.model_validate(content, context=terms)
    except ValidationError as error:
        raise RefusedError(_first_problem(error)) from None
    _check_widths(request, terms)
    return request


def check_step(request: ActRequest, terms: Terms, *, begins: bool) -> None:
    """Refuse a request that lacks what its step needs, or has what it cannot have."""
    needed: tuple[str, ...]
    senseless: tuple[str, ...]
    if begins:
        needed, senseless = ("state", "limit"), ("cost", "reward", "action")
    elif request.end:
        needed, senseless = ("cost",), ("state",)
    else:
        needed, senseless = ("state", "cost", *(["reward"] if terms.needs_reward else [])), ()
    where = "step 0" if begins else "the end of an episode" if request.end else "a step after 0"
    for name in needed:
        if getattr(request, name) is None:
            raise RefusedError(f"{name} is missing: {where} needs {', '.join(needed)}")
    for name in senseless:
        if getattr(request, name) is not None:
            why = "nothing was done before it" if begins else "nothing is decided"
            raise RefusedError(f"{name} makes no sense at {where}: {why}; leave it out")


def told_limit(request: ActRequest, terms: Terms, *, begins: bool) -> Sequence[float] | None:
    """What the policy hears of the limit in a request, or a refusal."""
    if request.limit is None:
        return None
    if not (begins or terms.may_move):
        message = "a violation rate was shown for limits that stay as they were at step 0"
        raise RefusedError(f"limit: {message}; leave it out, or have it served without --rate")
    try:
        return terms.told(request.limit)
    except ValueError as error:
        raise RefusedError(f"limit: {error}") from None


def _check_widths(request: ActRequest, terms: Terms) -> None:
    sizes = terms.dimensions
    costs = sizes.constraints
    widths = {"state": sizes.state, "limit": costs, "cost": costs, "action": sizes.action}
    for name, width in widths.items():
        given = getattr(request, name)
        if given is not None and len(given) != width:
            raise RefusedError(f"{name} has {len(given)} values, and this policy needs {width}")


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    entry = ".".join(str(part)[:40] for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"there is no entry {entry!r}: {', '.join(ActRequest.model_fields)} are known"
    if first["type"] == "value_error":
        return f"{entry}: {first['ctx']['error']}"
    if first["type"] == "string_pattern_mismatch":
        return f"{entry}: a name of 1 to 80 letters, digits and . _ : - is needed"
    given = repr(first["input"])[:40] if entry and first["type"] != "missing" else ""
    message = first["msg"].replace("Input", "it").replace("Field required", "it is missing")
    return " ".join(f"{entry or 'request'}: {message}{given and f', got {given}'}".split())
