"""Sessions become lanes: requests that are here together are decided, booked and kept together."""

import hashlib
import json
import logging
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saformer.core.budget import LARGEST
from saformer.core.policy import Decision, Policy
from saformer.live.serve.accounts import Account, Accounts
from saformer.live.serve.audit import AuditLog
from saformer.live.serve.memory import LaneMemory
from saformer.live.serve.messages import ActRequest, RefusedError, Terms, check_step, told_limit
from saformer.live.serve.settings import ServeSettings

LOG = logging.getLogger("saformer.serve")
FORGET_EVERY = 600.0  # seconds between looks for accounts that are too old
Outcome = dict[str, Any] | RefusedError


@dataclass(frozen=True)
class Order:
    """A request, and who made it."""

    request: ActRequest
    owner: str
    """by whose token; sessions belong to it"""
    who: str
    """owner and address, for the audit log"""


@dataclass
class Session:
    """A session that has a lane."""

    lane: int
    account: Account | None  # None until its first answer is kept
    used: float  # by the monotonic clock


@dataclass(frozen=True)
class Due:
    """A request that moves its session on."""

    order: Order
    step: int
    begins: bool
    lane: int
    told: Sequence[float] | None
    """what the policy hears of the request's limit"""

    @property
    def request(self) -> ActRequest:
        return self.order.request


