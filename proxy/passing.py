"""Calls that are forwarded unrecorded: reads, and writes that nothing protects. They need authority
and a budget like any other call that a run makes.
"""

from __future__ import annotations

import structlog

from proxy.authority import Access, token_digest
from proxy.core.call import UNRULED, Passing, stricter
from proxy.core.decide import budget
from proxy.core.identity import run_of
from proxy.core.model import Denied, Lost, NotSent, Request
from proxy.core.operation import Event, Kind
from proxy.core.refusal import Refusal
from proxy.core.rules import Endpoint
from proxy.core.runs import Exhausted, limited, noted
from proxy.engine import Engine
from proxy.ledger.base import Refused
from proxy.net.exchange import Arrival, Reply
from proxy.replies import Replies

log = structlog.get_logger("onceproxy")


class Passings:
    def __init__(self, engine: Engine, replies: Replies) -> None:
        self._engine = engine
        self._ledger = engine.ledger
        self._metrics = engine.metrics
        self._replies = replies

    async def forward(
        self,
        arrival: Arrival,
        request: Request,
        endpoint: Endpoint | None,
        passing: Passing,
        read: bool,
    ) -> Reply:
        """Forward a call and have its answer flow back. ``read``: its body is in ``request``."""
        access = access_of(arrival, request, endpoint)
        standing = self._engine.authority.standing(access)
        bar = standing.bar or standing.stop
        if bar is not None:
            return self._replies.refuse(Refusal(bar.code, bar.detail), endpoint, request)
        mode = self._engine.settings.policy.mode
        if endpoint is not None:
            mode = stricter(mode, endpoint.mode)
        refused = await self._charge(access, endpoint, enforced=mode == "enforce")
        if refused is not None:
            return self._replies.refuse(refused, endpoint, request)
        service = endpoint.service if endpoint is not None else UNRULED
        label = endpoint.name if endpoint is not None else "content"
        self._metrics.decided(service, label, "passed")
        if passing.unprotected:
            self._metrics.unprotected(passing.reason)
        outbound = self._engine.outbound
        if endpoint is not None:
            request = outbound.authorised(request, endpoint, None)
        has_body = not read and arrival.content_length != 0
        opened = await outbound.send(
            request,
            stream=arrival.stream() if has_body else None,
            length=arrival.content_length if has_body else None,
            upgrade=arrival.upgrade,
            gate=lambda: self._engine.authority.objection(access),
            run=access.run,
        )
        match opened:
            case Denied(reason):
                return self._replies.refuse(Refusal("egress-denied", reason), None, request)
            case NotSent(reason):
                bar = self._engine.authority.standing(access).bar
                code = bar.code if bar is not None else "upstream-not-reached"
                return self._replies.refuse(Refusal(code, reason), None)
            case Lost(reason):
                return self._replies.refuse(Refusal("upstream-lost", reason), None)
        return Reply(
            opened.status,
            opened.reason,
            opened.headers,
            opened.pipe or opened.chunks(),
            length=opened.length,
            delivered=lambda whole: None if whole else opened.close(),
        )

    async def observe(
        self,
        arrival: Arrival,
        request: Request,
        endpoint: Endpoint | None,
        mode: str,
        seen: str,
    ) -> Reply:
        """Let a call pass that would have been recorded, answered or refused."""
        self._metrics.observed(seen)
        passing = Passing(f"mode {mode}", unprotected=True)
        return await self.forward(arrival, request, endpoint, passing, True)

    async def _charge(
        self, access: Access, endpoint: Endpoint | None, *, enforced: bool
    ) -> Refusal | None:
        """Count the call. Where a limit speaks of it, that is durable before it is sent."""
        if not access.run or (endpoint is not None and not endpoint.counted):
            return None
        charge = self._engine.authority.read
        run = self._ledger.run(access.run)
        above = self._ledger.above(run) if run is not None else ()
        if not enforced or not limited(run, above, charge):
            self._ledger.count(access.run, self._engine.authority.unasked_read)
            return None
        about = {
            "amounts": dict(charge.amounts),
            "service": access.service,
            "endpoint": access.endpoint,
        }
        event = Event(Kind.BUDGET_CHARGED, self._engine.clock.time(), about)
        try:
            await self._ledger.amend(access.run, noted(event), charge=charge)
        except Refused as refused:
            if not isinstance(refused.reason, Exhausted):
                raise
            self._metrics.exhausted(refused.reason.shortage.unit)
            return budget.refusal(refused.reason.shortage)
        return None


def access_of(arrival: Arrival, request: Request, endpoint: Endpoint | None) -> Access:
    """Who makes a call, and of what."""
    token = arrival.token
    return Access(
        run_of(arrival.identity),
        endpoint.service if endpoint is not None else UNRULED,
        endpoint.name if endpoint is not None else "content",
        request.method,
        token_digest(token) if token is not None else None,
    )
