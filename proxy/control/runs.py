"""``/v1/runs``: begin, look at, resume, budget, close, revoke and restore runs."""

from __future__ import annotations

from aiohttp import web

from proxy.control.http import Route, answer, flag, json_body, moment, run_in_path, whole_number
from proxy.control.tokens import Holder, Role
from proxy.ledger.base import RunQuery
from proxy.service.resume import Resumes
from proxy.service.runs import LIST_MAX, RunService

BASE = "/v1/runs"


def routes(resumes: Resumes, runs: RunService) -> list[Route]:
    async def begin(request: web.Request, holder: Holder) -> web.Response:
        return answer(await runs.begin(await json_body(request), holder.name))

    async def listed(request: web.Request, _: Holder) -> web.Response:
        query = RunQuery(
            limit=max(1, whole_number(request, "limit", 100, LIST_MAX)),
            before=moment(request, "before"),
        )
        return answer({"runs": await runs.runs(query)})

    async def one(request: web.Request, _: Holder) -> web.Response:
        return answer(await runs.one(run_in_path(request)))

    async def resume(request: web.Request, holder: Holder) -> web.Response:
        run, every = run_in_path(request), flag(request, "all")
        body = await json_body(request)
        # One that is revoked would leave its sisters behind.
        minting = holder.role is not Role.RUN
        return answer(await resumes.begin(run, body, holder.name, minting=minting, every=every))

    async def look(request: web.Request, _: Holder) -> web.Response:
        return answer(await resumes.look(run_in_path(request), every=flag(request, "all")))

    async def budget(request: web.Request, _: Holder) -> web.Response:
        return answer(runs.budget(run_in_path(request)))

    async def set_budget(request: web.Request, holder: Holder) -> web.Response:
        body = await json_body(request)
        raising = holder.role is Role.OPERATOR
        return answer(
            await runs.set_budget(run_in_path(request), body, holder.name, raising=raising)
        )

    async def close(request: web.Request, holder: Holder) -> web.Response:
        run, body = run_in_path(request), await json_body(request)
        return answer(await runs.close(run, body, holder.name))

    async def revoke(request: web.Request, holder: Holder) -> web.Response:
        return answer(
            await runs.revoke(run_in_path(request), await json_body(request), holder.name)
        )

    async def restore(request: web.Request, holder: Holder) -> web.Response:
        return answer(
            await runs.restore(run_in_path(request), await json_body(request), holder.name)
        )

    run = BASE + "/{run}"
    return [
        Route("GET", BASE, Role.AGENT, listed),
        Route("POST", BASE, Role.AGENT, begin, guards=True),
        Route("GET", run, Role.RUN, one),
        Route("POST", run + "/resume", Role.RUN, resume),
        Route("GET", run + "/resume", Role.RUN, look),
        Route("GET", run + "/budget", Role.RUN, budget),
        Route("PUT", run + "/budget", Role.RUN, set_budget),
        Route("POST", run + "/close", Role.RUN, close),
        Route("POST", run + "/revoke", Role.OPERATOR, revoke),
        Route("POST", run + "/restore", Role.OPERATOR, restore),
    ]
