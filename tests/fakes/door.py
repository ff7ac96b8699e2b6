"""A front door with a small engine behind it: one that echoes, or one that passes calls on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from proxy.core.model import Body, Denied, Lost, NotSent
from proxy.core.refusal import Refusal
from proxy.net import problem
from proxy.net.exchange import Arrival, Handle, Incomplete, Reply, TooLarge
from proxy.net.frontend import FrontDoor
from proxy.net.upstream import Upstream


class Echo:
    """Answers with what arrived, as JSON; ``arrivals`` keeps it for the test."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.arrivals: list[Arrival] = []
        self.bodies: list[bytes | None] = []
        self.delivered: list[bool] = []
        self._limit = limit

    async def __call__(self, arrival: Arrival) -> Reply:
        self.arrivals.append(arrival)
        if arrival.bad is not None:
            return problem.reply(arrival.bad)
        try:
            body = await arrival.read(self._limit)
        except TooLarge:
            return problem.reply(Refusal("request-too-large", "too large"))
        except Incomplete:
            self.bodies.append(None)
            return problem.reply(Refusal("bad-request", "incomplete"))
        data = body.data if body.data is not None else b"".join(body.spool.chunks())
        self.bodies.append(data)
        request, identity = arrival.request, arrival.identity
        said = {
            "method": request.method,
            "url": request.url,
            "target": request.target,
            "headers": request.headers,
            "body": data[:1000].decode("latin-1"),
            "size": len(data),
            "run": identity and identity.run,
            "step": identity and identity.step,
            "operation_id": identity and identity.operation_id,
        }
        headers = (("Content-Type", "application/json"), ("X-Echo", "1"), ("x-echo", "2"))
        answer = Body.of(json.dumps(said).encode())
        return Reply(200, "Fine", headers, answer, delivered=self.delivered.append)


def passing(upstream: Upstream, *, streamed: bool = False) -> Handle:
    """An engine that passes each call on."""

    async def handle(arrival: Arrival) -> Reply:
        if arrival.bad is not None:
            return problem.reply(arrival.bad)
        if streamed:
            result = await upstream.open(
                arrival.request,
                stream=None if arrival.content_length == 0 else arrival.stream(),
                length=arrival.content_length,
            )
        else:
            body = await arrival.read(1 << 30)
            result = await upstream.open(arrival.request.with_(body=body), upgrade=arrival.upgrade)
        if isinstance(result, Denied):
            return problem.reply(Refusal("egress-denied", result.reason))
        if isinstance(result, NotSent):
            return problem.reply(Refusal("upstream-not-reached", result.reason))
        if isinstance(result, Lost):
            return problem.reply(Refusal("outcome-unresolved", result.reason))
        answer = result.pipe or result.chunks()
        return Reply(result.status, result.reason, result.headers, answer, length=result.length)

    return handle


@asynccontextmanager
async def open_door(handle: Handle, **options: Any) -> AsyncIterator[FrontDoor]:
    door = FrontDoor(handle, **options)
    await door.start("127.0.0.1", 0)
    try:
        yield door
    finally:
        await door.stop(1)


@asynccontextmanager
async def open_passing_door(
    *, upstream: dict[str, Any] | None = None, streamed: bool = False, **options: Any
) -> AsyncIterator[FrontDoor]:
    """A whole proxy without a ledger."""
    out = Upstream(**{"answer_timeout": 5.0, **(upstream or {})})
    await out.start()
    try:
        async with open_door(
            passing(out, streamed=streamed),
            dial=lambda host, port, run, token: out.tunnel(host, port, run),
            **options,
        ) as door:
            yield door
    finally:
        await out.close()
