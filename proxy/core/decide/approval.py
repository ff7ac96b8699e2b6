"""May it be sent without a person, and if not, has one allowed exactly this?

Asked of every send, re-sends too. What is allowed is the stored request under the rule as it was
then, until the approval expires or is revoked; anything else is asked about anew, as long as
nothing can have had an effect yet.
"""

from __future__ import annotations

from dataclasses import replace

from proxy.core.decide.authority import about
from proxy.core.decide.decision import Question, Refuse, RequestApproval
from proxy.core.operation import Approval, Consent, Operation


def approval_missing(question: Question) -> RequestApproval | Refuse | None:
    """Why a send must wait for a person; None where it need not."""
    ask, snapshot = question.ask, question.snapshot
    operation = snapshot.operation
    approval = operation.approval if operation is not None else None
    if approval is None:
        return _request(question, operation, None) if ask.needs_approval else None
    assert operation is not None
    if approval.state in (Consent.DENIED, Consent.REVOKED) and same_request(question, operation):
        return _denied(operation, approval)  # whatever the rule says by now
    if not ask.needs_approval and ask.fresh:
        return None  # the rule does not ask any more
    if approval.holds(snapshot.now, question.endpoint.digest) and same_request(question, operation):
        return None
    if approval.state is Consent.WAITING and not lapsed(question, approval):
        return _waiting(operation)
    return _request(question, operation, approval)


def lapsed(question: Question, approval: Approval) -> bool:
    """Whether nobody can decide on it any more: its time is over, or the rule is another one."""
    if question.snapshot.now >= approval.expires_at:
        return True
    return approval.rule_digest != question.endpoint.digest


def same_request(question: Question, operation: Operation) -> bool:
    """Whether what would be sent is the stored request: the background has no other, and of one
    that has left before nothing else is sent again, however a call words it now."""
    if not question.ask.fresh or operation.ever_left:
        return True
    return operation.intent.fingerprint == question.ask.fingerprint


def _request(
    question: Question, operation: Operation | None, earlier: Approval | None
) -> RequestApproval | Refuse:
    if not question.ask.fresh:
        return Refuse(
            "it waits for a call",
            about("approval-required", "Its approval has expired.", operation),
        )
    if operation is not None and operation.undecided:
        detail = "It may have been sent, and no approval holds for sending it again."
        return Refuse("no approval for a re-send", about("outcome-unresolved", detail, operation))
    expired = earlier is not None and earlier.state in (Consent.WAITING, Consent.GRANTED)
    return RequestApproval("the rule asks for an approval", expired=expired)


def _waiting(operation: Operation) -> Refuse:
    detail = "It is recorded and waits for a person; nothing was sent."
    return Refuse("it waits for an approval", about("approval-required", detail, operation))


def _denied(operation: Operation, approval: Approval) -> Refuse:
    if approval.state is Consent.REVOKED:
        detail = "Its approval was revoked."
    else:
        detail = "A person has denied it."
    if approval.note:
        detail = f"{detail} Their note: {approval.note}"
    refusal = replace(about("approval-denied", detail, operation), note=approval.note or "")
    return Refuse(f"approval {approval.state}", refusal)
