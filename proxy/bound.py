"""A call tied to one version of one operation, and what is known of both while it is driven."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from proxy.clock import Clock
from proxy.core.authority import Access
from proxy.core.call import Governed
from proxy.core.decide import Ask
from proxy.core.intent import placed
from proxy.core.model import Request
from proxy.core.operation import Operation
from proxy.core.rules import Endpoint, Lookup
from proxy.core.views import RequestView
from proxy.flights import Claim
from proxy.ledger.base import Damaged, Ledger


class Seen(NamedTuple):
    """What the ledger has for a bound call: its version's operation or, where that is not begun,
    the version before it; ``overtaken``: a later one has begun."""

    operation: Operation | None
    previous: Operation | None = None
    overtaken: bool = False


class Claimed(NamedTuple):
    base: str
    named: bool  # by an X-Operation-Id


@dataclass(slots=True)
class Bound:
    """A call bound to one version of one operation when it arrived; or, without ``call``, an
    operation that the background settles. The rest is filled in once it is needed."""

    base: str
    ask: Ask
    endpoint: Endpoint
    call: Governed | None = None
    arrived: float = 0.0  # monotonic
    seen: Seen | None = None  # as it was loaded for this call a moment ago
    stored: Request | None = None  # as sent, without credentials
    view: RequestView | None = None
    lookup: Lookup | None = None
    polled: bool = False  # it has asked what became of what was accepted
    token: str | None = None  # digest of the run token that the call carries
    access: Access | None = None  # who would have it sent
    claimed: bool = False  # it is under another name, of an operation that is only being begun

    @property
    def enforced(self) -> bool:
        return self.call is None or self.call.mode == "enforce"


def claims(call: Governed) -> tuple[Claim, ...]:
    """What else than its own name an operation that this call begins will be found by."""
    alike = ("alike", call.run, call.step, call.request.method, call.url, call.fingerprint)
    if call.caller_key_digest is None:
        return (alike,)
    return (alike, ("key", call.endpoint.service, call.caller_key_digest))


def now_of(clock: Clock, operation: Operation | None) -> float:
    """The wall clock, but never before the newest event of the operation."""
    now = clock.time()
    return now if operation is None else max(now, operation.updated_at)


async def stored_request(ledger: Ledger, bound: Bound, operation: Operation) -> Request:
    """The request as it was sent the first time, without credentials. Where its body is not kept,
    or where only the caller can sign it, it is the caller's own with the stored marks. Raises
    Damaged."""
    if bound.stored is not None:
        return bound.stored
    kept = await ledger.request_of(operation.key)
    usable = kept is not None and (kept.body.data is not None or bound.call is None)
    signed = bound.endpoint.signed != "none"
    if bound.ask.signs and bound.ask.body_sha256 != operation.intent.body_sha256:
        signed = False  # it is signed anew, with the token that it had the first time
    if bound.call is not None and (signed or not usable):
        bound.stored = placed(bound.call.bare, bound.endpoint, operation.intent)
    elif kept is not None:
        bound.stored = kept
    else:
        raise Damaged(f"the request of {operation.key} is gone")
    return bound.stored
