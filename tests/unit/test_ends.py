"""Replies to duplicates that are made once: as long as record and answer are the very same."""

from __future__ import annotations

from proxy.core.model import Answer, Body
from proxy.core.operation import Operation, changed
from proxy.net.exchange import Reply
from proxy.replies import END_LIMIT, ENDS, Ends, nobody_asks
from tests.ledger.support import evolve_all, operation, started, succeeded

ANSWER = Answer(201, "Created", (("Content-Type", "a/b"), ("Set-Cookie", "x")), Body.of(b"{}"))


def ended(step: str = "step-1") -> Operation:
    return evolve_all(operation(step=step), (started(), succeeded(external_id="th_1", status=201)))


def told(ends: Ends, operation: Operation, answer: Answer = ANSWER) -> Reply:
    return ends.replayed(answer, operation, nobody_asks)


def test_the_reply_to_a_duplicate_is_made_once() -> None:
    ends, known = Ends(), ended()
    heard: list[bool] = []
    first = ends.replayed(ANSWER, known, heard.append)
    second = told(ends, known)
    assert second.headers is first.headers
    assert (second.status, second.reason, second.body) == (201, "Created", ANSWER.body)
    assert first.headers[:2] == (("Content-Type", "a/b"), ("Onceproxy-Operation", known.key))
    assert second.delivered is nobody_asks, "each call says for itself who is told"
    second.delivered(True)
    assert heard == []


def test_a_record_or_an_answer_that_was_read_anew_makes_a_new_one() -> None:
    ends, known = Ends(), ended()
    first = told(ends, known)
    again = changed(known, attempts=known.attempts * 2)
    assert ("Onceproxy-Attempts", "1") in first.headers
    assert ("Onceproxy-Attempts", "2") in told(ends, again).headers
    other = Answer(200, "OK", (("ETag", "e"),), Body.of(b"other"))
    reply = told(ends, again, other)
    assert (reply.status, reply.headers[0], reply.body) == (200, ("ETag", "e"), other.body)


def test_they_are_bounded_in_number_and_size() -> None:
    ends = Ends()
    for number in range(ENDS + 1):
        told(ends, ended(f"step-{number}"))
    assert len(ends._made) == ENDS
    assert ended("step-0").key not in ends._made
    large = Answer(200, "OK", (), Body.of(b"x" * (END_LIMIT + 1)))
    assert told(ends, ended("large"), large).body is large.body
    assert ended("large").key not in ends._made
