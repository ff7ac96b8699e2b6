"""What of an answer is kept, to be replayed."""

from __future__ import annotations

from proxy.core.model import Answer
from proxy.core.rules import Endpoint

# What a replay may repeat. Not the first Date, not Set-Cookie, nothing about a connection or a
# quota.
KEPT_HEADERS = frozenset(
    {
        "azure-asyncoperation",
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
        "operation-location",
        "request-id",
        "stripe-version",
        "vary",
        "x-request-id",
    }
)


def keep(answer: Answer | None, endpoint: Endpoint | None) -> Answer | None:
    """The answer as it is stored and replayed, or None where no answer is kept."""
    if answer is None or answer.body is None:
        return None
    if endpoint is not None and endpoint.store == "meta":
        return None
    headers = tuple(pair for pair in answer.headers if pair[0].lower() in KEPT_HEADERS)
    return Answer(answer.status, answer.reason, headers, answer.body)
