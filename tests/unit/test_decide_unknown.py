"""An operation leaves ``unknown`` only by evidence; time that has passed never permits a send."""

from __future__ import annotations

import math

import pytest

from proxy.core.decide import Forward, Hold, Reconcile, Refuse, Watch
from proxy.core.operation import STOPPED
from tests.fakes.operations import T, answered, blocked, lost, not_sent, operation, started, tries
from tests.unit.decisions import BACKGROUND, Case, check, table

LOST = operation(*tries(1))
KEYLESS = operation(started(keyed=False), lost(), upstream_key=None)
PUT = operation(started(keyed=False), lost(), upstream_key=None, idempotent=True)
STOPPED_FIVE = operation(*(e for n in range(1, 6) for e in (started(n), lost(n, reason=STOPPED))))
ALICES = operation(*tries(1, credential="alice"))
UNSTATED = operation(*tries(1), valid_for=None)
THIS_CALL = {"attempts_before": 0}
ASKABLE = {"lookup": True}
ALICE = {"credential": "alice"}
BOB = {"credential": "bob"}

UNDER_KEY = "re-sent under the same key"
IDEMPOTENT = "re-sent, the endpoint is idempotent"
LOOK = "asking the API whether the effect exists"
EXPIRED = "a person must decide: key_expired"
NO_QUERY = "a person must decide: no_query"
CREDENTIALS = "a person must decide: credentials"
AMBIGUOUS = "a person must decide: ambiguous"


def expired(title: str, *args: object, **more: object) -> Case:
    return Case(title, args[0], Refuse, EXPIRED, "outcome-unresolved", **more)  # type: ignore[arg-type]


def ambiguous(title: str, *args: object, **more: object) -> Case:
    return Case(title, args[0], Refuse, AMBIGUOUS, "outcome-unresolved", **more)  # type: ignore[arg-type]


def waits_for_its_caller(title: str, *args: object, **more: object) -> Case:
    return Case(title, args[0], Refuse, CREDENTIALS, "outcome-unresolved", **more)  # type: ignore[arg-type]


@table(
    Case("comes again", LOST, Forward, UNDER_KEY),
    Case("held, too soon", LOST, Hold, "waiting before the re-send", after=0, ask=THIS_CALL),
    Case("held, later", LOST, Forward, UNDER_KEY, after=0.5, ask=THIS_CALL),
    Case(
        "the wait doubles",
        operation(*tries(2)),
        Hold,
        "waiting before the re-send",
        after=0.9,
        ask=THIS_CALL,
    ),
    Case("four attempts", operation(*tries(4)), Forward, UNDER_KEY),
    ambiguous("five attempts", operation(*tries(5))),
    ambiguous("five attempts, and a caller anew", operation(*tries(5)), ask={"attempts_before": 5}),
    ambiguous("five attempts, and a caller that waits", operation(*tries(5)), after=3600),
    ambiguous("five attempts, nobody calls", operation(*tries(5)), ask=BACKGROUND),
    Case(
        "five attempts, and a caller a minute later",
        operation(*tries(5)),
        Forward,
        UNDER_KEY,
        after=61,
        ask={"attempts_before": 5},
    ),
    Case("five attempts, cut short by ends of the proxy", STOPPED_FIVE, Forward, UNDER_KEY),
    ambiguous("the same, and nobody calls", STOPPED_FIVE, ask=BACKGROUND),
    expired("one attempt had no key", operation(*tries(1, keyed=False), started(2), lost(2))),
    Case(
        "the attempt without a key never left",
        operation(started(keyed=False), not_sent(), started(2), lost(2)),
        Forward,
        UNDER_KEY,
    ),
    Case("no key", KEYLESS, Refuse, NO_QUERY, "outcome-unresolved"),
)
def test_a_resend_under_the_key(case: Case) -> None:
    check(case)


DAY = 86_400.0


@pytest.mark.parametrize(
    ("valid_for", "after", "holds"),
    [
        pytest.param(DAY, 0.9 * DAY, True, id="a tenth of a day is left"),
        pytest.param(DAY, 0.9 * DAY + 1, False, id="less than a tenth of a day is left"),
        pytest.param(300.0, 180.0, True, id="a send may still end within a short window"),
        pytest.param(300.0, 180.5, False, id="a send may outlast a short window"),
        pytest.param(120.0, 0.0, True, id="a window as long as a send"),
        pytest.param(60.0, 0.0, False, id="a window shorter than a send"),
        pytest.param(math.inf, 1e9, True, id="forever"),
        pytest.param(DAY, -1.0, False, id="the clock was set back"),
        pytest.param(math.inf, -1.0, True, id="forever, whatever the clock"),
    ],
)
def test_the_window_of_a_key(valid_for: float, after: float, holds: bool) -> None:
    """It ends by the larger of a tenth and one send's time-out before ``valid_for`` has passed."""
    case = Case(
        "",
        operation(*tries(1), valid_for=valid_for),
        Forward if holds else Refuse,
        UNDER_KEY if holds else EXPIRED,
        after=after,
        seen={"now": T + max(after, 0.0)},
    )
    check(case)


