"""What does the operation's state allow?

The heart of it is ``_unknown``: an operation leaves that state only by evidence. Time that has
merely passed never permits a send.
"""

from __future__ import annotations

import math
from typing import assert_never

from proxy.core.decide.account import same_account, same_credential
from proxy.core.decide.decision import (
    Answer,
    Decision,
    Forward,
    Hold,
    Question,
    Reconcile,
    Refuse,
)
from proxy.core.decide.drift import mismatch
from proxy.core.decide.sending import forward, not_permitted
from proxy.core.operation import STOPPED, End, Operation, State
from proxy.core.refusal import Refusal


def by_state(question: Question) -> Decision:
    operation, previous = question.snapshot.operation, question.snapshot.previous
    if previous is not None and previous.state is State.SUCCEEDED:
        # A late success of the earlier version arrived before this one was sent.
        same = previous.intent.fingerprint == question.ask.fingerprint
        if not same or not same_account(question.ask, previous):
            return mismatch(previous, "An earlier request of this operation has succeeded.")
        return _succeeded(previous)
    if operation is None:
        return _first(question)
    match operation.state:
        case State.IN_FLIGHT:
            return Hold(
                "an identical call is in flight",
                None,
                _refusal("operation-in-progress", operation, "Its answer has not come yet.", 2),
            )
        case State.UNKNOWN:
            return _unknown(question, operation)
        case State.NOT_APPLIED:
            return _not_applied(question, operation)
        case State.SUCCEEDED:
            return _accepted(question, operation) or _succeeded(operation)
        case State.FAILED:
            return _failed(operation)
        case State.AWAITING_APPROVAL | None:
            return forward(question, "a person has allowed it", len(operation.attempts) + 1)
        case _:
            assert_never(operation.state)


def _first(question: Question) -> Decision:
    previous = question.snapshot.previous
    if previous is not None and previous.undecided:
        return Refuse(
            "an earlier version is undecided",
            _refusal("outcome-unresolved", previous, "An earlier attempt has no known outcome."),
        )
    return forward(question, "first attempt", 1)


def _succeeded(operation: Operation) -> Decision:
    outcome = operation.outcome
    assert outcome is not None
    if not outcome.kept:
        return Refuse(
            "succeeded, the answer is not kept",
            _refusal("outcome-not-kept", operation, "It has succeeded."),
        )
    return Answer("succeeded", operation)


def _accepted(question: Question, operation: Operation) -> Decision | None:
    """A call that comes again asks first what has become of what the API took for later."""
    outcome, last = operation.outcome, operation.last
    assert outcome is not None
    if not (outcome.accepted and question.snapshot.poll and question.ask.fresh):
        return None
    if last is None or last.number > question.ask.attempts_before:
        return None  # the call that made it has its answer
    needs_credential = any(a.credential is not None for a in operation.attempts)
    if needs_credential and question.ask.credential is None:
        return None
    return Reconcile("asking what has become of it")


def _failed(operation: Operation) -> Decision:
    outcome = operation.outcome
    assert outcome is not None
    if outcome.abandoned:
        return Refuse(
            "an operator gave it up",
            _refusal("outcome-unresolved", operation, "An operator has given this operation up."),
        )
    return Answer("the API rejected it", operation)


def _not_applied(question: Question, operation: Operation) -> Decision:
    last = operation.last
    if question.snapshot.overtaken:
        return mismatch(operation, "A later request has taken the place of this one.")
    if not question.ask.fresh:
        return Refuse(
            "no effect, and nobody waits for it",
            _refusal("upstream-not-reached", operation, "It had no effect."),
        )
    if last is not None and last.number > question.ask.attempts_before:
        # The attempt that this call, or the twin it waited for, has just made.
        if last.end is End.NOT_SENT:
            stop = not_permitted(question)
            if isinstance(stop, Refuse):
                return stop  # it was taken away before the first byte
            code = "egress-denied" if last.denied else "upstream-not-reached"
            reason = last.reason or "Nothing was sent."
            refusal = _refusal(code, operation, reason)
            return not_permitted(question) or Refuse("not sent", refusal)
        if last.end is End.NOT_APPLIED:
            return Answer("the API did not look at it", operation)
    made = len(operation.attempts) - question.ask.attempts_before
    if made >= question.limits.attempts_max:
        reason = f"It was sent {made} times and had no effect each time."
        return Refuse("sent often enough", _refusal("upstream-not-reached", operation, reason))
    wait = _backoff_left(question, operation)
    if wait > 0:
        return _settling("waiting before the next send", wait, operation)
    return forward(question, "known to have had no effect", len(operation.attempts) + 1)


