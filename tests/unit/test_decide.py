"""One call, one snapshot, one decision: the account, the request, the approval, the version, and
every state but ``unknown``, which has a table of its own."""

from __future__ import annotations

import pytest

from proxy.core.decide import Answer, Forward, Hold, Reconcile, Refuse, RequestApproval, bind
from proxy.core.operation import Event, Kind, Operation
from proxy.core.transitions import evolve, evolve_all
from tests.fakes.operations import (
    T,
    absent,
    answered,
    delivered,
    lost,
    not_sent,
    operation,
    resolved,
    started,
    tries,
)
from tests.unit.decisions import BACKGROUND, Case, check, table

IN_FLIGHT = operation(started())
UNKNOWN = operation(started(), lost())
SUCCEEDED = operation(started(), answered("succeeded", status=200))
NOT_KEPT = operation(started(), answered("succeeded", kept=False))
FAILED = operation(started(), answered("rejected", status=403))
ABANDONED = operation(started(), lost(), resolved("abandoned"))
THROTTLED = operation(started(), answered("not_applied", status=429))
UNSENT = operation(started(), not_sent())
DENIED = operation(started(), not_sent(denied=True))
ABSENT = operation(started(), lost(), absent())
ASKED = {"id": "apr-1", "digest": "d", "rule_digest": "", "expires_at": T + 3600}
WAITING = operation(Event(Kind.APPROVAL_REQUESTED, T, ASKED))
OURS = operation(started(), answered("succeeded"), account="ours")
THEIRS = {"account": "theirs"}
OTHER = {"fingerprint": "other", "core_fingerprint": "other"}
REWORDED = {"fingerprint": "other"}
THIS_CALL = {"attempts_before": 0}
NEEDS = {"needs_approval": True}
SECOND = {"version": 2, "attempts_before": 0}


@table(
    Case("the same account", OURS, Answer, "succeeded", ask={"account": "ours"}),
    Case("the rule is silent", SUCCEEDED, Answer, "succeeded", ask=THEIRS),
    Case("the rule was silent then", OURS, Answer, "succeeded"),
    Case(
        "another account",
        OURS,
        Refuse,
        "the operation belongs to another account",
        "account-mismatch",
        ask=THEIRS,
    ),
    Case(
        "another account while it is in flight",
        operation(started(), account="ours"),
        Refuse,
        "the operation belongs to another account",
        "account-mismatch",
        ask=THEIRS,
    ),
    Case(
        "another account where nothing took effect",
        operation(started(), answered("not_applied"), account="ours"),
        Forward,
        "known to have had no effect",
        ask=THEIRS,
    ),
    Case(
        "the background has no account of its own",
        operation(started(), lost(), account="ours"),
        Forward,
        "re-sent under the same key",
        ask={**BACKGROUND, **THEIRS},
    ),
)
def test_account(case: Case) -> None:
    check(case)


@table(
    Case("another request", SUCCEEDED, Refuse, "drift", "operation-mismatch", ask=OTHER),
    Case("another request, failed", FAILED, Refuse, "drift", "operation-mismatch", ask=OTHER),
    Case("another request, unknown", UNKNOWN, Refuse, "drift", "operation-mismatch", ask=OTHER),
    Case("another request, in flight", IN_FLIGHT, Refuse, "drift", "operation-mismatch", ask=OTHER),
    Case("it was throttled", THROTTLED, Refuse, "drift", "operation-mismatch", ask=OTHER),
    Case("it never left", UNSENT, Forward, "known to have had no effect", ask=OTHER),
    Case("reworded, nobody heard", SUCCEEDED, Answer, "worded anew after a resume", ask=REWORDED),
    Case("reworded, refused", FAILED, Answer, "worded anew after a resume", ask=REWORDED),
    Case(
        "reworded in the epoch that heard",
        operation(started(), answered("succeeded"), delivered(1)),
        Refuse,
        "drift",
        "operation-mismatch",
        ask=REWORDED,
    ),
    Case(
        "reworded in a later epoch",
        operation(started(), answered("succeeded"), delivered(1)),
        Answer,
        "worded anew after a resume",
        ask={**REWORDED, "epoch": 2},
    ),
    Case(
        "reworded, and the first caller is being told",
        SUCCEEDED,
        Refuse,
        "drift",
        "operation-mismatch",
        ask={**REWORDED, "joined": True},
    ),
    Case("reworded, unknown", UNKNOWN, Forward, "re-sent under the same key", ask=REWORDED),
    Case("reworded, in flight", IN_FLIGHT, Hold, "an identical call is in flight", ask=REWORDED),
    Case(
        "the background drifts from nothing",
        UNKNOWN,
        Forward,
        "re-sent under the same key",
        ask={**BACKGROUND, **OTHER},
    ),
)
def test_drift(case: Case) -> None:
    check(case)


