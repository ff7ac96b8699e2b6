"""What was read a moment ago, and what makes it old."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from proxy.core.model import Answer, Body
from proxy.core.operation import Operation, State, changed
from proxy.ledger import recent
from proxy.ledger.recent import Recent
from proxy.ledger.sqlite import SqliteLedger
from tests.ledger.support import NOW, change, delivered, first, operation, rejected, succeeded

LATER = NOW + 200 * 86_400.0  # later than any retention
ANSWER = Answer(201, "Created", (("Content-Type", "text/plain"),), Body.of(b"th_1"))


async def test_an_end_is_read_once_and_found_again(sqlite: SqliteLedger, path: Path) -> None:
    begun = await sqlite.commit(first(operation()))
    ended = await sqlite.commit(change(begun, succeeded(), answer=ANSWER))
    assert sqlite.find(ended.base) == ended
    assert sqlite.answer_at_hand(ended.key) == ANSWER
    with closing(sqlite3.connect(path)) as db:  # the file is not asked again
        db.execute("DROP TABLE contents")
    assert sqlite.find(ended.base) is sqlite.find(ended.base)
    assert sqlite.answer_at_hand(ended.key) == ANSWER


async def test_a_change_is_seen_by_the_next_read(sqlite: SqliteLedger) -> None:
    begun = await sqlite.commit(first(operation()))
    failed = await sqlite.commit(change(begun, rejected()))
    assert sqlite.find(failed.base) == failed
    late = await sqlite.commit(change(failed, succeeded(), answer=ANSWER))
    found = sqlite.find(failed.base)
    assert found == late
    assert found.state is State.SUCCEEDED
    assert sqlite.answer_at_hand(late.key) == ANSWER


async def test_a_later_version_is_seen_by_the_next_read(sqlite: SqliteLedger) -> None:
    begun = await sqlite.commit(first(operation()))
    failed = await sqlite.commit(change(begun, rejected()))
    assert sqlite.find(failed.base) == failed
    second = await sqlite.commit(first(operation(version=2)))
    assert sqlite.find(failed.base) == second


async def test_a_note_that_moves_the_row_is_seen_before_and_after_it_is_durable(
    sqlite: SqliteLedger,
) -> None:
    begun = await sqlite.commit(first(operation()))
    failed = await sqlite.commit(change(begun, rejected()))
    assert sqlite.find(failed.base) == failed
    sqlite.note(failed, delivered(epoch=3))
    before = sqlite.find(failed.base)
    assert before is not None
    assert before.delivered_epoch == 3
    await sqlite.flush()
    assert sqlite.find(failed.base) == before


async def test_what_retention_takes_is_gone_here_too(sqlite: SqliteLedger) -> None:
    begun = await sqlite.commit(first(operation()))
    ended = await sqlite.commit(change(begun, succeeded(), answer=ANSWER))
    assert sqlite.find(ended.base) == ended
    assert sqlite.answer_at_hand(ended.key) == ANSWER
    sqlite._clock.advance(LATER - NOW)  # type: ignore[attr-defined]
    assert await sqlite.prune(LATER, 10) == 1
    pruned = sqlite.find(ended.base)
    assert pruned is not None
    assert pruned.outcome is not None
    assert not pruned.outcome.kept
    assert sqlite.answer_at_hand(ended.key) is None
    assert await sqlite.forget(LATER, 10) == 1
    assert sqlite.find(ended.base) is None


def in_state(state: State, step: str) -> Operation:
    return changed(operation(step), state=state)


def test_only_ends_are_kept_and_the_oldest_are_given_up() -> None:
    known = Recent()
    known.keep(in_state(State.IN_FLIGHT, "open"))
    assert known.operation(operation(step="open").base) is None
    ends = [in_state(State.SUCCEEDED, f"s-{n}") for n in range(recent.REMEMBERED + 1)]
    for end in ends:
        known.keep(end)
    assert known.operation(ends[0].base) is None
    assert known.operation(ends[1].base) is ends[1]


def test_answers_are_bounded_by_their_size() -> None:
    known = Recent()
    big = Answer(200, "", (), Body.of(b"x" * recent.ANSWER_LIMIT))
    ends = [
        in_state(State.SUCCEEDED, f"s-{n}")
        for n in range(recent.ANSWERS_BYTES // recent.ANSWER_LIMIT + 1)
    ]
    for end in ends:
        known.keep(end)
        known.keep_answer(end.key, big)
    assert known.answer(ends[0].key) is None
    assert known.answer(ends[-1].key) is big
    known.keep_answer(ends[-1].key, Answer(200, "", (), Body.of(big.body.data + b"x")))
    assert known.answer(ends[-1].key) is big, "a longer one is left where it is"
