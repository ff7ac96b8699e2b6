"""``/v1/rules``: the rules that hold now, and reading their files again."""

from __future__ import annotations

from aiohttp import web

from proxy.control.http import Route, answer
from proxy.control.tokens import Holder, Role
from proxy.service.operations import OperationService


def routes(service: OperationService) -> list[Route]:
    async def listed(_request: web.Request, _: Holder) -> web.Response:
        return answer({"rules": await service.rules()})

    async def reload(_request: web.Request, _: Holder) -> web.Response:
        return answer({"rules": await service.reload()})

    return [
        Route("GET", "/v1/rules", Role.AGENT, listed),
        Route("POST", "/v1/rules/reload", Role.OPERATOR, reload),
    ]
