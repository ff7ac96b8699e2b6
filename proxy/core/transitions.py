"""What an event makes of an operation, and the table that says which event may follow which.

An operation's state is a fold over its attempts, whatever event came last. That is what keeps a
later attempt's refusal from closing an operation whose earlier attempt may still have had its
effect.

Everything that changes an operation is in this file, and this file does not know how requests are
sent, who asks, or what time it is.
"""

from __future__ import annotations

from dataclasses import replace

from proxy.core.operation import (
    PRESUMED,
    Approval,
    Attempt,
    Consent,
    End,
    Event,
    Kind,
    Operation,
    Outcome,
    State,
    changed,
)


class IllegalTransition(Exception):
    """An event that the table does not allow. The operation is left as it was."""


S = State
K = Kind

# (state before, event) -> the states that may follow. What follows within the set is computed from
# the attempts alone (``_fold``). A pair that is not here is a bug in whoever produced the event.
TRANSITIONS: dict[tuple[State | None, Kind], frozenset[State]] = {
    (None, K.ATTEMPT_STARTED): frozenset({S.IN_FLIGHT}),
    (None, K.ATTEMPT_PRESUMED): frozenset({S.UNKNOWN}),
    (S.NOT_APPLIED, K.ATTEMPT_PRESUMED): frozenset({S.UNKNOWN}),
    (None, K.APPROVAL_REQUESTED): frozenset({S.AWAITING_APPROVAL}),
    (S.AWAITING_APPROVAL, K.ATTEMPT_STARTED): frozenset({S.IN_FLIGHT}),
    (S.AWAITING_APPROVAL, K.ATTEMPT_PRESUMED): frozenset({S.UNKNOWN}),
    (S.AWAITING_APPROVAL, K.APPROVAL_GRANTED): frozenset({S.AWAITING_APPROVAL}),
    (S.AWAITING_APPROVAL, K.APPROVAL_DENIED): frozenset({S.NOT_APPLIED}),
    (S.AWAITING_APPROVAL, K.APPROVAL_EXPIRED): frozenset({S.NOT_APPLIED}),
    (S.NOT_APPLIED, K.ATTEMPT_STARTED): frozenset({S.IN_FLIGHT}),
    (S.NOT_APPLIED, K.APPROVAL_REQUESTED): frozenset({S.AWAITING_APPROVAL}),
    # Granted, and then a lost ledger was thought to have sent it, which it had not.
    (S.NOT_APPLIED, K.APPROVAL_EXPIRED): frozenset({S.NOT_APPLIED}),
    (S.UNKNOWN, K.ATTEMPT_STARTED): frozenset({S.IN_FLIGHT}),
    (S.IN_FLIGHT, K.ATTEMPT_NOT_SENT): frozenset({S.NOT_APPLIED, S.UNKNOWN}),
    (S.IN_FLIGHT, K.ATTEMPT_LOST): frozenset({S.UNKNOWN}),
    (S.IN_FLIGHT, K.OUTCOME_RECORDED): frozenset({S.SUCCEEDED, S.FAILED, S.NOT_APPLIED, S.UNKNOWN}),
    (S.UNKNOWN, K.OUTCOME_RECORDED): frozenset({S.SUCCEEDED, S.UNKNOWN}),  # a late answer
    (S.UNKNOWN, K.EFFECT_FOUND): frozenset({S.SUCCEEDED, S.FAILED}),
    (S.UNKNOWN, K.EFFECT_ABSENT): frozenset({S.NOT_APPLIED, S.UNKNOWN}),
    (S.UNKNOWN, K.EFFECT_AMBIGUOUS): frozenset({S.UNKNOWN}),
    (S.UNKNOWN, K.LOOKUP_INCONCLUSIVE): frozenset({S.UNKNOWN}),
    (S.UNKNOWN, K.OPERATOR_RESOLVED): frozenset({S.SUCCEEDED, S.NOT_APPLIED, S.FAILED}),
    (S.NOT_APPLIED, K.OPERATOR_RESOLVED): frozenset({S.FAILED}),  # abandoned
    # What the API took for later, and what it says has become of it.
    (S.SUCCEEDED, K.ACCEPTED_DONE): frozenset({S.SUCCEEDED}),
    (S.SUCCEEDED, K.ACCEPTED_FAILED): frozenset({S.FAILED}),
    # A late success closes whatever a lookup or a person said before it: what happened, happened.
    (S.FAILED, K.OUTCOME_RECORDED): frozenset({S.SUCCEEDED, S.FAILED}),
    (S.NOT_APPLIED, K.OUTCOME_RECORDED): frozenset({S.SUCCEEDED, S.NOT_APPLIED}),
    (S.SUCCEEDED, K.OUTCOME_RECORDED): frozenset({S.SUCCEEDED}),
    (S.NOT_APPLIED, K.EFFECT_FOUND): frozenset({S.SUCCEEDED}),
    (S.FAILED, K.EFFECT_FOUND): frozenset({S.SUCCEEDED}),
}

