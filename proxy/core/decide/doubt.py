"""May a ledger that is lost have sent it? Then it is not sent before that is settled."""

from __future__ import annotations

from proxy.core.decide.decision import Presume, Question
from proxy.core.operation import State


def doubted(question: Question) -> Presume | None:
    """Asked after the approval: what is presumed here may be sent again under its key."""
    snapshot = question.snapshot
    if snapshot.doubt is None or not question.ask.fresh:
        return None
    operation, previous = snapshot.operation, snapshot.previous
    if operation is None:
        if previous is not None and (previous.undecided or previous.state is State.SUCCEEDED):
            return None  # nothing will be sent
    elif operation.state is not State.NOT_APPLIED or snapshot.overtaken:
        return None
    return Presume("a ledger that is lost may have sent it", snapshot.doubt)
