"""``/v1/runs``: what a run did so far, and the beginning of its next start."""

from __future__ import annotations

from aiohttp import web

from proxy.control.http import Route, answer, flag, json_body, run_in_path
from proxy.control.tokens import Holder, Role
from proxy.service.resume import Resumes

BASE = "/v1/runs"


def routes(service: Resumes) -> list[Route]:
    async def resume(request: web.Request, _: Holder) -> web.Response:
        run, every = run_in_path(request), flag(request, "all")
        body = await json_body(request)
        new = isinstance(body, dict) and body.get("new") is True
        return answer(await service.begin(run, new=new, every=every))

    async def look(request: web.Request, _: Holder) -> web.Response:
        return answer(await service.look(run_in_path(request), every=flag(request, "all")))

    return [
        Route("POST", BASE + "/{run}/resume", Role.AGENT, resume),
        Route("GET", BASE + "/{run}/resume", Role.AGENT, look),
    ]