TRANSITIONS |= {
    # An approval is revoked whatever has become of the operation: what stops is sending.
    (state, K.APPROVAL_REVOKED): frozenset(
        {S.NOT_APPLIED} if state is S.AWAITING_APPROVAL else {state}
    )
    for state in State
}

NOTES = frozenset(
    {
        K.ANSWER_DELIVERED,
        K.REPLAYED,
        K.COALESCED,
        K.DRIFTED,
        K.CREDENTIAL_CHANGED,
        K.AUTHORITY_REFUSED,
        K.FOREIGN_EFFECT,
        K.EFFECT_CONFLICT,
        K.SHARED_EFFECT,
        K.OBSERVED,
        K.BODIES_PRUNED,
        K.BUDGET_CHARGED,
    }
)
"""Events that may follow any state and leave it."""


def evolve(operation: Operation, event: Event) -> Operation:
    """The operation after an event. Raises IllegalTransition for a pair the table does not hold."""
    if event.kind in NOTES:
        if operation.state is None:
            raise IllegalTransition(f"{event.kind} before the operation's first event")
        return _note(operation, event)
    allowed = TRANSITIONS.get((operation.state, event.kind))
    if allowed is None:
        raise IllegalTransition(f"{event.kind} while {operation.state or 'new'}: {operation.key}")
    after = _APPLY[event.kind](operation, event)
    if after.state not in allowed:
        raise IllegalTransition(
            f"{event.kind} would lead from {operation.state or 'new'} to {after.state}: {after.key}"
        )
    return after


def evolve_all(operation: Operation, events: tuple[Event, ...] | list[Event]) -> Operation:
    for event in events:
        operation = evolve(operation, event)
    return operation


def _fold(
    operation: Operation,
    attempts: tuple[Attempt, ...],
    event: Event,
    outcome: Outcome | None = None,
    blocked_by: str | None = None,
) -> Operation:
    """The operation with these attempts, in the state that they add up to; ``outcome`` is the end
    that the event reports, if it is one."""
    ends = [attempt.end for attempt in attempts]
    if End.SUCCEEDED in ends:
        state = State.SUCCEEDED
    elif None in ends:
        state = State.IN_FLIGHT
    elif End.UNKNOWN in ends:
        state = State.UNKNOWN
    elif ends and ends[-1] is End.REJECTED:
        state = State.FAILED
    else:
        state = State.NOT_APPLIED
    ended = state is State.SUCCEEDED or state is State.FAILED
    return changed(
        operation,
        attempts=attempts,
        state=state,
        outcome=outcome if ended else None,
        blocked_by=blocked_by if state is State.UNKNOWN else None,
        delivered_epoch=None if ended else operation.delivered_epoch,
        updated_at=max(operation.updated_at, event.at),
    )


def _end(operation: Operation, number: int, end: End, event: Event) -> tuple[Attempt, ...]:
    attempts = list(operation.attempts)
    for index, each in enumerate(attempts):
        if each.number == number:
            attempts[index] = Attempt(
                number=number,
                started_at=each.started_at,
                keyed=each.keyed,
                credential=each.credential,
                end=end,
                ended_at=event.at,
                reason=str(event.data.get("reason", "")),
                status=event.data.get("status"),
                denied=bool(event.data.get("denied", False)),
            )
            return tuple(attempts)
    raise IllegalTransition(f"{event.kind} for attempt {number}, which never started")


def _decided(attempts: tuple[Attempt, ...], end: End, at: float) -> tuple[Attempt, ...]:
    return tuple(replace(a, end=end, ended_at=at) if a.undecided else a for a in attempts)


def _started(operation: Operation, event: Event) -> Operation:
    number = event.data["attempt"]
    if number != len(operation.attempts) + 1:
        raise IllegalTransition(f"attempt {number} after {len(operation.attempts)} attempts")
    attempt = Attempt(
        number=number,
        started_at=event.at,
        keyed=bool(event.data.get("keyed", False)),
        credential=event.data.get("credential"),
    )
    approval = operation.approval
    if approval is not None and approval.state is Consent.GRANTED:
        operation = changed(operation, approval=replace(approval, state=Consent.CONSUMED))
    return _fold(operation, (*operation.attempts, attempt), event)


