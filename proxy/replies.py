"""Answers as callers see them: the recorded bytes, with headers that say where they come from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

from proxy.core.model import EMPTY, Answer
from proxy.core.operation import Operation
from proxy.core.rules import Endpoint
from proxy.net.exchange import Reply

# What a replay may repeat. Not the first Date, not Set-Cookie, nothing about a connection or a
# quota.
KEPT_HEADERS = frozenset(
    {
        "content-type",
        "content-encoding",
        "content-language",
        "content-disposition",
        "content-location",
        "content-range",
        "etag",
        "last-modified",
        "link",
        "location",
        "request-id",
        "stripe-version",
        "vary",
        "x-request-id",
    }
)


OUR_HEADERS = frozenset(
    {"onceproxy-operation", "onceproxy-outcome", "onceproxy-attempts", "onceproxy-recorded-at"}
)


def keep(answer: Answer | None, endpoint: Endpoint | None) -> Answer | None:
    """The answer as it is stored and replayed, or None where no answer is kept."""
    if answer is None or answer.body is None:
        return None
    if endpoint is not None and endpoint.store == "meta":
        return None
    headers = tuple(pair for pair in answer.headers if pair[0].lower() in KEPT_HEADERS)
    return Answer(answer.status, answer.reason, headers, answer.body)


def of_answer(
    answer: Answer,
    operation: Operation,
    how: str,
    delivered: Callable[[bool], None],
    *,
    stream: AsyncIterator[bytes] | None = None,
    length: int | None = None,
) -> Reply:
    """``how`` is the word of ``Onceproxy-Outcome``."""
    added = [
        ("Onceproxy-Operation", operation.key),
        ("Onceproxy-Outcome", how),
        ("Onceproxy-Attempts", str(len(operation.attempts))),
    ]
    if how == "replayed":
        added.append(("Idempotent-Replayed", "true"))
        if operation.outcome is not None:
            at = datetime.fromtimestamp(operation.outcome.at, UTC)
            text = at.isoformat(timespec="seconds").replace("+00:00", "Z")
            added.append(("Onceproxy-Recorded-At", text))
    headers = tuple(pair for pair in answer.headers if pair[0].lower() not in OUR_HEADERS)
    body = stream if stream is not None else (answer.body or EMPTY)
    return Reply(
        answer.status, answer.reason, (*headers, *added), body, length=length, delivered=delivered
    )
