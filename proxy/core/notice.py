"""Which events of the history somebody outside is told of, and what they are told.

A notice follows from the history alone, so that it is the same however often it is made: its id and
its words do not depend on when it is sent. It names an operation and what waits for a person; it
never holds a request's body or a credential.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol
from urllib.parse import quote

from proxy.core.model import frozen
from proxy.core.operation import Approval, Event, Kind, Operation, State, changed
from proxy.core.transitions import IllegalTransition, evolve


class Type(enum.StrEnum):
    APPROVAL_REQUESTED = "approval.requested"
    APPROVAL_DECIDED = "approval.decided"  # granted, denied, revoked, or run out
    UNRESOLVED = "operation.unresolved"  # unknown, and a person must decide
    CONFLICT = "operation.conflict"  # an effect that came too late, beside another one


_APPROVAL = {
    Kind.APPROVAL_REQUESTED: (Type.APPROVAL_REQUESTED, "waiting"),
    Kind.APPROVAL_GRANTED: (Type.APPROVAL_DECIDED, "granted"),
    Kind.APPROVAL_DENIED: (Type.APPROVAL_DECIDED, "denied"),
    Kind.APPROVAL_EXPIRED: (Type.APPROVAL_DECIDED, "expired"),
    Kind.APPROVAL_REVOKED: (Type.APPROVAL_DECIDED, "revoked"),
}
# An attempt that ends otherwise leaves the operation for the next look to say what blocks it.
_MAY_BLOCK = (
    Kind.ATTEMPT_LOST,
    Kind.ATTEMPT_PRESUMED,
    Kind.LOOKUP_INCONCLUSIVE,
    Kind.EFFECT_AMBIGUOUS,
)
KINDS = (*_APPROVAL, *_MAY_BLOCK, Kind.EFFECT_CONFLICT)
"""The only events that a notice can come from."""

FOR_A_PERSON = frozenset({"no_query", "ambiguous", "key_expired", "credentials"})
"""What blocks an operation until a person has looked; the others are still being asked about."""
CALLER = "credentials"
"""Its caller may still come back and settle it: after a restart that is what mostly happens."""
CALLER_SECONDS = 60.0  # that it gets before a person is told; an agent restarts within


class Stored(Protocol):
    """An event in the history of an operation."""

    @property
    def seq(self) -> int: ...
    @property
    def key(self) -> str: ...
    @property
    def event(self) -> Event: ...
    @property
    def hash(self) -> str: ...


@frozen
class Notice:
    """``due``: not told before that moment, and not at all if by then the operation is no longer
    blocked in that way."""

    id: str
    type: Type
    at: float
    run: str
    operation: str
    approval: dict[str, Any] | None = None
    blocked_by: str | None = None
    due: float = 0.0

    def as_json(self, console: str | None = None) -> dict[str, Any]:
        """``console``: the origin under which people reach the console."""
        told: dict[str, Any] = {
            "id": self.id,
            "type": str(self.type),
            "at": self.at,
            "run": self.run,
            "operation": self.operation,
        }
        if self.approval is not None:
            told["approval"] = self.approval
        if self.blocked_by is not None:
            told["blocked_by"] = self.blocked_by
        if console is not None:
            told["link"] = console + self._page
        return told

    @property
    def _page(self) -> str:
        if self.approval is not None:
            return f"/approval?id={quote(self.approval['id'], safe='')}"
        return f"/operation?key={quote(self.operation, safe='')}"


def notice(operation: Operation, history: Iterable[Stored], seq: int) -> Notice | None:
    """What is to be told of the event with that number; None: nothing. ``operation``: the row as it
    is now, ``history``: all its events."""
    found = list(_told(operation, history, seq))
    return found[0] if found else None


def _told(operation: Operation, history: Iterable[Stored], seq: int) -> Iterable[Notice]:
    now = _blank(operation)
    told: set[str] = set()  # of the ways of being blocked, since it was last known what it is
    for stored in history:
        if stored.seq > seq:
            return
        kind = stored.event.kind
        if kind is Kind.KEY_FORGOTTEN:
            now, told = _blank(operation), set()
            continue
        try:
            now = evolve(now, stored.event)
        except IllegalTransition:  # a row that history does not explain: `audit verify` tells
            return
        way = blocked_way(now)
        if way is None and now.state not in (State.UNKNOWN, State.IN_FLIGHT):
            told.clear()
        news = way is not None and way not in told
        if way is not None:
            told.add(way)
        if stored.seq != seq:
            continue
        if kind in _APPROVAL and now.approval is not None:
            type_, state = _APPROVAL[kind]
            yield _notice(stored, now, type_, approval=_shown(now.approval, state))
        elif kind is Kind.EFFECT_CONFLICT:
            yield _notice(stored, now, Type.CONFLICT)
        elif news:
            due = stored.event.at + CALLER_SECONDS if way == CALLER else 0.0
            yield _notice(stored, now, Type.UNRESOLVED, blocked_by=now.blocked_by, due=due)


def blocked_way(operation: Operation) -> str | None:
    """Whether a person must look (``person``), or ``credentials`` while its caller may; else
    None."""
    if operation.state is not State.UNKNOWN or operation.blocked_by not in FOR_A_PERSON:
        return None
    return CALLER if operation.blocked_by == CALLER else "person"


def holds(notice: Notice, operation: Operation | None) -> bool:
    """Whether one that was not told at once is still to be told."""
    if not notice.due:
        return True
    return operation is not None and blocked_way(operation) == CALLER


def _blank(operation: Operation) -> Operation:
    """The operation before its first event."""
    return changed(
        operation,
        state=None,
        attempts=(),
        outcome=None,
        approval=None,
        blocked_by=None,
        delivered_epoch=None,
    )


def _shown(approval: Approval, state: str) -> dict[str, Any]:
    return {
        "id": approval.id,
        "summary": approval.summary,
        "state": state,
        "expires_at": approval.expires_at,
    }


def _notice(stored: Stored, operation: Operation, type_: Type, **more: Any) -> Notice:
    # The hash chains the event to all before it, so that no other event has this id: not one of
    # the same number in another life of the ledger either.
    digest = hashlib.sha256(f"{stored.hash} {stored.seq} {type_}".encode()).hexdigest()
    return Notice(
        id=f"ntf_{digest[:32]}",
        type=type_,
        at=stored.event.at,
        run=operation.run,
        operation=operation.key,
        **more,
    )


TYPES: Sequence[str] = tuple(str(each) for each in Type)
