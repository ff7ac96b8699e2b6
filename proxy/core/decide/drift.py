"""Is it the same request? The same operation with another request is drift."""

from __future__ import annotations

from proxy.core.decide.approval import lapsed
from proxy.core.decide.decision import Answer, Ask, Question, Refuse
from proxy.core.operation import Event, Kind, Operation, State
from proxy.core.refusal import Refusal


def drifted(question: Question) -> Answer | Refuse | None:
    ask, snapshot = question.ask, question.snapshot
    operation = snapshot.operation
    if operation is None or not ask.fresh or operation.intent.fingerprint == ask.fingerprint:
        return None
    if operation.state is State.NOT_APPLIED and not operation.ever_left:
        return None  # nothing ever left: the new request takes the place of the old one
    if operation.state is State.AWAITING_APPROVAL:
        open_ = operation.approval is None or lapsed(question, operation.approval)
        if open_ and not operation.ever_left:
            return None  # the API has not seen the first one under the key
        return mismatch(operation, "Another request of this operation waits for an approval.")
    if operation.intent.core_fingerprint == ask.core_fingerprint:
        if operation.state not in (State.SUCCEEDED, State.FAILED):
            return None  # settle the first; what it came to decides
        # The caller that this one waited for is being told just now.
        heard = ask.epoch if ask.joined else operation.delivered_epoch
        if ask.accepted or heard is None or ask.epoch > heard:
            note = drift_note(ask, snapshot.now)
            return Answer("worded anew after a resume", operation, (note,), drifted=True)
        detail = "Only the wording differs, but this start of the run already had the answer."
    else:
        detail = "The same run, step and operation made another request before."
    return mismatch(operation, detail)


def drift_note(ask: Ask, now: float) -> Event:
    """That this wording was answered: from here on it is a name of the operation like its first."""
    data = {"epoch": ask.epoch, "fields": "wording", "wording": _name(ask.fingerprint)}
    return Event(Kind.DRIFTED, now, data)


def notes_wording(event: Event, fingerprint: str) -> bool:
    return event.kind is Kind.DRIFTED and event.data.get("wording") == _name(fingerprint)


def _name(fingerprint: str) -> str:
    return fingerprint[:32]  # 128 bits of a digest


def mismatch(operation: Operation, detail: str) -> Refuse:
    return Refuse(
        "drift",
        Refusal(
            "operation-mismatch",
            detail,
            operation=operation.key,
            state=str(operation.state),
            external_id=operation.outcome.external_id if operation.outcome else None,
        ),
    )