def _presumed(operation: Operation, event: Event) -> Operation:
    """``since``: before that moment nothing is missing in the ledger."""
    attempt = Attempt(
        number=len(operation.attempts) + 1,
        started_at=event.data["since"],
        keyed=bool(event.data.get("keyed", False)),
        credential=event.data.get("credential"),
        end=End.UNKNOWN,
        reason=PRESUMED,
    )
    blocked_by = event.data.get("blocked_by")
    return _fold(operation, (*operation.attempts, attempt), event, blocked_by=blocked_by)


def _not_sent(operation: Operation, event: Event) -> Operation:
    attempts = _end(operation, event.data["attempt"], End.NOT_SENT, event)
    return _fold(operation, attempts, event, blocked_by=operation.blocked_by)


def _lost(operation: Operation, event: Event) -> Operation:
    attempts = _end(operation, event.data["attempt"], End.UNKNOWN, event)
    return _fold(operation, attempts, event, blocked_by=event.data.get("blocked_by"))


def _outcome(operation: Operation, event: Event) -> Operation:
    """``verdict``: succeeded | rejected | not_applied. ``conclusive``: a rejection under the same
    key that is the API's recorded answer, so that it speaks for the earlier attempts."""
    data = event.data
    verdict = End(data["verdict"])
    closed = operation.state in (State.SUCCEEDED, State.FAILED, State.NOT_APPLIED)
    if closed and (operation.state is State.SUCCEEDED or verdict is not End.SUCCEEDED):
        return operation  # a late negative answer, or a second success: history, not news
    attempts = _end(operation, data["attempt"], verdict, event)
    if verdict is End.SUCCEEDED:
        attempts = _decided(attempts, End.DECIDED, event.at)
    elif data.get("conclusive"):
        attempts = _decided(attempts, End.ABSENT, event.at)
    outcome = None
    if verdict is not End.NOT_APPLIED:
        outcome = Outcome(
            succeeded=verdict is End.SUCCEEDED,
            how="answered",
            status=data.get("status"),
            external_id=data.get("external_id"),
            at=event.at,
            attempt=data["attempt"],
            kept=bool(data.get("kept", True)),
            accepted=bool(data.get("accepted", False)),
        )
    blocked_by = data.get("blocked_by") or operation.blocked_by
    return _fold(operation, attempts, event, outcome, blocked_by)


def _found(operation: Operation, event: Event) -> Operation:
    data = event.data
    succeeded = bool(data.get("succeeded", True))
    last = max((a.number for a in operation.attempts if a.undecided), default=None)
    if last is None:  # a person has spoken meanwhile
        last = max((a.number for a in operation.attempts if a.maybe_sent), default=None)
    attempts = tuple(
        replace(a, end=End.SUCCEEDED if succeeded else End.REJECTED)
        if a.number == last
        else replace(a, end=End.DECIDED)
        if a.undecided
        else a
        for a in operation.attempts
    )
    outcome = Outcome(
        succeeded=succeeded,
        how="found",
        status=data.get("status"),
        external_id=data.get("external_id"),
        at=event.at,
        attempt=last,
        kept=bool(data.get("kept", True)),
    )
    state = State.SUCCEEDED if succeeded else State.FAILED
    return _closed(operation, attempts, state, outcome, event)


def _accepted(operation: Operation, event: Event) -> Operation:
    """The end of what the API took for later. That it came to nothing is a refusal that no caller
    has had yet."""
    outcome = operation.outcome
    if outcome is None or not outcome.accepted:
        raise IllegalTransition(f"{event.kind}, and nothing was accepted: {operation.key}")
    if event.kind is Kind.ACCEPTED_DONE:
        at = max(operation.updated_at, event.at)
        found = event.data.get("external_id") or outcome.external_id
        outcome = replace(outcome, accepted=False, external_id=found)
        return changed(operation, outcome=outcome, updated_at=at)
    attempts = tuple(
        replace(a, end=End.REJECTED) if a.end is End.SUCCEEDED else a for a in operation.attempts
    )
    failed = replace(outcome, succeeded=False, accepted=False)
    return _closed(operation, attempts, State.FAILED, failed, event)


def _absent(operation: Operation, event: Event) -> Operation:
    if not event.data.get("conclusive"):
        return _blocked(operation, event, "lag")
    return _fold(operation, _decided(operation.attempts, End.ABSENT, event.at), event)


def _ambiguous(operation: Operation, event: Event) -> Operation:
    return _blocked(operation, event, "ambiguous")