def _unknown(question: Question, operation: Operation) -> Decision:
    ask, snapshot = question.ask, question.snapshot
    needs_credential = any(a.credential is not None for a in operation.attempts)
    lacks_credential = needs_credential and ask.credential is None
    permit = None if lacks_credential else _permit(question, operation)
    stop = not_permitted(question) if permit is not None else None
    if permit is not None and stop is None:
        wait = _backoff_left(question, operation)
        if wait > 0:
            return _settling("waiting before the re-send", wait, operation)
        return Forward(permit, len(operation.attempts) + 1)
    unsigned = question.endpoint.signed == "sigv4" and not ask.signs
    if snapshot.lookup and not lacks_credential and not unsigned:
        wait = snapshot.watch.next_look_in
        if operation.blocked_by == "ambiguous" and ask.fresh:
            return _person(operation, "ambiguous", "The lookup did not give one clear answer.")
        looked = snapshot.watch.looked_with == (ask.credential,)
        if operation.blocked_by == "credentials" and ask.fresh and looked:
            return _person(operation, "credentials", "It was sent with another credential.")
        if wait > 0:
            return _settling("waiting before the next lookup", wait, operation)
        return Reconcile("asking the API whether the effect exists")
    if lacks_credential:
        return no_credential(operation)
    if unsigned and snapshot.lookup:
        return cannot_sign(operation)
    if stop is not None:
        return stop  # it could be sent again, and may not
    if _just_refused(question, operation):
        status = operation.last.status if operation.last is not None else None
        blocked_by = "credentials" if status in (401, 403, 407) else "ambiguous"
        return _person(operation, blocked_by, "The service turned the repeated call away.")
    if _tired(question, operation) and _key_holds(question, operation):
        detail = f"It was sent {len(operation.attempts)} times, and no answer decided it."
        return _person(operation, "ambiguous", detail)
    if not ask.fresh and _key_holds(question, operation):
        return _person(operation, "credentials", "It can be sent again when its caller returns.")
    if unsigned and not _same_bytes(question, operation) and _key_holds(question, operation):
        return cannot_sign(operation)
    if operation.intent.upstream_key is not None:
        return _person(operation, "key_expired", "Its key may not be used any more.")
    return _person(operation, "no_query", "The rule has no lookup and the API has no key.")


LOST = "The ledger was restored or replaced, and the one that is lost may have sent this call."


UNDER_KEY = "re-sent under the same key"
IDEMPOTENT = "re-sent, the endpoint is idempotent"


def _permit(question: Question, operation: Operation) -> str | None:
    """The reason why this unknown operation may be sent again, or None."""
    ask, snapshot, limits = question.ask, question.snapshot, question.limits
    if _tired(question, operation):
        return None
    if not ask.fresh:
        if snapshot.now - operation.created_at > limits.resend_within:
            return None
        if not same_credential(ask, operation):
            return None  # the rule's own account need not be the caller's
    if any(a.end is End.UNKNOWN and a.reason in DEAD_ENDS for a in operation.attempts):
        return None
    if _just_refused(question, operation):
        return None
    same = _same_bytes(question, operation)
    if question.endpoint.signed != "none" and not same and not ask.signs:
        return None  # the stored signature has expired; only its key can sign anew
    if not operation.intent.body_kept and not same:
        return None
    if _key_holds(question, operation):
        return UNDER_KEY
    young = snapshot.now - operation.created_at <= limits.resend_within
    if any(a.presumed for a in operation.attempts):
        return None  # nobody knows how long ago, nor what else was written since
    if operation.intent.idempotent and ask.fresh and young and not snapshot.rewritten:
        return IDEMPOTENT
    return None


