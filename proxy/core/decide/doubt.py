"""May a ledger that is lost have sent it? Then it is not sent before that is settled."""

from __future__ import annotations

from proxy.core.decide.decision import Presume, Question, Refuse, RequestApproval
from proxy.core.decide.sending import not_permitted
from proxy.core.operation import State


def doubted(question: Question) -> Presume | Refuse | RequestApproval | None:
    """What is presumed may be sent again under its key, so it needs what a send needs."""
    snapshot = question.snapshot
    if snapshot.doubt is None or not question.ask.fresh:
        return None
    operation, previous = snapshot.operation, snapshot.previous
    if operation is None:
        if previous is not None and (previous.undecided or previous.state is State.SUCCEEDED):
            return None  # nothing will be sent
    elif operation.state not in _NEVER_SENT or snapshot.overtaken:
        return None
    return not_permitted(question) or Presume(
        "a ledger that is lost may have sent it", snapshot.doubt
    )


_NEVER_SENT = (State.NOT_APPLIED, State.AWAITING_APPROVAL)
"""As far as this ledger knows."""
