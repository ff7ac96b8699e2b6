"""Refusals as answers: ``application/problem+json`` that a model, an SDK and a person can read.

At most 2 kB, and never an echo of the request: what stands in it comes from the refusal alone. The
reason phrase carries the first clause of what to do next, because several clients show only that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from proxy.core.model import Body
from proxy.core.refusal import Refusal
from proxy.net.exchange import Reply

BODY_LIMIT = 2048

# Characters of (detail, each name, what to do next). The first that fits is taken: a shorter one is
# needed only where letters take several bytes or an escape each.
_CUTS = ((700, 512, 400), (200, 120, 200), (60, 40, 60))


_CLAUSE = re.compile(r"[;.](?:\s|$)")
_NOT_PHRASE = re.compile(r"[^\x20-\x7e]+")


def reply(refusal: Refusal, *, attempts: int | None = None, outcome: str = "refused") -> Reply:
    """The answer for a refusal. ``attempts`` is the operation's count, None where it has none."""
    headers = [
        ("Content-Type", "application/problem+json"),
        ("X-Should-Retry", _flag(refusal)),
        ("Stripe-Should-Retry", _flag(refusal)),
    ]
    if refusal.meaning.retryable or refusal.retry_after is not None:
        headers.append(("Retry-After", str(refusal.retry_after or 5)))
    if refusal.operation is not None:
        headers.append(("Onceproxy-Operation", refusal.operation))
    headers.append(("Onceproxy-Outcome", outcome))
    if attempts is not None:
        headers.append(("Onceproxy-Attempts", str(attempts)))
    headers.append(("Cache-Control", "no-store"))
    status = refusal.status or refusal.meaning.status
    if refusal.shape is not None:
        status = int(refusal.shape.get("status", status))
        data = orjson.dumps(_fill(refusal.shape.get("body"), _names(refusal)))
        headers[0] = ("Content-Type", "application/json")
    else:
        data = document(refusal)
    return Reply(status, phrase(refusal), tuple(headers), Body.of(data))


def document(refusal: Refusal) -> bytes:
    """The problem document of a refusal, UTF-8 JSON of at most 2 kB."""
    data = b""
    for detail, name, step in _CUTS:
        data = orjson.dumps(_members(refusal, detail, name, step))
        if len(data) <= BODY_LIMIT:
            break
    return data


def phrase(refusal: Refusal) -> str:
    """The first clause of what to do next, printable ASCII."""
    first = _CLAUSE.split(refusal.next, maxsplit=1)[0]
    return _NOT_PHRASE.sub(" ", first).strip()[:120]


def _members(refusal: Refusal, detail: int, name: int, step: int) -> dict[str, Any]:
    todo = _cut(refusal.next, step)
    members: dict[str, Any] = {
        "type": f"urn:onceproxy:{refusal.code}",
        "title": refusal.meaning.title,
        "status": refusal.status or refusal.meaning.status,
        "detail": _cut(refusal.detail, detail),
        "operation": _cut(refusal.operation, name),
        "state": refusal.state,
        "retryable": refusal.meaning.retryable,
        "next": todo,
        "message": todo,  # what clients of GitHub, Twilio, Resend and AWS make their error of
        "error": {"type": "onceproxy_error", "code": refusal.code, "message": todo},
    }
    if refusal.external_id is not None:
        members["external_id"] = _cut(refusal.external_id, name)
    return members


def _cut(value: str | None, limit: int) -> str | None:
    if value is None:
        return None
    value = value.encode("utf-8", "replace").decode()  # a lone surrogate is not JSON
    return value if len(value) <= limit else value[: limit - 1] + "…"


def _flag(refusal: Refusal) -> str:
    return "true" if refusal.meaning.retryable else "false"


def _names(refusal: Refusal) -> dict[str, str]:
    return {
        "{code}": refusal.code,
        "{detail}": _cut(refusal.detail, _CUTS[0][0]) or "",
        "{next}": _cut(refusal.next, _CUTS[0][2]) or "",
        "{operation}": _cut(refusal.operation, _CUTS[0][1]) or "",
        "{state}": refusal.state or "",
        "{external_id}": _cut(refusal.external_id, _CUTS[0][1]) or "",
        "{retry_after}": str(refusal.retry_after or ""),
    }


def _fill(shape: Any, names: Mapping[str, str]) -> Any:
    if isinstance(shape, str):
        for name, value in names.items():
            shape = shape.replace(name, value)
        return shape
    if isinstance(shape, Mapping):
        return {key: _fill(value, names) for key, value in shape.items()}
    if isinstance(shape, list | tuple):
        return [_fill(value, names) for value in shape]
    return shape