def test_the_window_counts_from_the_first_attempt_that_may_have_left() -> None:
    unsent_first = operation(
        started(), not_sent(), started(2, after=1000), lost(2, after=1000), valid_for=DAY
    )
    check(Case("", unsent_first, Forward, UNDER_KEY, after=0.9 * DAY + 1000))
    lost_first = operation(*tries(1), started(2, after=1000), lost(2, after=1000), valid_for=DAY)
    check(Case("", lost_first, Refuse, EXPIRED, after=0.9 * DAY + 1000))


@table(
    Case("within the held call", UNSTATED, Forward, UNDER_KEY, ask=THIS_CALL),
    expired("in a later call", UNSTATED),
    expired("in the background", UNSTATED, ask={**BACKGROUND, **THIS_CALL}),
    Case(
        "the first that left is this call's",
        operation(started(), not_sent(), started(2), lost(2), valid_for=None),
        Forward,
        UNDER_KEY,
    ),
)
def test_a_window_that_is_not_stated_holds_within_one_call(case: Case) -> None:
    check(case)


@table(
    Case("young", LOST, Forward, UNDER_KEY, ask=BACKGROUND),
    Case("five minutes", LOST, Forward, UNDER_KEY, after=300, ask=BACKGROUND),
    waits_for_its_caller("older", LOST, after=301, ask=BACKGROUND),
    Case("older, but it can ask", LOST, Reconcile, LOOK, after=301, ask=BACKGROUND, seen=ASKABLE),
    Case("older, and a caller has come", LOST, Forward, UNDER_KEY, after=301),
    Case("its own credential", ALICES, Forward, UNDER_KEY, ask={**BACKGROUND, **ALICE}),
    waits_for_its_caller("another credential", ALICES, ask={**BACKGROUND, **BOB}),
    Case("another, but a caller's", ALICES, Forward, UNDER_KEY, ask=BOB),
)
def test_the_background_sends_only_what_is_young_and_as_it_was(case: Case) -> None:
    check(case)


@table(
    Case("no credential", ALICES, Refuse, CREDENTIALS, "outcome-unresolved"),
    Case("no credential for a lookup", ALICES, Refuse, CREDENTIALS, seen=ASKABLE),
    Case("none in the background", ALICES, Refuse, CREDENTIALS, ask=BACKGROUND, seen=ASKABLE),
    Case("its first attempt had none either", LOST, Forward, UNDER_KEY),
)
def test_nothing_goes_out_with_fewer_credentials(case: Case) -> None:
    check(case)


@table(
    Case("young", PUT, Forward, IDEMPOTENT),
    Case("five minutes", PUT, Forward, IDEMPOTENT, after=300),
    Case("older", PUT, Refuse, NO_QUERY, after=301),
    Case("somebody wrote there since", PUT, Refuse, NO_QUERY, seen={"rewritten": True}),
    Case("in the background", PUT, Refuse, NO_QUERY, ask=BACKGROUND),
    Case("not idempotent", KEYLESS, Refuse, NO_QUERY),
)
def test_an_idempotent_resend(case: Case) -> None:
    check(case)


def with_body(digest: str | None) -> dict[str, object]:
    return {"body_sha256": digest}


UNKEPT = operation(*tries(1), body_kept=False)


