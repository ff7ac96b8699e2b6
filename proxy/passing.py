"""Calls that are forwarded unrecorded: reads, and writes that nothing protects. They need authority
and a budget like any other call that a run makes.
"""

from __future__ import annotations

from dataclasses import replace

from proxy.authority import token_digest
from proxy.core import intent
from proxy.core.authority import Access
from proxy.core.call import UNRULED, Passing, stricter
from proxy.core.credentials import is_signed, split
from proxy.core.identity import run_of
from proxy.core.model import Denied, Lost, NotSent, Request
from proxy.core.refusal import Refusal
from proxy.core.rules import Endpoint
from proxy.engine import Engine
from proxy.journal import Journal
from proxy.metered import Meters, Passage, Sent
from proxy.net.exchange import Arrival, Reply
from proxy.outbound import Opened
from proxy.replies import Replies
from proxy.tunnels import held


class Passings:
    def __init__(self, engine: Engine, replies: Replies) -> None:
        self._engine = engine
        self._meters = Meters(engine)
        self._journal = Journal(engine, replies)
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
        call = Passage(arrival, access, request, endpoint, passing, read)
        prompt = self._journal.prompt(call) if self._enforced(endpoint) else None
        if prompt is not None:
            return await self._journal.answer(prompt, call, lambda: self._send(call))
        sent = await self._send(call)
        if isinstance(sent, Sent) and read and sent.opened.pipe is None:
            sent = replace(sent, opened=self._engine.hints.heard(request, sent.opened))
        return sent if isinstance(sent, Reply) else sent.reply()

    async def _send(self, call: Passage) -> Sent | Reply:
        """Send a call if it may be. The reply, where no answer came."""
        access, endpoint = call.access, call.endpoint
        standing = self._engine.authority.standing(access)
        bar = standing.bar or standing.stop
        if bar is not None:
            return self._refuse(call, Refusal(bar.code, bar.detail))
        enforced = self._enforced(endpoint)
        cost = await self._meters.charge(access, endpoint, call.request, enforced=enforced)
        if isinstance(cost, Refusal):
            return self._refuse(call, cost)
        self._count(call)
        try:
            opened = await self._open(call, readable=enforced and cost is not None)
        except Exception:
            if cost is not None:
                cost.end(whole=False)
            raise
        if cost is not None:
            if isinstance(opened, NotSent):
                cost.not_sent()
            elif isinstance(opened, Lost):
                cost.end(whole=False)
            else:
                cost.answered(opened)
        match opened:
            case Denied(reason):
                return self._replies.refuse(Refusal("egress-denied", reason), None, call.request)
            case NotSent(reason):
                standing = self._engine.authority.standing(access)
                bar = standing.bar or standing.stop
                code = bar.code if bar is not None else "upstream-not-reached"
                return self._replies.refuse(Refusal(code, reason), None, call.request)
            case Lost(reason):
                return self._replies.refuse(Refusal("upstream-lost", reason), None, call.request)
        if opened.pipe is not None:
            opened.pipe = held(self._engine, call.access, opened.pipe)
        return Sent(opened, cost)

    async def _open(self, call: Passage, *, readable: bool) -> NotSent | Lost | Opened:
        """``readable``: its answer has to be read on its way."""
        arrival, request, endpoint = call.arrival, call.request, call.endpoint
        outbound = self._engine.outbound
        if endpoint is not None:
            if readable and endpoint.signed == "none" and not is_signed(split(request)[1]):
                request = intent.readable(request)
            request = outbound.authorised(request, endpoint, None)
        has_body = not call.read and arrival.content_length != 0
        return await outbound.send(
            request,
            stream=arrival.stream() if has_body else None,
            length=arrival.content_length if has_body else None,
            upgrade=arrival.upgrade,
            gate=lambda: self._engine.authority.objection(call.access),
            run=call.access.run,
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

    def _enforced(self, endpoint: Endpoint | None) -> bool:
        mode = self._engine.settings.policy.mode
        return (stricter(mode, endpoint.mode) if endpoint is not None else mode) == "enforce"

    def _count(self, call: Passage) -> None:
        self._metrics.decided(call.access.service, call.access.endpoint, "passed")
        if call.passing.unprotected:
            self._metrics.unprotected(call.passing.reason)

    def _refuse(self, call: Passage, refusal: Refusal) -> Reply:
        return self._replies.refuse(refusal, call.endpoint, call.request)


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