class Decider:
    """Answers requests. All calls come from one thread.

    A batch is a transaction: what it did to the lanes is undone unless accounts and audit log were
    written, so that a refused request may be sent again.
    """

    def __init__(
        self,
        policy: Policy,
        terms: Terms,
        accounts: Accounts,
        audit: AuditLog,
        settings: ServeSettings,
    ) -> None:
        self._policy, self._terms, self._settings = policy, terms, settings
        self._accounts, self._audit = accounts, audit
        count, sizes = settings.sessions, terms.dimensions
        limits = torch.full((count, sizes.constraints), LARGEST, dtype=torch.float64)
        policy.reset(torch.zeros(count, sizes.state), limits)
        self._promised = limits  # [L, C] to clients; the policy may be told of less
        self._memory = LaneMemory(policy, self._promised)
        self._free = list(range(count))[::-1]
        self._sessions: dict[str, Session] = {}
        self._in_batch: set[str] = set()
        self._forgot = -FORGET_EVERY

    @property
    def num_sessions(self) -> int:
        """That have a lane."""
        return len(self._sessions)

    def decide(self, orders: Sequence[Order]) -> list[Outcome]:
        """An answer or a refusal for each; no two are of the same session."""
        self._forget()
        self._in_batch = {order.request.session for order in orders}
        outcomes: dict[int, Outcome] = {}
        dues: dict[int, Due] = {}
        for place, order in enumerate(orders):
            try:
                prepared = self._prepare(order)
            except RefusedError as refusal:
                outcomes[place] = refusal
                continue
            if isinstance(prepared, Due):
                dues[place] = prepared
            else:
                outcomes[place] = prepared
        outcomes |= dict(zip(dues, self._move_on(list(dues.values())), strict=True))
        return [outcomes[place] for place in range(len(orders))]

    def account(self, name: str, owner: str) -> dict[str, Any]:
        """Where a session stands: its latest answer, for a client that takes it up again."""
        account = self._known(name)
        if account is None:
            raise RefusedError(f"there is no session {name!r}: begin it with step 0", "session")
        self._check_owner(account, owner)
        return {"ended": bool(account.ended), **account.content}

    def close(self) -> None:
        self._accounts.close()
        self._audit.close()

    def _prepare(self, order: Order) -> Due | dict[str, Any]:
        """What there is to do, or the stored answer."""
        request, account = order.request, self._known(order.request.session)
        if account is not None:
            self._check_owner(account, order.owner)
        goes_on = account is not None and not account.ended
        upcoming = account.step + 1 if account is not None and goes_on else 0
        step = upcoming if request.step is None else request.step
        is_latest = account is not None and step == account.step
        if account is not None and is_latest and request.digest == account.digest:
            return {**account.content, "repeated": True}
        if step != upcoming:
            raise RefusedError(_wrong_step(request.session, step, upcoming, account), "step")
        if request.end and not goes_on:
            raise RefusedError(
                f"session {request.session!r} has not begun: nothing can end", "session"
            )
        check_step(request, self._terms, begins=not goes_on)
        told = told_limit(request, self._terms, begins=not goes_on)
        return Due(order, step, not goes_on, self._lane(request.session, account), told)

    def _known(self, name: str) -> Account | None:
        session = self._sessions.get(name)
        return session.account if session else self._accounts.read(name)

    def _check_owner(self, account: Account, owner: str) -> None:
        if account.owner != owner:
            message = f"session {account.name!r} belongs to another token: choose another name"
            raise RefusedError(message, "session")

    def _lane(self, name: str, account: Account | None) -> int:
        """The session's lane; one that has none gets a free one, with all that it knew."""
        now = time.monotonic()
        if name not in self._sessions:
            if account is None and self._accounts.count(ended=False) >= self._settings.kept:
                message = f"{self._settings.kept} sessions are open, the most that are kept"
                raise RefusedError(f"{message}: end some (--kept)", "sessions")
            lane = self._free.pop() if self._free else self._take_idle(now)
            if account is not None and not account.ended:
                self._memory.give_back(lane, account.memory)
            self._sessions[name] = Session(lane, account, now)
        self._sessions[name].used = now
        return self._sessions[name].lane

    def _take_idle(self, now: float) -> int:
        """The lane of the session that was idle longest; its account is on disk."""
        others = {n: each.used for n, each in self._sessions.items() if n not in self._in_batch}
        name = min(others, key=others.__getitem__, default="")
        if now - others.get(name, now) < self._settings.idle:
            message = f"all {self._settings.sessions} sessions are taken: try again later"
            raise RefusedError(f"{message}, or end some (--sessions)", "sessions")
        return self._sessions.pop(name).lane

    def _move_on(self, dues: list[Due]) -> list[Outcome]:
        """Decide, write, and only then answer; if it fails, one by one, so that one that is wrong
        spoils no other."""
        if not dues:
            return []
        try:
            return list(self._transaction(dues))
        except Exception as error:
            self._undo(dues)
            is_of_disk = isinstance(error, sqlite3.Error | OSError)
            if len(dues) > 1 and not is_of_disk:
                return [outcome for due in dues for outcome in self._move_on([due])]
            return [_failure(error, is_of_disk) for _ in dues]

    def _transaction(self, dues: list[Due]) -> list[dict[str, Any]]:
        self._book(dues)
        acting = [due for due in dues if not due.request.end]
        decision = self._act(acting)
        answers = self._answers(dues, acting, decision)
        memories = self._memory.rows(torch.tensor([due.lane for due in dues]))
        now = time.time()
        pairs = list(zip(dues, answers, strict=True))
        self._audit.add(_audited(due, answer, now) for due, answer in pairs)
        accounts = [
            _account(due, answer, memory, now)
            for (due, answer), memory in zip(pairs, memories, strict=True)
        ]
        self._accounts.write(accounts)
        for account in accounts:
            self._sessions[account.name].account = account
            if account.ended:
                self._free.append(self._sessions.pop(account.name).lane)
        return answers

    def _book(self, dues: list[Due]) -> None:
        """Begin episodes, book what actions cost, and move limits."""
        policy, beginning = self._policy, [due for due in dues if due.begins]
        if beginning:
            limits = _rows([due.told for due in beginning])
            policy.reset(_states(beginning), limits, _lanes(beginning))
        going_on = [due for due in dues if not due.begins]
        for has_other in (False, True):  # than the action that was chosen
            group = [due for due in going_on if (due.request.action is not None) == has_other]
            if group:
                rewards = _rows([[due.request.reward or 0.0] for due in group])
                costs = _rows([due.request.cost for due in group])
                executed = _rows([due.request.action for due in group]) if has_other else None
                policy.observe(rewards, costs, _lanes(group), action=executed)
        for due in dues:
            if due.request.limit is not None:
                policy.budget.limit[due.lane], self._promised[due.lane] = _rows(
                    [due.told, due.request.limit]
                )

    def _act(self, dues: list[Due]) -> Decision | None:
        return self._policy.act(_states(dues), _lanes(dues)) if dues else None

    def _answers(
        self, dues: list[Due], acting: list[Due], decision: Decision | None
    ) -> list[dict[str, Any]]:
        budget, lanes = self._policy.budget, _lanes(dues)
        accounts = zip(self._promised[lanes].tolist(), budget.spent[lanes].tolist(), strict=True)
        explained = iter([] if decision is None else _explained(decision, len(acting)))
        answers = []
        for due, (limit, spent) in zip(dues, accounts, strict=True):
            answer = {"session": due.request.session, "step": due.step}
            if not due.request.end:
                answer |= next(explained)
            answers.append({**answer, "limit": limit, "spent": spent})
        return answers

    def _undo(self, dues: list[Due]) -> None:
        """Give every lane back what is on disk; sessions that were to begin never were."""
        for due in dues:
            session = self._sessions[due.request.session]
            if due.begins:
                self._free.append(self._sessions.pop(due.request.session).lane)
            elif session.account is not None:
                self._memory.give_back(due.lane, session.account.memory)

    def _forget(self) -> None:
        now = time.monotonic()
        if now - self._forgot >= FORGET_EVERY:
            self._forgot = now
            self._accounts.forget(self._settings.keep_days, self._settings.kept)


