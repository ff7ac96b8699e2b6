"""``/v1/ledger``: which life of the ledger this is, the end of its doubts, its retention."""

from __future__ import annotations

from aiohttp import web

from proxy.control.http import Route, answer
from proxy.control.tokens import Holder, Role
from proxy.service.operations import OperationService


def routes(service: OperationService) -> list[Route]:
    async def ledger(_request: web.Request, _: Holder) -> web.Response:
        return answer(service.ledger())

    async def close_gap(_request: web.Request, holder: Holder) -> web.Response:
        return answer(await service.close_gap(holder.name))

    async def prune(_request: web.Request, _: Holder) -> web.Response:
        return answer(await service.prune())

    return [
        Route("GET", "/v1/ledger", Role.AGENT, ledger),
        Route("POST", "/v1/ledger/gap/close", Role.OPERATOR, close_gap),
        Route("POST", "/v1/ledger/prune", Role.OPERATOR, prune),
    ]
