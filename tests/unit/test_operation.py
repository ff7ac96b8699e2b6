"""The transition table: every pair of state and event, the legal ones and all the others."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from proxy.core.operation import End, Event, Intent, Kind, Operation, State, changed
from proxy.core.transitions import NOTES, TRANSITIONS, IllegalTransition, evolve, evolve_all

NEW = Operation(
    run="r",
    step="s",
    name="svc.create",
    version=1,
    service="svc",
    endpoint="create",
    method="POST",
    url="https://api.test/x",
    intent=Intent("f", "f", upstream_key="k"),
    created_at=1.0,
    updated_at=1.0,
)


def started(number: int) -> Event:
    return Event(Kind.ATTEMPT_STARTED, 2.0, {"attempt": number, "keyed": True})


def lost(number: int) -> Event:
    return Event(Kind.ATTEMPT_LOST, 3.0, {"attempt": number, "reason": "reset"})


def not_sent(number: int) -> Event:
    return Event(Kind.ATTEMPT_NOT_SENT, 3.0, {"attempt": number, "reason": "refused"})


def answered(number: int, verdict: str, **more: object) -> Event:
    data = {"attempt": number, "verdict": verdict, "status": 200, **more}
    return Event(Kind.OUTCOME_RECORDED, 3.0, data)


RESOLVED = Event(Kind.OPERATOR_RESOLVED, 4.0, {"as": "happened", "by": "ann"})

ASKED = {"id": "apr-1", "digest": "d", "rule_digest": "r", "expires_at": 100.0}
DECISIONS = (
    Kind.APPROVAL_GRANTED,
    Kind.APPROVAL_DENIED,
    Kind.APPROVAL_EXPIRED,
    Kind.APPROVAL_REVOKED,
)
EXAMPLES = {
    None: NEW,
    State.AWAITING_APPROVAL: evolve(NEW, Event(Kind.APPROVAL_REQUESTED, 2.0, ASKED)),
    State.IN_FLIGHT: evolve(NEW, started(1)),
    State.UNKNOWN: evolve_all(NEW, [started(1), lost(1)]),
    State.NOT_APPLIED: evolve_all(NEW, [started(1), not_sent(1)]),
    State.SUCCEEDED: evolve_all(NEW, [started(1), answered(1, "succeeded")]),
    State.FAILED: evolve_all(NEW, [started(1), answered(1, "rejected")]),
}


def an_event(kind: Kind, operation: Operation) -> Event:
    last = len(operation.attempts)
    match kind:
        case Kind.ATTEMPT_STARTED:
            return started(last + 1)
        case Kind.ATTEMPT_PRESUMED:
            return Event(kind, 4.0, {"attempt": last + 1, "since": 1.0})
        case Kind.ATTEMPT_LOST:
            return lost(last)
        case Kind.ATTEMPT_NOT_SENT:
            return not_sent(last)
        case Kind.OUTCOME_RECORDED:
            return answered(last, "succeeded")
        case Kind.EFFECT_ABSENT:
            return Event(kind, 4.0, {"conclusive": True})
        case Kind.LOOKUP_INCONCLUSIVE:
            return Event(kind, 4.0, {"blocked_by": "lag"})
        case Kind.OPERATOR_RESOLVED:
            what = "abandoned" if operation.state is State.NOT_APPLIED else "happened"
            return Event(kind, 4.0, {"as": what})
        case Kind.ANSWER_DELIVERED:
            return Event(kind, 4.0, {"epoch": 1})
        case Kind.APPROVAL_REQUESTED:
            return Event(kind, 4.0, ASKED)
        case kind if kind in DECISIONS:
            return Event(kind, 4.0, {"id": "apr-1", "by": "ann"})
        case _:
            return Event(kind, 4.0, {})


@pytest.mark.parametrize(("state", "kind"), list(itertools.product(EXAMPLES, Kind)))
def test_every_pair_follows_the_table_or_changes_nothing(state: State | None, kind: Kind) -> None:
    before = EXAMPLES[state]
    if kind in DECISIONS and state is not None:
        before = changed(before, approval=EXAMPLES[State.AWAITING_APPROVAL].approval)
    if kind in (Kind.ACCEPTED_DONE, Kind.ACCEPTED_FAILED) and state is State.SUCCEEDED:
        assert before.outcome is not None
        with pytest.raises(IllegalTransition):
            evolve(before, an_event(kind, before))  # nothing was accepted
        before = changed(before, outcome=replace(before.outcome, accepted=True))
    event = an_event(kind, before)
    if kind in NOTES:
        if state is None:
            with pytest.raises(IllegalTransition):
                evolve(before, event)
        else:
            assert evolve(before, event).state is state
    elif (state, kind) in TRANSITIONS:
        assert evolve(before, event).state in TRANSITIONS[state, kind]
    else:
        with pytest.raises(IllegalTransition):
            evolve(before, event)


def test_a_later_refusal_does_not_close_an_earlier_maybe_sent_attempt() -> None:
    after = evolve_all(NEW, [started(1), lost(1), started(2), answered(2, "rejected")])
    assert after.state is State.UNKNOWN
    assert after.outcome is None


def test_a_later_attempt_that_was_not_sent_leaves_the_operation_unknown() -> None:
    after = evolve_all(NEW, [started(1), lost(1), started(2), not_sent(2)])
    assert after.state is State.UNKNOWN


def test_a_throttled_resend_leaves_the_operation_unknown() -> None:
    after = evolve_all(NEW, [started(1), lost(1), started(2), answered(2, "not_applied")])
    assert after.state is State.UNKNOWN


def test_a_recorded_refusal_under_the_same_key_speaks_for_all_attempts() -> None:
    refused = answered(2, "rejected", conclusive=True)
    after = evolve_all(NEW, [started(1), lost(1), started(2), refused])
    assert after.state is State.FAILED
    assert [a.end for a in after.attempts] == [End.ABSENT, End.REJECTED]


def test_a_success_of_any_attempt_closes_the_operation() -> None:
    after = evolve_all(NEW, [started(1), lost(1), started(2), answered(2, "succeeded")])
    assert after.state is State.SUCCEEDED
    assert not after.undecided


def test_a_late_success_overrules_a_recorded_failure() -> None:
    failed = evolve_all(NEW, [started(1), answered(1, "rejected")])
    assert evolve(failed, answered(1, "succeeded")).state is State.SUCCEEDED


def test_a_late_refusal_does_not_overrule_a_success() -> None:
    done = evolve_all(NEW, [started(1), answered(1, "succeeded", external_id="x")])
    after = evolve(done, answered(1, "rejected"))
    assert after.state is State.SUCCEEDED
    assert after.outcome == done.outcome


def test_an_attempt_cannot_be_started_out_of_turn() -> None:
    with pytest.raises(IllegalTransition):
        evolve(NEW, started(2))


def test_an_inconclusive_absence_keeps_the_operation_unknown() -> None:
    unknown = EXAMPLES[State.UNKNOWN]
    after = evolve(unknown, Event(Kind.EFFECT_ABSENT, 4.0, {"conclusive": False}))
    assert after.state is State.UNKNOWN
    assert after.blocked_by == "lag"


@pytest.mark.parametrize(
    ("what", "state"),
    [
        ("happened", State.SUCCEEDED),
        ("did_not_happen", State.NOT_APPLIED),
        ("abandoned", State.FAILED),
    ],
)
def test_a_person_may_close_an_unknown_operation(what: str, state: State) -> None:
    event = Event(Kind.OPERATOR_RESOLVED, 4.0, {"as": what, "by": "ann"})
    assert evolve(EXAMPLES[State.UNKNOWN], event).state is state


def test_nobody_may_resolve_what_is_in_flight() -> None:
    with pytest.raises(IllegalTransition):
        evolve(EXAMPLES[State.IN_FLIGHT], RESOLVED)


def test_time_of_an_operation_never_runs_backwards() -> None:
    late = replace(EXAMPLES[State.IN_FLIGHT], updated_at=100.0)
    assert evolve(late, lost(1)).updated_at == 100.0