def _lanes(dues: list[Due]) -> Tensor:
    return torch.tensor([due.lane for due in dues])


def _rows(values: list[Any]) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float64))


def _states(dues: list[Due]) -> Tensor:
    return _rows([due.request.state for due in dues])


def _explained(decision: Decision, count: int) -> list[dict[str, Any]]:
    """For each lane: action, forecast and why."""
    nothing = [None] * count
    forecast, safe, chosen = nothing, nothing, nothing
    if decision.chosen is not None:
        chosen = decision.chosen.tolist()
    if decision.verification is not None and decision.chosen is not None:
        lanes = torch.arange(count, device=decision.chosen.device)
        picked = decision.verification.cost[lanes, decision.chosen]
        forecast, safe = picked.tolist(), _column(decision.num_safe, count)
    candidates = None if decision.candidates is None else decision.candidates.return_to_go.shape[1]
    columns = (decision.return_to_go, decision.num_rounds, decision.fell_back, decision.shielded)
    asked, rounds, fallback, shield = (_column(each, count) for each in columns)
    return [
        {
            "action": action,
            "forecast": forecast[lane],
            "why": {
                "candidates": candidates,
                "safe": safe[lane],
                "chosen": chosen[lane],
                "rounds": rounds[lane],
                "fallback": fallback[lane],
                "shield": bool(shield[lane]),
                "return_to_go": asked[lane],
            },
        }
        for lane, action in enumerate(decision.action.tolist())
    ]


def _column(values: Tensor | None, count: int) -> list[Any]:
    return [None] * count if values is None else values.tolist()


def _account(due: Due, answer: dict[str, Any], memory: bytes, now: float) -> Account:
    request = due.request
    text, kept = json.dumps(answer, allow_nan=False), (memory, request.end, now)
    return Account(request.session, due.order.owner, due.step, request.digest, text, *kept)


def _audited(due: Due, answer: dict[str, Any], now: float) -> dict[str, Any]:
    """A line of the audit log."""
    state = np.array(due.request.state or [], dtype=np.float64)
    digest = hashlib.sha256(state.tobytes()).hexdigest()[:16] if len(state) else None
    heard = {"cost": due.request.cost, "state_digest": digest}
    return {"time": round(now, 3), "who": due.order.who, **heard, **answer}


def _failure(error: Exception, is_of_disk: bool) -> RefusedError:
    reason = " ".join(str(error).split())[:200]
    if is_of_disk:
        message = f"the account could not be written ({reason}): nothing was booked, send it again"
        return RefusedError(message, "disk")
    if isinstance(error, ValueError):
        return RefusedError(f"no decision, and nothing was booked: {reason}", "policy")
    LOG.error("a decision failed", exc_info=error)
    return RefusedError(
        "the server failed at this decision, as its log says: nothing was booked", "policy"
    )


def _wrong_step(name: str, step: int, upcoming: int, account: Account | None) -> str:
    if account is None:
        return f"session {name!r} is not known here, so step {step} cannot be next: begin with 0"
    if account.ended:
        return f"session {name!r} has ended at step {account.step}: begin anew with step 0"
    if step == account.step:
        return (
            f"step {step} of session {name!r} was answered for another request: send step "
            f"{upcoming}, or repeat that request as it was"
        )
    return f"session {name!r} expects step {upcoming} and got {step}"
