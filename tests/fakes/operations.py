"""Operations as their events made them, in one line each; times are seconds after ``T``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from proxy.core.operation import Event, Intent, Kind, Operation
from proxy.core.transitions import evolve_all

T = 1_000_000.0  # when the operation was created, by the wall clock
INTENT = Intent("whole", "core", upstream_key="k", valid_for=86_400.0, body_sha256="b")


def operation(*events: Event, method: str = "POST", **intent: Any) -> Operation:
    new = Operation(
        run="r",
        step="s",
        name="svc.create",
        version=1,
        service="svc",
        endpoint="create",
        method=method,
        url="https://api.test/x",
        intent=replace(INTENT, **intent),
        created_at=T,
        updated_at=T,
    )
    return evolve_all(new, events)


def started(number: int = 1, after: float = 0, **data: Any) -> Event:
    return Event(Kind.ATTEMPT_STARTED, T + after, {"attempt": number, "keyed": True, **data})


def lost(number: int = 1, after: float = 0, **data: Any) -> Event:
    return Event(Kind.ATTEMPT_LOST, T + after, {"attempt": number, "reason": "reset", **data})


def not_sent(number: int = 1, after: float = 0, **data: Any) -> Event:
    return Event(Kind.ATTEMPT_NOT_SENT, T + after, {"attempt": number, "reason": "refused", **data})


def answered(verdict: str, number: int = 1, after: float = 0, **data: Any) -> Event:
    return Event(Kind.OUTCOME_RECORDED, T + after, {"attempt": number, "verdict": verdict, **data})


def delivered(epoch: int = 1) -> Event:
    return Event(Kind.ANSWER_DELIVERED, T, {"epoch": epoch})


def absent() -> Event:
    return Event(Kind.EFFECT_ABSENT, T, {"conclusive": True})


def blocked(by: str) -> Event:
    return Event(Kind.LOOKUP_INCONCLUSIVE, T, {"blocked_by": by})


def resolved(what: str) -> Event:
    return Event(Kind.OPERATOR_RESOLVED, T, {"as": what, "kept": True})


def tries(count: int, **data: Any) -> tuple[Event, ...]:
    """So many attempts, all of them lost."""
    return tuple(e for n in range(1, count + 1) for e in (started(n, **data), lost(n)))
