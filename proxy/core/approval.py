"""What an approval is given for: the request as it will be sent, under the rule as it is."""

from __future__ import annotations

import hashlib

from proxy.core.model import Request
from proxy.core.operation import Event, Kind, Operation
from proxy.core.rules import Endpoint
from proxy.core.views import BodyMissing, RequestView

EXPIRES = 86_400.0  # seconds, where the rule does not say
SUMMARY_MAX = 500  # characters
SEEN_IN = frozenset({"content-type", "content-encoding"})  # fields that change what a body means


def request_digest(operation: Operation, request: Request) -> str:
    """SHA-256 over the operation key, its account, and the method, address and body of the request
    with our key and marker in it. Of the other fields only those count that say what the body is:
    credentials are not stored, and tracing ids differ from one call to the next."""
    seen = [f"{n.lower()}: {v}" for n, v in request.headers if n.lower() in SEEN_IN]
    account = operation.intent.account or ""
    parts = (operation.key, account, request.method, request.url, *seen, request.body.sha256)
    digest = hashlib.sha256(b"onceproxy approval\0")
    for part in parts:
        raw = part.encode("utf-8", "surrogateescape")
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()


def requested(
    operation: Operation,
    endpoint: Endpoint,
    request: Request,
    view: RequestView,
    now: float,
    *,
    expired: bool,
) -> tuple[Event, ...]:
    """The events by which the operation waits for a person; ``expired``: no longer under the
    approval that was asked for before."""
    events: tuple[Event, ...] = ()
    if expired and operation.approval is not None:
        events = (Event(Kind.APPROVAL_EXPIRED, now, {"id": operation.approval.id}),)
    rule = endpoint.approval
    digest = request_digest(operation, request)
    # Not from the digest alone: the same request, asked for again, is another question.
    number = hashlib.sha256(f"{digest} {endpoint.digest} {now!r}".encode()).hexdigest()[:20]
    data = {
        "id": f"apr-{number}",
        "digest": digest,
        "rule_digest": endpoint.digest,
        "expires_at": now + (rule.expires if rule is not None else EXPIRES),
        "summary": _summary(endpoint, view),
    }
    return (*events, Event(Kind.APPROVAL_REQUESTED, now, data))


def _summary(endpoint: Endpoint, view: RequestView) -> str:
    template = endpoint.approval.summary if endpoint.approval is not None else None
    if template is None:
        return ""
    try:
        text = template.render(view, {})
    except BodyMissing:
        return ""
    return text[:SUMMARY_MAX] if isinstance(text, str) else ""