def _same_bytes(question: Question, operation: Operation) -> bool:
    """Whether the caller brings the very bytes that were sent, with the key in them."""
    return question.ask.body_sha256 == operation.intent.body_sha256


def _tired(question: Question, operation: Operation) -> bool:
    """Whether it was sent so often that it has a rest: some APIs replay their error for a day. A
    call made a while later tries once more: one that was down for a minute is up again. What the
    proxy's own end cut short has no answer that could come again, so a caller may go on; by itself
    the proxy does not, lest a send that brings it down does so for ever."""
    ask, limits, last = question.ask, question.limits, operation.last
    counted = [a for a in operation.attempts if not (ask.fresh and a.reason == STOPPED)]
    if len(counted) < limits.attempts_max:
        return False
    if last is None or last.ended_at is None or not ask.fresh:
        return True
    if last.number > ask.attempts_before:
        return True
    return question.snapshot.now < last.ended_at + limits.late_pause


def _just_refused(question: Question, operation: Operation) -> bool:
    """Whether this very call's last re-send was turned away, so that another one with the same
    credential would be too. A throttle passes by itself; a caller that comes again may do
    better."""
    last = operation.last
    return (
        last is not None
        and last.number > max(1, question.ask.attempts_before)
        and last.end in (End.REJECTED, End.NOT_APPLIED)
        and last.status not in (425, 429)
    )


DEAD_ENDS = ("mismatch", "exists")
"""Answers under our key after which sending again tells nothing new: look, or ask a person."""


def _key_holds(question: Question, operation: Operation) -> bool:
    """Whether the API still honours the key of every attempt that may have reached it."""
    intent = operation.intent
    if intent.upstream_key is None:
        return False
    if not all(a.keyed for a in operation.attempts if a.maybe_sent):
        return False
    first = operation.first_maybe_sent_at
    if first is None:
        return False
    if intent.valid_for is None:
        if any(a.presumed for a in operation.attempts):
            return False
        # Unstated: trusted only within the call that is being held since before the first attempt.
        number = next(a.number for a in operation.attempts if a.maybe_sent)
        return question.ask.fresh and number > question.ask.attempts_before
    if intent.valid_for == math.inf:
        return True
    if question.snapshot.wall < first:
        return False  # the clock was set back: no telling how much of the window is left
    elapsed = question.snapshot.now - first
    margin = max(0.1 * intent.valid_for, question.limits.send_timeout)
    return elapsed <= intent.valid_for - margin


def _backoff_left(question: Question, operation: Operation) -> float:
    """Seconds still to wait before the next send; doubles with each attempt."""
    last = operation.last
    if last is None or last.ended_at is None:
        return 0.0
    if last.number <= question.ask.attempts_before:
        return 0.0  # a caller that comes anew has waited by itself
    wait = question.limits.backoff * 2.0 ** (len(operation.attempts) - 1)
    return last.ended_at + wait - question.snapshot.now


def no_credential(operation: Operation) -> Refuse:
    """What is there has fewer credentials than the first attempt had."""
    return _person(
        operation,
        "credentials",
        "Settling it needs the credential of the call, and the repeated call has none.",
    )


def cannot_sign(operation: Operation) -> Refuse:
    """The caller's signature is for other bytes, and the proxy's own key is another or none."""
    return _person(
        operation,
        "credentials",
        "Settling it needs a signature with the access key of the call, which is not at hand.",
    )


def _settling(reason: str, seconds: float, operation: Operation) -> Hold:
    retry = max(1, math.ceil(seconds))
    return Hold(
        reason, seconds, _refusal("outcome-unknown", operation, "It is being settled.", retry)
    )


def _person(operation: Operation, blocked_by: str, detail: str) -> Refuse:
    if operation.presumed:
        detail = f"{LOST} {detail}"
    return Refuse(
        f"a person must decide: {blocked_by}",
        _refusal("outcome-unresolved", operation, detail),
        blocked_by=blocked_by,
    )


def _refusal(
    code: str, operation: Operation, detail: str, retry_after: int | None = None
) -> Refusal:
    return Refusal(
        code,
        detail,
        operation=operation.key,
        state=str(operation.state),
        external_id=operation.outcome.external_id if operation.outcome else None,
        retry_after=retry_after,
    )