@table(
    Case("signed, the same bytes", LOST, Forward, UNDER_KEY, endpoint={"signed": "sigv4"}),
    waits_for_its_caller(
        "signed, other bytes", LOST, ask=with_body("c"), endpoint={"signed": "sigv4"}
    ),
    Case(
        "signed, other bytes, and their key is ours",
        LOST,
        Forward,
        UNDER_KEY,
        ask={"body_sha256": "c", "credential": "k", "signer": "k"},
        endpoint={"signed": "sigv4"},
    ),
    waits_for_its_caller(
        "signed, other bytes, and our key is another",
        LOST,
        ask={"body_sha256": "c", "credential": "k", "signer": "l"},
        endpoint={"signed": "sigv4"},
    ),
    waits_for_its_caller("signed, nobody here", LOST, ask=BACKGROUND, endpoint={"signed": "body"}),
    Case("not kept, the same bytes", UNKEPT, Forward, UNDER_KEY),
    expired("not kept, other bytes", UNKEPT, ask=with_body("c")),
    waits_for_its_caller("not kept, nobody here", UNKEPT, ask=BACKGROUND),
    Case("kept, nobody here", LOST, Forward, UNDER_KEY, ask=BACKGROUND),
)
def test_what_cannot_be_sent_as_it_was_is_not_sent(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("reason", ["mismatch", "exists"])
def test_an_answer_that_sending_again_cannot_change_is_a_dead_end(reason: str) -> None:
    ended = operation(started(), lost(reason=reason))
    check(Case("", ended, Refuse, EXPIRED, "outcome-unresolved"))
    check(Case("", ended, Refuse, EXPIRED, ask=THIS_CALL))
    check(Case("", ended, Reconcile, LOOK, seen=ASKABLE))
    later = operation(started(), lost(reason=reason), started(2), lost(2))
    check(Case("", later, Refuse, EXPIRED))


@pytest.mark.parametrize(
    ("verdict", "status", "kind", "reason"),
    [
        ("not_applied", 401, Refuse, CREDENTIALS),
        ("rejected", 403, Refuse, CREDENTIALS),
        ("not_applied", 407, Refuse, CREDENTIALS),
        ("rejected", 404, Refuse, AMBIGUOUS),
        ("rejected", 422, Refuse, AMBIGUOUS),
        ("not_applied", 425, Forward, UNDER_KEY),
        ("not_applied", 429, Forward, UNDER_KEY),
    ],
)
def test_a_resend_that_was_turned_away_is_not_repeated_within_the_call(
    verdict: str, status: int, kind: type, reason: str
) -> None:
    turned_away = operation(*tries(1), started(2), answered(verdict, 2, status=status))
    check(Case("", turned_away, kind, reason))
    check(Case("", turned_away, kind, reason, ask=THIS_CALL))
    check(Case("", turned_away, Forward, UNDER_KEY, ask={"attempts_before": 2}))


def looking(looked: bool = False, wait: float = 0.0, by: str | None = None) -> dict[str, object]:
    return {**ASKABLE, "watch": Watch(looked_with=(by,) if looked else None, next_look_in=wait)}


UNCLEAR = operation(started(keyed=False), lost(), blocked("ambiguous"), upstream_key=None)
UNSEEN = operation(
    started(keyed=False, credential="alice"), lost(), blocked("credentials"), upstream_key=None
)


@table(
    Case("now", KEYLESS, Reconcile, LOOK, seen=looking()),
    Case("overdue", KEYLESS, Reconcile, LOOK, seen=looking(True, -3)),
    Case("too soon", KEYLESS, Hold, "waiting before the next lookup", seen=looking(True, 3)),
    Case("a key that holds is quicker", LOST, Forward, UNDER_KEY, seen=looking()),
    Case("the key has expired", LOST, Reconcile, LOOK, after=DAY, seen=looking()),
    Case("unclear, and a caller waits", UNCLEAR, Refuse, AMBIGUOUS, seen=looking(True)),
    Case("unclear, in the background", UNCLEAR, Reconcile, LOOK, ask=BACKGROUND, seen=looking()),
    Case("blocked, not looked yet", UNSEEN, Reconcile, LOOK, ask=ALICE, seen=looking()),
    Case(
        "blocked, looked with this credential",
        UNSEEN,
        Refuse,
        CREDENTIALS,
        ask=BOB,
        seen=looking(True, by="bob"),
    ),
    Case(
        "blocked, looked with another one",
        UNSEEN,
        Reconcile,
        LOOK,
        ask=ALICE,
        seen=looking(True, by="bob"),
    ),
    Case(
        "blocked, in the background",
        UNSEEN,
        Reconcile,
        LOOK,
        ask={**BACKGROUND, **ALICE},
        seen=looking(True),
    ),
)
def test_asking_the_api(case: Case) -> None:
    check(case)


def test_a_caller_who_must_wait_is_told_for_how_long() -> None:
    decision = Case("", KEYLESS, Hold, "", seen=looking(True, 2.1)).decide()
    assert isinstance(decision, Hold)
    assert decision.seconds == 2.1
    assert (decision.otherwise.code, decision.otherwise.retry_after) == ("outcome-unknown", 3)
