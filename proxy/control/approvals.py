"""``/v1/approvals``: what waits for a person, and their word."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from proxy.control.http import Route, answer, json_body
from proxy.control.tokens import Holder, Role
from proxy.service.approvals import ApprovalService

BASE = "/v1/approvals"
Act = Callable[[str, object, str], Awaitable[dict[str, Any]]]


def routes(approvals: ApprovalService) -> list[Route]:
    async def listed(request: web.Request, _: Holder) -> web.Response:
        words = request.query.getall("state", [])
        states = [word for text in words for word in text.split(",") if word]
        return answer({"approvals": await approvals.approvals(states)})

    async def one(request: web.Request, _: Holder) -> web.Response:
        return answer(await approvals.one(request.match_info["id"]))

    def act(method: Act) -> Any:
        async def handle(request: web.Request, holder: Holder) -> web.Response:
            body = await json_body(request)
            return answer(await method(request.match_info["id"], body, holder.name))

        return handle

    one_of = BASE + "/{id}"
    return [
        Route("GET", BASE, Role.AGENT, listed),
        Route("GET", one_of, Role.AGENT, one),
        Route("POST", one_of + "/grant", Role.OPERATOR, act(approvals.grant)),
        Route("POST", one_of + "/deny", Role.OPERATOR, act(approvals.deny)),
        Route("POST", one_of + "/revoke", Role.OPERATOR, act(approvals.revoke)),
    ]