def test_a_replay_of_another_wording_is_noted() -> None:
    decision = Case("", SUCCEEDED, Answer, "", ask=REWORDED).decide()
    assert isinstance(decision, Answer)
    assert decision.drifted
    assert [note.kind for note in decision.notes] == [Kind.DRIFTED]


ASKS = "the rule asks for an approval"
WAITS = "it waits for an approval"
UNALLOWED = "no approval for a re-send"
LATER = {"after": 3700.0}
CHANGED_RULE = {"digest": "another"}
FIRST = {"attempts_before": 0}


def decided(kind: Kind, before: Operation = WAITING) -> Operation:
    return evolve(before, Event(kind, T + 1, {"id": "apr-1", "by": "ann", "note": "too much"}))


GRANTED = decided(Kind.APPROVAL_GRANTED)
REFUSED = decided(Kind.APPROVAL_DENIED)
USED = evolve_all(GRANTED, [started(), lost()])
WITHDRAWN = decided(Kind.APPROVAL_REVOKED, USED)
TURNED_AWAY = evolve_all(GRANTED, [started(), answered("not_applied", status=429)])


@table(
    Case("nothing was sent yet", None, RequestApproval, ASKS, ask=NEEDS),
    Case("it had no effect", ABSENT, RequestApproval, ASKS, ask=NEEDS),
    Case("its end is recorded", SUCCEEDED, Answer, "succeeded", ask=NEEDS),
    Case("it may have had its effect", UNKNOWN, Refuse, UNALLOWED, "outcome-unresolved", ask=NEEDS),
    Case("none is needed", None, Forward, "first attempt"),
    Case("it waits for one", WAITING, Refuse, WAITS, "approval-required", ask=NEEDS | FIRST),
    Case(
        "another request meanwhile",
        WAITING,
        Refuse,
        "drift",
        "operation-mismatch",
        ask=NEEDS | FIRST | OTHER,
    ),
    Case("granted", GRANTED, Forward, "a person has allowed it", ask=NEEDS | FIRST),
    Case(
        "granted, and another request",
        GRANTED,
        Refuse,
        "drift",
        "operation-mismatch",
        ask=NEEDS | FIRST | OTHER,
    ),
    Case(
        "granted, and it ran out", GRANTED, RequestApproval, ASKS, ask=NEEDS | FIRST, after=3600.0
    ),
    Case("nobody decided in time", WAITING, RequestApproval, ASKS, ask=NEEDS | FIRST, after=3600.0),
    Case(
        "granted under another rule",
        GRANTED,
        RequestApproval,
        ASKS,
        ask=NEEDS | FIRST,
        endpoint=CHANGED_RULE,
    ),
    Case("denied", REFUSED, Refuse, "approval denied", "approval-denied", ask=NEEDS | FIRST),
    Case(
        "denied, and the rule asks no more",
        REFUSED,
        Refuse,
        "approval denied",
        "approval-denied",
        ask=FIRST,
    ),
    Case("denied, and edited", REFUSED, RequestApproval, ASKS, ask=NEEDS | FIRST | OTHER),
    Case("used, lost", USED, Forward, "re-sent under the same key", ask=NEEDS, after=60.0),
    Case("used, lost, ran out", USED, Refuse, UNALLOWED, "outcome-unresolved", ask=NEEDS, **LATER),
    Case(
        "used, lost, revoked",
        WITHDRAWN,
        Refuse,
        "approval revoked",
        "approval-denied",
        ask=NEEDS,
        after=60.0,
    ),
    Case(
        "used, lost, revoked, and the API can be asked",
        WITHDRAWN,
        Reconcile,
        "asking the API whether the effect exists",
        ask=NEEDS,
        seen={"lookup": True},
        after=60.0,
    ),
    Case(
        "used, throttled",
        TURNED_AWAY,
        Forward,
        "known to have had no effect",
        ask=NEEDS,
        after=60.0,
    ),
    Case("used, throttled, ran out", TURNED_AWAY, RequestApproval, ASKS, ask=NEEDS, **LATER),
)
def test_approval(case: Case) -> None:
    check(case)


