"""What one lookup has taught, and when the next one is worth making."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from proxy.core.decide import Watch
from proxy.core.model import EMPTY, Answer
from proxy.core.operation import Kind
from proxy.core.reconcile import Found, Inconclusive, LookupVerdict, NoneFound, Several
from proxy.core.rules import Lookup
from proxy.core.settle import FAST_LOOKS, SLOWEST_LOOK, Learned, lookup_ended, next_look_in
from tests.fakes.operations import T

LOOKUP = Lookup("GET", None, running=60.0, settle=5.0, looks=2)  # type: ignore[arg-type]
BY_CONTENT = replace(LOOKUP, by="content")
ANSWER = Answer(201, "", (), EMPTY)
FOUND = Found("x_1", {}, ANSWER)
NONE = NoneFound()
QUIET = Watch(quiet_for=65.0)


def learned(
    verdict: LookupVerdict, lookup: Lookup = LOOKUP, watch: Watch = QUIET, **more: Any
) -> Learned:
    given: dict[str, Any] = {"adopted_by": None, "marked": True, "same_view": True, **more}
    result = lookup_ended(lookup, verdict, watch, T, **given)
    assert len(result.events) == 1
    return result


def taught(*args: Any, **more: Any) -> tuple[Kind, Any]:
    """The event, and what it is blocked by or whether it is conclusive or succeeded."""
    event = learned(*args, **more).events[0]
    names = ("blocked_by", "conclusive", "succeeded")
    return event.kind, next((event.data[n] for n in names if n in event.data), None)


# -- something is there ----------------------------------------------------------------------------


def test_an_object_is_the_effect_with_its_id_and_status() -> None:
    data = learned(FOUND).events[0].data
    assert (data["succeeded"], data["external_id"], data["status"]) == (True, "x_1", 201)


@pytest.mark.parametrize(
    ("verdict", "lookup", "more", "expected"),
    [
        pytest.param(FOUND, LOOKUP, {}, (Kind.EFFECT_FOUND, True), id="one"),
        pytest.param(
            replace(FOUND, failed=True), LOOKUP, {}, (Kind.EFFECT_FOUND, False), id="a refusal"
        ),
        pytest.param(
            replace(FOUND, external_id=None), LOOKUP, {}, (Kind.EFFECT_FOUND, True), id="no id"
        ),
        pytest.param(FOUND, BY_CONTENT, {}, (Kind.EFFECT_FOUND, True), id="one, by its content"),
        pytest.param(
            replace(FOUND, external_id=None),
            BY_CONTENT,
            {},
            (Kind.EFFECT_AMBIGUOUS, None),
            id="no id, by its content",
        ),
        pytest.param(
            FOUND, LOOKUP, {"adopted_by": "r/s/o/v1"}, (Kind.EFFECT_AMBIGUOUS, None), id="owned"
        ),
        pytest.param(
            FOUND, LOOKUP, {"same_view": False}, (Kind.EFFECT_FOUND, True), id="seen by another"
        ),
        pytest.param(
            FOUND, LOOKUP, {"watch": Watch()}, (Kind.EFFECT_FOUND, True), id="at the first look"
        ),
        pytest.param(Several(2), LOOKUP, {}, (Kind.EFFECT_AMBIGUOUS, None), id="several"),
    ],
)
def test_one_object_is_adopted_at_once_and_anything_else_goes_to_a_person(
    verdict: LookupVerdict, lookup: Lookup, more: dict[str, Any], expected: tuple[Kind, Any]
) -> None:
    assert taught(verdict, lookup, **more) == expected
    assert not learned(verdict, lookup, **more).counts


def test_a_lookup_that_failed_says_what_stood_in_the_way() -> None:
    failed = learned(Inconclusive("query_failed", "status 500"))
    assert failed.failed
    assert failed.events[0].data == {"blocked_by": "query_failed", "reason": "status 500"}


# -- nothing is there ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lookup", "more", "blocked_by"),
    [
        pytest.param(LOOKUP, {"same_view": False}, "credentials", id="another credential looked"),
        pytest.param(LOOKUP, {"marked": False}, "no_query", id="it carried no mark"),
        pytest.param(replace(LOOKUP, settle=None), {}, "ambiguous", id="absence never settles"),
        pytest.param(replace(LOOKUP, absent="ask"), {}, "ambiguous", id="the rule asks a person"),
        pytest.param(BY_CONTENT, {}, "ambiguous", id="it looked by content"),
    ],
)
def test_an_absence_that_proves_nothing(
    lookup: Lookup, more: dict[str, Any], blocked_by: str
) -> None:
    enough = Watch(quiet_for=1e6, looks=9)
    assert taught(NONE, lookup, enough, **more) == (Kind.LOOKUP_INCONCLUSIVE, blocked_by)
    assert not learned(NONE, lookup, enough, **more).counts


@pytest.mark.parametrize("lookup", [BY_CONTENT, replace(LOOKUP, settle=None)])
def test_no_person_is_asked_while_the_object_may_just_not_show_yet(lookup: Lookup) -> None:
    assert taught(NONE, lookup, Watch(quiet_for=64.9)) == (Kind.EFFECT_ABSENT, False)
    assert taught(NONE, lookup, QUIET) == (Kind.LOOKUP_INCONCLUSIVE, "ambiguous")


@pytest.mark.parametrize(
    ("quiet_for", "looks", "shifting", "wanted", "counts", "conclusive"),
    [
        pytest.param(64.9, 0, False, 2, False, False, id="the API may still be at work"),
        pytest.param(64.9, 5, False, 2, False, False, id="bytes left again since"),
        pytest.param(65.0, 0, False, 2, True, False, id="the first look"),
        pytest.param(65.0, 1, False, 2, True, True, id="the second agrees"),
        pytest.param(65.0, 0, False, 1, True, True, id="one look is enough"),
        pytest.param(65.0, 0, True, 1, True, False, id="pages that shift need two"),
        pytest.param(65.0, 1, True, 1, True, True, id="and two are enough"),
        pytest.param(65.0, 1, True, 3, True, False, id="unless the rule wants more"),
    ],
)
def test_an_absence_is_believed_late_enough_and_often_enough(
    quiet_for: float, looks: int, shifting: bool, wanted: int, counts: bool, conclusive: bool
) -> None:
    lookup, watch = replace(LOOKUP, looks=wanted), Watch(quiet_for=quiet_for, looks=looks)
    result = learned(NoneFound(shifting), lookup, watch)
    assert result.events[0].kind is Kind.EFFECT_ABSENT
    assert (result.counts, result.events[0].data["conclusive"]) == (counts, conclusive)


# -- the next look ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lookup", "quiet_for", "since_last", "looks", "tries", "seconds"),
    [
        pytest.param(LOOKUP, 0, None, 0, 0, 0, id="the first, at once"),
        pytest.param(LOOKUP, 0, 0, 0, 1, 5, id="then after settle"),
        pytest.param(LOOKUP, 5, 0, 0, 2, 10, id="then doubling"),
        pytest.param(LOOKUP, 15, 4, 0, 2, 6, id="less what has passed"),
        pytest.param(LOOKUP, 60, 0, 0, 5, 5, id="never later than absence is believable"),
        pytest.param(LOOKUP, 70, 0, 1, 6, 5, id="then spaced by settle"),
        pytest.param(LOOKUP, 70, 8, 0, 6, -3, id="overdue"),
        pytest.param(LOOKUP, 1e4, 0, 0, FAST_LOOKS, 5, id="the last of the quick ones"),
        pytest.param(LOOKUP, 1e4, 0, 0, FAST_LOOKS + 1, SLOWEST_LOOK, id="no verdict in sight"),
        pytest.param(LOOKUP, 1e4, 0, 1, FAST_LOOKS + 1, 5, id="unless one has counted"),
        pytest.param(replace(LOOKUP, settle=None), 0, 0, 0, 1, 5, id="never settles"),
        pytest.param(replace(LOOKUP, settle=None), 1e4, 0, 0, 9, SLOWEST_LOOK, id="and slows down"),
        pytest.param(replace(LOOKUP, settle=0.0), 1e4, 0, 0, 1, 0.05, id="not in a busy loop"),
    ],
)
def test_the_next_look(
    lookup: Lookup,
    quiet_for: float,
    since_last: float | None,
    looks: int,
    tries: int,
    seconds: float,
) -> None:
    wait = next_look_in(
        lookup, quiet_for=quiet_for, since_last=since_last, looks=looks, tries=tries
    )
    assert wait == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        (T - 3599, (Kind.EFFECT_ABSENT, True)),
        (T - 3601, (Kind.LOOKUP_INCONCLUSIVE, "ambiguous")),
    ],
)
def test_what_a_service_may_have_forgotten_is_not_sent_again(since: float, expected: Any) -> None:
    forgets = replace(LOOKUP, remembers=3600.0)
    watch = replace(QUIET, looks=1)
    assert taught(NONE, forgets, watch, since=since) == expected
    assert taught(NONE, LOOKUP, watch, since=since) == (Kind.EFFECT_ABSENT, True)
    assert taught(FOUND, forgets, watch, since=since) == (Kind.EFFECT_FOUND, True)
