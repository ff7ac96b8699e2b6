"""What one attempt has taught: every verdict, with an earlier attempt undecided and without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from proxy.core.classify import Verdict
from proxy.core.conditions import Condition
from proxy.core.model import EMPTY, Answer, Answered, Denied, Lost, NotSent
from proxy.core.operation import End, Event, Kind, Operation, State
from proxy.core.rules import AnswerLine, Endpoint, KeySpec, Lookup
from proxy.core.settle import abandoned, attempt_ended
from proxy.core.transitions import evolve_all
from tests.fakes.operations import T, lost, operation, started, tries

KEY = KeySpec("header", "Idempotency-Key")
ENDPOINT = Endpoint(service="svc", name="create", match=None, digest="", key=KEY)
MARKS_REPLAYS = replace(ENDPOINT, answers=(AnswerLine(Condition(()), replayed=True),))
LOOKUP = Lookup("GET", None)  # type: ignore[arg-type]
FIRST = operation(started(), keeps="all")
AFTER_A_LOST_ONE = operation(*tries(1), started(2), keeps="all")


def verdict(means: str, *, replayed: bool = False) -> Verdict:
    return Verdict(means, replayed, "x_1" if means in ("succeeded", "accepted") else None, "why")


def ended(
    before: Operation,
    means: str,
    status: int = 200,
    *,
    endpoint: Endpoint = ENDPOINT,
    replayed: bool = False,
    **more: Any,
) -> tuple[Event, ...]:
    assert before.last is not None
    answer = Answered(Answer(status, "", (), EMPTY))
    said = verdict(means, replayed=replayed)
    return attempt_ended(before, endpoint, before.last.number, answer, said, T, **more)


def after(before: Operation, *args: Any, **more: Any) -> Operation:
    return evolve_all(before, ended(before, *args, **more))


# -- no answer -----------------------------------------------------------------------------------


def test_what_was_not_sent_is_free_to_be_sent() -> None:
    events = attempt_ended(FIRST, ENDPOINT, 1, NotSent("refused"), None, T)
    assert evolve_all(FIRST, events).state is State.NOT_APPLIED
    assert "denied" not in events[0].data


def test_an_address_that_may_not_be_called_is_remembered_as_such() -> None:
    events = attempt_ended(FIRST, ENDPOINT, 1, Denied("metadata address"), None, T)
    assert evolve_all(FIRST, events).attempts[0].denied


def test_what_was_not_sent_frees_no_earlier_attempt() -> None:
    events = attempt_ended(AFTER_A_LOST_ONE, ENDPOINT, 2, NotSent("refused"), None, T)
    assert evolve_all(AFTER_A_LOST_ONE, events).state is State.UNKNOWN


@pytest.mark.parametrize(
    ("endpoint", "blocked_by"),
    [
        (replace(ENDPOINT, reconcile=(LOOKUP,)), "lag"),
        (replace(ENDPOINT, key=None, reconcile=(LOOKUP,)), "lag"),
        (ENDPOINT, None),
        (replace(ENDPOINT, key=None), "no_query"),
    ],
    ids=["key and lookup", "lookup", "key", "neither"],
)
def test_a_lost_attempt_is_unknown_and_says_what_it_waits_for(
    endpoint: Endpoint, blocked_by: str | None
) -> None:
    events = attempt_ended(FIRST, endpoint, 1, Lost("reset"), None, T)
    unknown = evolve_all(FIRST, events)
    assert (unknown.state, unknown.blocked_by) == (State.UNKNOWN, blocked_by)


# -- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("means", "status", "alone", "after_a_lost_one"),
    [
        ("succeeded", 200, State.SUCCEEDED, State.SUCCEEDED),
        ("accepted", 202, State.SUCCEEDED, State.SUCCEEDED),
        ("rejected", 400, State.FAILED, State.FAILED),
        ("rejected", 422, State.FAILED, State.FAILED),
        ("rejected", 403, State.FAILED, State.UNKNOWN),
        ("rejected", 404, State.FAILED, State.UNKNOWN),
        ("rejected", 412, State.FAILED, State.UNKNOWN),
        ("not_applied", 401, State.NOT_APPLIED, State.UNKNOWN),
        ("not_applied", 429, State.NOT_APPLIED, State.UNKNOWN),
        ("unknown", 500, State.UNKNOWN, State.UNKNOWN),
        ("running", 409, State.UNKNOWN, State.UNKNOWN),
        ("mismatch", 400, State.UNKNOWN, State.UNKNOWN),
        ("exists", 409, State.UNKNOWN, State.UNKNOWN),
    ],
)
def test_what_an_answer_makes_of_the_operation(
    means: str, status: int, alone: State, after_a_lost_one: State
) -> None:
    """Under one key that keeps all answers and does not mark what it replays."""
    assert after(FIRST, means, status).state is alone
    assert after(AFTER_A_LOST_ONE, means, status).state is after_a_lost_one


@pytest.mark.parametrize("means", ["running", "mismatch", "exists"])
def test_an_answer_about_our_key_is_the_reason_that_is_kept(means: str) -> None:
    assert after(FIRST, means, 409).attempts[0].reason == means


def test_a_success_brings_its_id_and_whether_it_is_kept() -> None:
    outcome = after(FIRST, "accepted", 202, kept=False).outcome
    assert outcome is not None
    assert (outcome.external_id, outcome.status) == ("x_1", 202)
    assert (outcome.accepted, outcome.kept) == (True, False)


# -- does a refusal speak for the attempts before it? ----------------------------------------------

UNKEYED_FIRST = operation(*tries(1, keyed=False), started(2), keeps="all")
UNKEYED_NOW = operation(*tries(1), started(2, keyed=False), keeps="all")
UNSTATED = operation(*tries(1), started(2))


@pytest.mark.parametrize(
    ("before", "endpoint", "replayed", "status", "speaks"),
    [
        pytest.param(AFTER_A_LOST_ONE, ENDPOINT, False, 402, True, id="the API keeps all answers"),
        pytest.param(AFTER_A_LOST_ONE, ENDPOINT, False, 403, False, id="it may be this call's own"),
        pytest.param(AFTER_A_LOST_ONE, MARKS_REPLAYS, False, 402, False, id="it has no mark"),
        pytest.param(AFTER_A_LOST_ONE, MARKS_REPLAYS, True, 402, True, id="it is marked"),
        pytest.param(AFTER_A_LOST_ONE, MARKS_REPLAYS, True, 403, True, id="a marked 403"),
        pytest.param(UNSTATED, ENDPOINT, False, 402, False, id="what is kept is not stated"),
        pytest.param(UNSTATED, MARKS_REPLAYS, True, 402, True, id="not stated, but marked"),
        pytest.param(UNKEYED_FIRST, ENDPOINT, True, 402, False, id="the first had no key"),
        pytest.param(UNKEYED_NOW, ENDPOINT, True, 402, False, id="this one had no key"),
    ],
)
def test_a_refusal_closes_earlier_attempts_only_as_the_apis_recorded_answer(
    before: Operation, endpoint: Endpoint, replayed: bool, status: int, speaks: bool
) -> None:
    closed = after(before, "rejected", status, endpoint=endpoint, replayed=replayed)
    assert closed.state is (State.FAILED if speaks else State.UNKNOWN)
    assert closed.attempts[0].end is (End.ABSENT if speaks else End.UNKNOWN)


# -- DELETE --------------------------------------------------------------------------------------


def deleted(*events: Event) -> Operation:
    return operation(*events, method="DELETE", upstream_key=None)


@pytest.mark.parametrize(
    ("before", "status", "state"),
    [
        pytest.param(deleted(*tries(1), started(2)), 404, State.SUCCEEDED, id="ours took it away"),
        pytest.param(deleted(started()), 404, State.FAILED, id="it never was there"),
        pytest.param(deleted(*tries(1), started(2)), 403, State.UNKNOWN, id="forbidden"),
        pytest.param(
            deleted(*tries(1, credential="alice"), started(2, credential="bob")),
            404,
            State.UNKNOWN,
            id="another credential does not see it",
        ),
        pytest.param(
            operation(*tries(1), started(2), method="PUT"), 404, State.UNKNOWN, id="no DELETE"
        ),
    ],
)
def test_gone_is_the_success_of_an_own_earlier_delete(
    before: Operation, status: int, state: State
) -> None:
    assert after(before, "rejected", status).state is state


# -- marks of replay -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("means", "status"), [("succeeded", 200), ("rejected", 402), ("unknown", 500)]
)
def test_a_replay_mark_on_a_first_send_is_somebody_elses_effect(means: str, status: int) -> None:
    kinds = [e.kind for e in ended(FIRST, means, status, replayed=True)]
    assert kinds[1:] == [Kind.FOREIGN_EFFECT]
    assert Kind.FOREIGN_EFFECT not in [e.kind for e in ended(FIRST, means, status)]
    again = ended(AFTER_A_LOST_ONE, means, status, replayed=True)
    assert Kind.FOREIGN_EFFECT not in [e.kind for e in again]


# -- nobody drives it any more ---------------------------------------------------------------------


def test_an_attempt_left_open_may_have_been_sent() -> None:
    assert evolve_all(FIRST, abandoned(FIRST, T)).state is State.UNKNOWN


def test_an_attempt_left_open_that_is_known_not_to_have_left_was_not_sent() -> None:
    assert evolve_all(FIRST, abandoned(FIRST, T, {1})).state is State.NOT_APPLIED
    assert evolve_all(FIRST, abandoned(FIRST, T, {2})).state is State.UNKNOWN


def test_attempts_that_have_ended_are_not_ended_again() -> None:
    assert abandoned(operation(started(), lost()), T) == ()
    assert [e.data["attempt"] for e in abandoned(AFTER_A_LOST_ONE, T)] == [2]