@table(
    Case("succeeded", SUCCEEDED, Answer, "succeeded"),
    Case("not kept", NOT_KEPT, Refuse, "succeeded, the answer is not kept", "outcome-not-kept"),
    Case("failed", FAILED, Answer, "the API rejected it"),
    Case("given up", ABANDONED, Refuse, "an operator gave it up", "outcome-unresolved"),
    Case("in flight", IN_FLIGHT, Hold, "an identical call is in flight"),
)
def test_recorded_ends_and_open_attempts(case: Case) -> None:
    check(case)


@table(
    Case("comes again", THROTTLED, Forward, "known to have had no effect"),
    Case(
        "a later version has begun",
        THROTTLED,
        Refuse,
        "drift",
        "operation-mismatch",
        seen={"overtaken": True},
    ),
    Case(
        "nobody asks",
        THROTTLED,
        Refuse,
        "no effect, and nobody waits for it",
        "upstream-not-reached",
        ask=BACKGROUND,
    ),
    Case("not reached", UNSENT, Refuse, "not sent", "upstream-not-reached", ask=THIS_CALL),
    Case("not allowed out", DENIED, Refuse, "not sent", "egress-denied", ask=THIS_CALL),
    Case("turned away", THROTTLED, Answer, "the API did not look at it", ask=THIS_CALL),
    Case("absent, too soon", ABSENT, Hold, "waiting before the next send", after=0, ask=THIS_CALL),
    Case("absent, later", ABSENT, Forward, "known to have had no effect", after=1, ask=THIS_CALL),
    Case(
        "absent five times in one call",
        operation(*tries(5), absent()),
        Refuse,
        "sent often enough",
        "upstream-not-reached",
        after=100,
        ask=THIS_CALL,
    ),
    Case(
        "absent five times, and it comes again",
        operation(*tries(5), absent()),
        Forward,
        "known to have had no effect",
        ask={"attempts_before": 5},
    ),
)
def test_no_effect(case: Case) -> None:
    check(case)


UNDECIDED_FAILURE = operation(*tries(1), started(2), answered("rejected", 2))


@table(
    Case("nothing before", None, Forward, "first attempt"),
    Case("refused before", None, Forward, "first attempt", ask=SECOND, seen={"previous": FAILED}),
    Case("succeeded late", None, Answer, "succeeded", ask=SECOND, seen={"previous": SUCCEEDED}),
    Case(
        "succeeded late, not kept",
        None,
        Refuse,
        "succeeded, the answer is not kept",
        "outcome-not-kept",
        ask=SECOND,
        seen={"previous": NOT_KEPT},
    ),
    Case(
        "another request succeeded late",
        None,
        Refuse,
        "drift",
        "operation-mismatch",
        ask={**SECOND, **OTHER},
        seen={"previous": SUCCEEDED},
    ),
    Case(
        "it succeeded late for another account",
        None,
        Refuse,
        "drift",
        "operation-mismatch",
        ask={**SECOND, **THEIRS},
        seen={"previous": OURS},
    ),
    Case(
        "undecided before",
        None,
        Refuse,
        "an earlier version is undecided",
        "outcome-unresolved",
        ask=SECOND,
        seen={"previous": UNDECIDED_FAILURE},
    ),
)
def test_the_first_attempt_of_a_version(case: Case) -> None:
    check(case)


@pytest.mark.parametrize(
    ("newest", "fingerprint", "version"),
    [
        pytest.param(None, "whole", 1, id="the first call"),
        pytest.param(SUCCEEDED, "whole", 1, id="a duplicate"),
        pytest.param(SUCCEEDED, "other", 1, id="drift from a success"),
        pytest.param(UNKNOWN, "whole", 1, id="while it is unknown"),
        pytest.param(UNKNOWN, "other", 1, id="drift while it is unknown"),
        pytest.param(IN_FLIGHT, "other", 1, id="drift while it is in flight"),
        pytest.param(FAILED, "whole", 1, id="a refusal that nobody heard"),
        pytest.param(FAILED, "other", 2, id="another request after a refusal"),
        pytest.param(
            operation(started(), answered("rejected"), delivered()),
            "whole",
            2,
            id="a refusal that was heard",
        ),
        pytest.param(ABANDONED, "whole", 1, id="given up by a person"),
        pytest.param(ABANDONED, "other", 1, id="another request after it was given up"),
        pytest.param(THROTTLED, "whole", 1, id="throttled"),
        pytest.param(THROTTLED, "other", 2, id="another request after a throttle"),
        pytest.param(UNSENT, "other", 1, id="another request where nothing left"),
    ],
)
def test_a_call_is_bound_to_one_version(
    newest: Operation | None, fingerprint: str, version: int
) -> None:
    assert bind(newest, fingerprint) == version
