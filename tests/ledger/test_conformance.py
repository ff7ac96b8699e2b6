"""What every ledger must do, asked of each through the protocol alone."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from proxy.core.model import EMPTY, Answer, Body
from proxy.core.operation import Event, Kind, State
from proxy.core.runs import next_epoch
from proxy.ledger.base import Change, Conflict, Ledger, Lookalike, Query
from tests.ledger.support import (
    ANSWER,
    NOW,
    REQUEST,
    URL,
    change,
    delivered,
    first,
    lost,
    not_sent,
    operation,
    rejected,
    replayed,
    started,
    succeeded,
)

# One change


async def test_a_committed_operation_is_read_back_as_it_was_given(ledger: Ledger) -> None:
    given = operation(
        key_place=("header", "Idempotency-Key"),
        upstream_key="case-7/refund/stripe.refunds.create/v1",
        valid_for=86_400.0,
        account="a1",
        epoch=3,
        idempotent=True,
    )
    made = await ledger.commit(first(given))
    assert made.revision == 1
    assert made.state is State.IN_FLIGHT
    assert ledger.get(made.key) == made
    assert ledger.find(made.base) == made


async def test_endless_validity_and_text_that_is_not_unicode_survive(ledger: Ledger) -> None:
    odd = "https://a.example/\udcff\u00e9"
    made = await ledger.commit(first(operation(url=odd, valid_for=math.inf)))
    found = ledger.get(made.key)
    assert found is not None
    assert (found.url, found.intent.valid_for) == (odd, math.inf)
    assert ledger.alike(Lookalike("case-7", "refund", "POST", odd)) == [made]


async def test_the_outcome_of_an_operation_is_read_back(ledger: Ledger) -> None:
    made = await ledger.commit(first(operation()))
    ended = await ledger.commit(
        change(made, succeeded(external_id="re_1", accepted=True), answer=ANSWER)
    )
    assert ended.revision == 2
    found = ledger.get(made.key)
    assert found == ended
    assert found is not None
    assert found.outcome is not None
    assert (found.outcome.external_id, found.outcome.accepted) == ("re_1", True)


async def test_unknown_keys_are_simply_not_there(ledger: Ledger) -> None:
    made = await ledger.commit(first(operation("step-1")))
    assert ledger.get("case-7/step/stripe.refunds.create/v1") is None
    assert ledger.find("case-7/step-1/stripe.refunds") is None
    assert ledger.find("case-7/step-10/stripe.refunds.create") is None
    assert ledger.get(made.base + "/v2") is None
    assert ledger.run("case") is None
    assert await ledger.request_of("case-7/none/x/v1") is None
    assert await ledger.history("case-7/none/x/v1") == []


async def test_a_change_without_an_event_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="without an event"):
        await ledger.commit(Change(operation(), ()))


# Revisions


async def test_a_second_first_commit_conflicts_and_leaves_no_trace(ledger: Ledger) -> None:
    made = await ledger.commit(first(operation()))
    with pytest.raises(Conflict):
        await ledger.commit(first(operation(fingerprint="other")))
    assert ledger.get(made.key) == made
    assert len(await ledger.history(made.key)) == 1
    assert await ledger.verify() == []


async def test_a_stale_revision_conflicts(ledger: Ledger) -> None:
    made = await ledger.commit(first(operation()))
    await ledger.commit(change(made, lost()))
    with pytest.raises(Conflict):
        await ledger.commit(change(made, succeeded()))
    with pytest.raises(Conflict):
        await ledger.commit(change(replace(operation("never"), revision=4), started()))


async def test_one_conflict_among_many_changes_fails_alone(ledger: Ledger) -> None:
    taken = await ledger.commit(first(operation("s-5")))
    results = await asyncio.gather(
        *(ledger.commit(first(operation(f"s-{n}"))) for n in range(20)), return_exceptions=True
    )
    failed = [n for n, result in enumerate(results) if isinstance(result, BaseException)]
    assert failed == [5]
    assert isinstance(results[5], Conflict)
    assert len(await ledger.operations(Query(limit=100))) == 20
    assert ledger.get(taken.key) == taken
    assert await ledger.verify() == []


async def test_of_many_racing_first_commits_exactly_one_wins(ledger: Ledger) -> None:
    results = await asyncio.gather(
        *(ledger.commit(first(operation(fingerprint=str(n)))) for n in range(50)),
        return_exceptions=True,
    )
    won = [result for result in results if not isinstance(result, BaseException)]
    assert len(won) == 1
    assert ledger.get(won[0].key) == won[0]


async def test_giving_up_the_wait_does_not_take_the_change_back(ledger: Ledger) -> None:
    waiting = asyncio.ensure_future(ledger.commit(first(operation())))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await ledger.flush()
    assert ledger.get("case-7/refund/stripe.refunds.create/v1") is not None
    await ledger.commit(first(operation("next")))


# Finding


async def test_find_gives_the_newest_version(ledger: Ledger) -> None:
    for version in (1, 2, 9, 10):
        await ledger.commit(first(operation(version=version)))
    found = ledger.find(operation().base)
    assert found is not None
    assert found.version == 10


async def test_find_looks_under_earlier_names_too(ledger: Ledger) -> None:
    old = operation(name="stripe.refund", version=3)
    await ledger.commit(first(old))
    base = operation().base
    assert ledger.find(base) is None
    found = ledger.find(base, [old.base])
    assert found is not None
    assert found.version == 3
    await ledger.commit(first(operation(version=4)))
    found = ledger.find(base, [old.base])
    assert found is not None
    assert (found.name, found.version) == ("stripe.refunds.create", 4)


async def test_lookalikes_share_run_step_method_and_url(ledger: Ledger) -> None:
    one = await ledger.commit(first(operation(at=NOW)))
    two = await ledger.commit(first(operation(name="stripe.other", at=NOW + 1)))
    await ledger.commit(first(operation("other-step")))
    await ledger.commit(first(operation(run="case-8")))
    await ledger.commit(first(operation(name="a", method="PUT")))
    await ledger.commit(first(operation(name="b", url=URL + "/x")))
    assert ledger.alike(Lookalike("case-7", "refund", "POST", URL)) == [two, one]


async def test_an_operation_whose_url_was_corrected_is_found_under_the_new_one(
    ledger: Ledger,
) -> None:
    made = await ledger.commit(first(operation()))
    free = await ledger.commit(change(made, not_sent()))
    corrected = replace(free, url=URL + "/2")
    again = await ledger.commit(change(corrected, started(2, at=NOW + 5), request=REQUEST))
    assert ledger.alike(Lookalike("case-7", "refund", "POST", URL)) == []
    assert ledger.alike(Lookalike("case-7", "refund", "POST", URL + "/2")) == [again]
    assert ledger.written_since(("POST", URL + "/2"), NOW, "")
    assert ledger.get(made.key) == again


async def test_the_newest_operation_with_a_callers_key_is_found(ledger: Ledger) -> None:
    await ledger.commit(first(operation("a", caller_key="k1", at=NOW)))
    newest = await ledger.commit(first(operation("b", caller_key="k1", at=NOW + 1)))
    await ledger.commit(first(operation("c", caller_key="k2", at=NOW + 2)))
    assert ledger.by_caller_key("stripe", "k1") == newest
    assert ledger.by_caller_key("github", "k1") is None
    assert ledger.by_caller_key("stripe", "k3") is None


async def test_an_external_object_has_one_owner_per_account(ledger: Ledger) -> None:
    for step, account in (("a", "acct"), ("b", None)):
        made = await ledger.commit(first(operation(step, account=account)))
        await ledger.commit(change(made, succeeded(external_id="re_1"), answer=ANSWER))
    place = ("stripe", "refunds.create")
    assert ledger.adopted(*place, "acct", "re_1") == operation("a").key
    assert ledger.adopted(*place, None, "re_1") == operation("b").key
    assert ledger.adopted(*place, "else", "re_1") is None
    assert ledger.adopted(*place, None, "re_2") is None
    assert ledger.adopted("stripe", "charges.create", None, "re_1") is None


async def test_later_writes_to_a_url_by_others_are_seen(ledger: Ledger) -> None:
    mine = await ledger.commit(first(operation("mine", method="DELETE", at=NOW)))
    place = ("DELETE", URL)
    assert not ledger.written_since(place, NOW - 1, mine.key)
    other = await ledger.commit(first(operation("other", method="PUT", at=NOW + 5)))
    assert ledger.written_since(place, NOW, mine.key)
    assert not ledger.written_since(place, NOW + 5, mine.key)
    assert not ledger.written_since(("DELETE", URL + "/x"), NOW, mine.key)
    await ledger.commit(change(other, not_sent()))
    assert not ledger.written_since(place, NOW, mine.key), "provably not sent is no write"


async def test_a_run_exists_from_its_first_change(ledger: Ledger) -> None:
    await ledger.commit(first(operation("a", epoch=2)))
    await ledger.commit(first(operation("b", epoch=3)))
    run = ledger.run("case-7")
    assert run is not None
    assert (run.epoch, run.closed, run.generation) == (2, None, ledger.generation)
    assert run.created_at == NOW


async def test_each_start_of_a_run_is_its_next_epoch(ledger: Ledger) -> None:
    begun = await ledger.amend("case-7", next_epoch(0.0))
    assert (begun.epoch, begun.closed, begun.generation) == (1, None, ledger.generation)
    await ledger.commit(first(operation(epoch=1)))
    assert (await ledger.amend("case-7", next_epoch(0.0))).epoch == 2
    epochs = await asyncio.gather(*(ledger.amend("case-7", next_epoch(0.0)) for _ in range(3)))
    assert [run.epoch for run in epochs] == [3, 4, 5]
    assert ledger.run("case-7") == epochs[-1]
    assert await ledger.verify() == []


# Contents


class Spooled:
    """A body kept elsewhere, in pieces."""

    def chunks(self) -> Iterator[bytes]:
        yield b"x" * 100_000
        yield b"y" * 100_000


async def test_request_and_answer_come_back_byte_for_byte(ledger: Ledger) -> None:
    raw = Body.of(bytes(range(256)))
    request = replace(REQUEST, headers=(*REQUEST.headers, ("X-Raw", "\udcff\udc80")), body=raw)
    answer = Answer(204, "", (("Set", "a"), ("Set", "b")), EMPTY)
    made = await ledger.commit(change(operation(), started(), request=request))
    await ledger.commit(change(made, succeeded(), answer=answer))
    assert await ledger.request_of(made.key) == request
    assert await ledger.answer_of(made.key) == answer


async def test_a_spooled_body_is_kept_whole(ledger: Ledger) -> None:
    whole = Body.of(b"x" * 100_000 + b"y" * 100_000)
    request = REQUEST.with_(body=Body(whole.size, whole.sha256, None, Spooled()))
    made = await ledger.commit(change(operation(), started(), request=request))
    found = await ledger.request_of(made.key)
    assert found is not None
    assert found.body == whole


async def test_an_answer_without_a_body_stays_one(ledger: Ledger) -> None:
    made = await ledger.commit(first(operation()))
    await ledger.commit(change(made, succeeded(), answer=replace(ANSWER, body=None)))
    found = await ledger.answer_of(made.key)
    assert found is not None
    assert found.body is None


async def test_contents_not_given_are_none_and_later_ones_replace(ledger: Ledger) -> None:
    made = await ledger.commit(change(operation(), started()))
    assert await ledger.request_of(made.key) is None
    assert await ledger.answer_of(made.key) is None
    made = await ledger.commit(change(made, lost(), request=REQUEST, answer=ANSWER))
    made = await ledger.commit(change(made, started(2)))
    assert await ledger.answer_of(made.key) == ANSWER
    better = replace(ANSWER, status=201)
    await ledger.commit(change(made, succeeded(2), answer=better))
    assert await ledger.answer_of(made.key) == better
    assert await ledger.request_of(made.key) == REQUEST


# Notes


async def test_a_note_is_history_and_moves_nothing(ledger: Ledger) -> None:
    made = await ledger.commit(first(operation()))
    ended = await ledger.commit(change(made, succeeded(), answer=ANSWER))
    ledger.note(ended, replayed())
    await ledger.flush()
    kinds = [stored.event.kind for stored in await ledger.history(made.key)]
    assert kinds == [Kind.ATTEMPT_STARTED, Kind.OUTCOME_RECORDED, Kind.REPLAYED]
    assert ledger.get(made.key) == ended
    assert await ledger.verify() == []


async def test_a_delivered_answer_is_seen_at_once_and_after_a_flush(ledger: Ledger) -> None:
    made = await ledger.commit(first(operation()))
    ended = await ledger.commit(change(made, rejected(), answer=ANSWER))
    ledger.note(ended, delivered(epoch=1))
    ledger.note(ended, delivered(epoch=2))
    at_once = ledger.find(made.base)
    await ledger.flush()
    assert at_once is not None
    assert at_once.delivered_epoch == 2
    assert ledger.find(made.base) == at_once
    assert await ledger.verify() == []


async def test_a_change_of_what_was_read_right_after_a_note_does_not_conflict(
    ledger: Ledger,
) -> None:
    made = await ledger.commit(first(operation()))
    unknown = await ledger.commit(change(made, lost()))
    ledger.note(unknown, delivered())
    seen = ledger.get(made.key)
    assert seen is not None
    again = await ledger.commit(change(seen, started(2)))
    assert again.delivered_epoch == 1
    assert ledger.get(made.key) == again


# History


async def test_event_data_survives_whatever_json_can_hold(ledger: Ledger) -> None:
    data = {"n": 2**70, "f": 1.5, "none": None, "end": math.inf, "bytes": "\udcff", "l": [1, {}]}
    made = await ledger.commit(change(operation(), started(**data)))
    stored = (await ledger.history(made.key))[0].event
    assert stored == Event(Kind.ATTEMPT_STARTED, NOW, {"attempt": 1, "keyed": True, **data})


async def test_events_come_in_order_and_in_pages(ledger: Ledger) -> None:
    for n in range(7):
        await ledger.commit(first(operation(f"s-{n}", run=f"r-{n % 2}")))
    page = await ledger.events(after=0, limit=4)
    rest = await ledger.events(after=page[-1].seq)
    assert [stored.seq for stored in (*page, *rest)] == [1, 2, 3, 4, 5, 6, 7]
    assert page[1].run == "r-1"
    assert page[1].key == operation("s-1", run="r-1").key
    assert len({stored.hash for stored in (*page, *rest)}) == 7


async def test_events_can_be_of_some_kinds_only(ledger: Ledger) -> None:
    assert ledger.last_event() == 0
    for n in range(5):
        made = await ledger.commit(first(operation(f"s-{n}")))
        if n % 2:
            await ledger.commit(change(made, lost()))
    found = await ledger.events(after=0, kinds=(Kind.ATTEMPT_LOST,))
    assert [stored.event.kind for stored in found] == [Kind.ATTEMPT_LOST] * 2
    assert ledger.last_event() == 7
    [second] = await ledger.events(found[0].seq, kinds=(Kind.ATTEMPT_LOST, Kind.REPLAYED))
    assert second == found[1]
    assert await ledger.events(0, 1, kinds=(Kind.ATTEMPT_LOST,)) == found[:1]


async def test_a_bookmark_is_kept_apart_and_replaced(ledger: Ledger) -> None:
    assert await ledger.bookmark("canary") is None
    await ledger.set_bookmark("canary", b"1")
    await ledger.set_bookmark("canary", b"2")
    assert await ledger.bookmark("canary") == b"2"
    assert await ledger.bookmark("other") is None
    assert await ledger.verify() == []


async def test_several_events_of_one_change_keep_their_order(ledger: Ledger) -> None:
    made = await ledger.commit(change(operation(), started(), lost(), replayed()))
    kinds = [stored.event.kind for stored in await ledger.history(made.key)]
    assert kinds == [Kind.ATTEMPT_STARTED, Kind.ATTEMPT_LOST, Kind.REPLAYED]
    assert await ledger.verify() == []


# Lists and numbers


async def test_lists_filter_and_come_newest_first(ledger: Ledger) -> None:
    for n in range(5):
        made = await ledger.commit(first(operation(f"s-{n}", run=f"r-{n % 2}", at=NOW + n)))
        if n == 2:
            await ledger.commit(change(made, lost(at=NOW + 9)))
    steps = [o.step for o in await ledger.operations(Query())]
    assert steps == ["s-4", "s-3", "s-2", "s-1", "s-0"]
    assert [o.step for o in await ledger.operations(Query(run="r-1"))] == ["s-3", "s-1"]
    unknown = await ledger.operations(Query(states=(State.UNKNOWN,)))
    assert [o.step for o in unknown] == ["s-2"]
    ends = await ledger.operations(Query(states=(State.SUCCEEDED, State.UNKNOWN)))
    assert [o.step for o in ends] == ["s-2"]
    assert [o.step for o in await ledger.operations(Query(limit=2, before=NOW + 3))] == [
        "s-2",
        "s-1",
    ]
    assert await ledger.operations(Query(service="github")) == []
    assert [o.step for o in await ledger.operations(Query(run="r-0", step="-4"))] == ["s-4"]
    assert await ledger.operations(Query(step="S-4")) == await ledger.operations(Query(step="%"))


async def test_unsettled_operations_are_those_in_flight_or_unknown(ledger: Ledger) -> None:
    flying = await ledger.commit(first(operation("a", at=NOW)))
    made = await ledger.commit(first(operation("b", at=NOW + 1)))
    unknown = await ledger.commit(change(made, lost()))
    made = await ledger.commit(first(operation("c")))
    await ledger.commit(change(made, succeeded(), answer=ANSWER))
    assert await ledger.unsettled() == [flying, unknown]


async def test_counts_are_by_service_when_unsettled_and_in_total_by_state(ledger: Ledger) -> None:
    for n in range(3):
        made = await ledger.commit(first(operation(f"s-{n}")))
        if n > 0:
            await ledger.commit(change(made, lost()))
        if n > 1:
            found = ledger.get(made.key)
            assert found is not None
            await ledger.commit(change(found, succeeded()))
    counts = await ledger.counts()
    assert counts["stripe", "in_flight", None] == 1
    assert counts["stripe", "unknown", "lag"] == 1
    assert counts["", "succeeded", None] == 1
    assert counts["", "unknown", None] == 1
    assert counts["", "failed", None] == 0
    assert ("stripe", "succeeded", None) not in counts


async def test_stats_count_changes(ledger: Ledger) -> None:
    await asyncio.gather(*(ledger.commit(first(operation(f"s-{n}"))) for n in range(10)))
    stats = ledger.stats()
    assert stats.changes == 10
    assert 1 <= stats.commits <= 10
    assert sum(stats.batch_sizes) == 10


async def test_nothing_found_wrong_in_a_used_ledger(ledger: Ledger) -> None:
    for n in range(30):
        made = await ledger.commit(first(operation(f"s-{n}", run=f"r-{n % 3}")))
        ended = await ledger.commit(change(made, succeeded(external_id=f"re_{n}"), answer=ANSWER))
        ledger.note(ended, delivered())
    await ledger.flush()
    assert await ledger.verify() == []
    assert await ledger.verify("r-1") == []
