"""Is there anybody who may have it sent, or be told its end? A run that is revoked or closed, and a
token that is, stop both; what an operation came to is in the refusal all the same.
"""

from __future__ import annotations

from proxy.core.authority import Bar
from proxy.core.decide.decision import Question, Refuse
from proxy.core.operation import Event, Kind, Operation
from proxy.core.refusal import Refusal


def barred(question: Question) -> Refuse | None:
    """The background only asks the API, and so has nothing to ask for here."""
    bar = question.snapshot.standing.bar
    if bar is None or not question.ask.fresh:
        return None
    return refused(question, bar)


def stopped(question: Question) -> Refuse | None:
    """Why no send of this call is permitted, whatever its operation's state says."""
    standing = question.snapshot.standing
    bar = standing.bar or standing.stop
    return refused(question, bar) if bar is not None else None


def refused(question: Question, bar: Bar) -> Refuse:
    operation, now = question.snapshot.operation, question.snapshot.now
    note = Event(Kind.AUTHORITY_REFUSED, now, {"code": bar.code, "detail": bar.detail})
    return Refuse(
        bar.detail,
        about(bar.code, bar.detail, operation if bar.known else None),
        notes=(note,) if operation is not None else (),
    )


def about(code: str, detail: str, operation: Operation | None) -> Refusal:
    """A refusal that tells what the operation has come to."""
    if operation is None:
        return Refusal(code, detail)
    return Refusal(
        code,
        detail,
        operation=operation.key,
        state=str(operation.state),
        external_id=operation.outcome.external_id if operation.outcome else None,
    )
