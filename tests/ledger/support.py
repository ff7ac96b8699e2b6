"""What the ledger tests write: operations, changes, requests and answers, with short names."""

from __future__ import annotations

from typing import Any

from proxy.core.model import Answer, Body, Request
from proxy.core.operation import Event, Intent, Kind, Operation
from proxy.core.transitions import evolve_all
from proxy.ledger.base import Change

KEY = bytes(range(32))
NOW = 1_800_000_000.0
URL = "https://api.stripe.com/v1/refunds"
REQUEST = Request(
    "POST",
    "https",
    "api.stripe.com",
    443,
    "/v1/refunds?expand=charge",
    (("Content-Type", "application/x-www-form-urlencoded"), ("X-A", "1"), ("x-a", "2")),
    Body.of(b"charge=ch_1&amount=500"),
)
ANSWER = Answer(200, "OK", (("Content-Type", "application/json"),), Body.of(b'{"id":"re_1"}'))


def operation(
    step: str = "refund",
    *,
    run: str = "case-7",
    name: str = "stripe.refunds.create",
    version: int = 1,
    url: str = URL,
    method: str = "POST",
    at: float = NOW,
    caller_key: str | None = None,
    **intent: Any,
) -> Operation:
    """An operation before its first event."""
    return Operation(
        run=run,
        step=step,
        name=name,
        version=version,
        service="stripe",
        endpoint="refunds.create",
        method=method,
        url=url,
        intent=Intent(**{"fingerprint": "f1", "core_fingerprint": "f2", **intent}),
        created_at=at,
        updated_at=at,
        caller_key=caller_key,
    )


def change(before: Operation, *events: Event, **contents: Any) -> Change:
    return Change(evolve_all(before, events), events, **contents)


def started(attempt: int = 1, at: float = NOW, **data: Any) -> Event:
    return Event(Kind.ATTEMPT_STARTED, at, {"attempt": attempt, "keyed": True, **data})


def succeeded(attempt: int = 1, at: float = NOW + 1, **data: Any) -> Event:
    held = {"attempt": attempt, "verdict": "succeeded", "status": 200, **data}
    return Event(Kind.OUTCOME_RECORDED, at, held)


def rejected(attempt: int = 1, at: float = NOW + 1) -> Event:
    return Event(
        Kind.OUTCOME_RECORDED, at, {"attempt": attempt, "verdict": "rejected", "status": 402}
    )


def not_sent(attempt: int = 1, at: float = NOW + 1) -> Event:
    return Event(Kind.ATTEMPT_NOT_SENT, at, {"attempt": attempt, "reason": "refused"})


def lost(attempt: int = 1, at: float = NOW + 1) -> Event:
    return Event(
        Kind.ATTEMPT_LOST, at, {"attempt": attempt, "reason": "reset", "blocked_by": "lag"}
    )


def delivered(epoch: int = 1, at: float = NOW + 2) -> Event:
    return Event(Kind.ANSWER_DELIVERED, at, {"epoch": epoch})


def replayed(at: float = NOW + 3) -> Event:
    return Event(Kind.REPLAYED, at, {})


def first(before: Operation) -> Change:
    """The change that makes an operation's intent durable."""
    return change(before, started(at=before.created_at), request=REQUEST)