def _inconclusive(operation: Operation, event: Event) -> Operation:
    return _blocked(operation, event, event.data["blocked_by"])


def _blocked(operation: Operation, event: Event, blocked_by: str) -> Operation:
    at = max(operation.updated_at, event.at)
    return changed(operation, blocked_by=blocked_by, updated_at=at)


def _approval_requested(operation: Operation, event: Event) -> Operation:
    data, at = event.data, max(operation.updated_at, event.at)
    approval = Approval(
        id=data["id"],
        digest=data["digest"],
        rule_digest=data["rule_digest"],
        requested_at=event.at,
        expires_at=data["expires_at"],
        summary=data.get("summary", ""),
    )
    return changed(operation, state=State.AWAITING_APPROVAL, updated_at=at, approval=approval)


_CONSENTS = {
    Kind.APPROVAL_GRANTED: Consent.GRANTED,
    Kind.APPROVAL_DENIED: Consent.DENIED,
    Kind.APPROVAL_EXPIRED: Consent.EXPIRED,
    Kind.APPROVAL_REVOKED: Consent.REVOKED,
}


def _approval_decided(operation: Operation, event: Event) -> Operation:
    """A grant sends nothing: the operation waits on, for a call. Without it, it is free again."""
    approval = operation.approval
    if approval is None or approval.id != event.data.get("id"):
        raise IllegalTransition(f"{event.kind} of an approval that {operation.key} does not have")
    consent = _CONSENTS[event.kind]
    decided = replace(
        approval,
        state=consent,
        by=event.data.get("by"),
        note=str(event.data.get("note", "")),
        decided_at=event.at,
    )
    waiting = operation.state is State.AWAITING_APPROVAL
    state = State.NOT_APPLIED if waiting and consent is not Consent.GRANTED else operation.state
    at = max(operation.updated_at, event.at)
    return changed(operation, approval=decided, state=state, updated_at=at)


def _resolved(operation: Operation, event: Event) -> Operation:
    """``as``: happened | did_not_happen | abandoned."""
    data = event.data
    what = data["as"]
    end = End.SUCCEEDED if what == "happened" else End.ABSENT
    attempts = _decided(operation.attempts, end, event.at)
    if what == "did_not_happen":
        return _closed(operation, attempts, State.NOT_APPLIED, None, event)
    outcome = Outcome(
        succeeded=what == "happened",
        how="resolved",
        status=data.get("status"),
        external_id=data.get("external_id"),
        at=event.at,
        kept=bool(data.get("kept", False)),
        abandoned=what == "abandoned",
    )
    state = State.SUCCEEDED if what == "happened" else State.FAILED
    return _closed(operation, attempts, state, outcome, event)


def _closed(
    operation: Operation,
    attempts: tuple[Attempt, ...],
    state: State,
    outcome: Outcome | None,
    event: Event,
) -> Operation:
    """Ended by what a lookup or a person knows, whatever the attempts themselves add up to."""
    return changed(
        operation,
        attempts=attempts,
        state=state,
        outcome=outcome,
        blocked_by=None,
        delivered_epoch=None,
        updated_at=max(operation.updated_at, event.at),
    )


def _note(operation: Operation, event: Event) -> Operation:
    if event.kind is Kind.ANSWER_DELIVERED:
        epoch = max(operation.delivered_epoch or 0, event.data["epoch"])
        return changed(operation, delivered_epoch=epoch)
    if event.kind is Kind.BODIES_PRUNED and operation.outcome is not None:
        return changed(operation, outcome=replace(operation.outcome, kept=False))
    return operation


_APPLY = {
    K.ATTEMPT_STARTED: _started,
    K.ATTEMPT_PRESUMED: _presumed,
    K.ATTEMPT_NOT_SENT: _not_sent,
    K.ATTEMPT_LOST: _lost,
    K.OUTCOME_RECORDED: _outcome,
    K.EFFECT_FOUND: _found,
    K.ACCEPTED_DONE: _accepted,
    K.ACCEPTED_FAILED: _accepted,
    K.EFFECT_ABSENT: _absent,
    K.EFFECT_AMBIGUOUS: _ambiguous,
    K.LOOKUP_INCONCLUSIVE: _inconclusive,
    K.APPROVAL_REQUESTED: _approval_requested,
    K.APPROVAL_GRANTED: _approval_decided,
    K.APPROVAL_DENIED: _approval_decided,
    K.APPROVAL_EXPIRED: _approval_decided,
    K.APPROVAL_REVOKED: _approval_decided,
    K.OPERATOR_RESOLVED: _resolved,
}
