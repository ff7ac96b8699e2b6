"""``/v1/runs``: the beginning of a run's next start."""

from __future__ import annotations

from urllib.parse import unquote

from aiohttp import web

from proxy.control.http import Route, answer, json_body
from proxy.control.tokens import Holder, Role
from proxy.service.operations import OperationService

BASE = "/v1/runs"


def routes(service: OperationService) -> list[Route]:
    async def resume(request: web.Request, _: Holder) -> web.Response:
        raw = request.rel_url.raw_path.removeprefix(BASE + "/").removesuffix("/resume")
        body = await json_body(request)
        new = isinstance(body, dict) and body.get("new") is True
        return answer(await service.resume(unquote(raw), new=new))

    return [Route("POST", BASE + "/{run}/resume", Role.AGENT, resume)]
