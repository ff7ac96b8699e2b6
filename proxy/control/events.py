"""``/v1/events``: the history of all runs, as a page or as a stream (server-sent events)."""

from __future__ import annotations

import asyncio

import orjson
from aiohttp import web

from proxy.control.http import Route, answer, whole_number
from proxy.control.tokens import Holder, Role
from proxy.service.operations import EVENTS_MAX, OperationService

IDLE_ROUNDS = 30  # quiet rounds of the service's poll between two comments: about 15 s


def routes(service: OperationService, closing: asyncio.Event) -> list[Route]:
    async def listed(request: web.Request, _: Holder) -> web.StreamResponse:
        if "text/event-stream" in request.headers.get("Accept", ""):
            return await _stream(request, service, closing)
        after = whole_number(request, "after", 0)
        limit = max(1, whole_number(request, "limit", 100, EVENTS_MAX))
        found = await service.events(after, limit)
        return answer({"events": found, "after": found[-1]["seq"] if found else after})

    return [Route("GET", "/v1/events", Role.AGENT, listed)]


async def _stream(
    request: web.Request, service: OperationService, closing: asyncio.Event
) -> web.StreamResponse:
    """Begins after ``Last-Event-ID`` (a browser sends it when it comes back) or ``after``."""
    last = request.headers.get("Last-Event-ID", "")
    resumed = last.isascii() and last.isdigit() and len(last) <= 18
    after = int(last) if resumed else whole_number(request, "after", 0)
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
    )
    await response.prepare(request)
    idle = 0
    try:
        async for event in service.follow(after):
            if closing.is_set():
                break
            if event is not None:
                data = orjson.dumps(event)
                await response.write(b"id: %d\ndata: %s\n\n" % (event["seq"], data))
            else:
                idle += 1
                if idle % IDLE_ROUNDS == 1:  # at once, so that a client knows it is connected
                    await response.write(b": waiting\n\n")
    except ConnectionError:
        pass  # the watcher has left
    return response
