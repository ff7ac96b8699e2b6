"""Runs: the list, one of them, and closing, revoking and restoring it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from aiohttp import web

from proxy.console.desk import Desk, Page, Visit, go
from proxy.console.ports import Runs
from proxy.console.render import at
from proxy.errors import ServiceError
from proxy.ledger.base import Query

PATH: Final = "/runs"
ONE: Final = "/run"
ROWS: Final = 50  # operations on the page of a run
REASON_MAX: Final = 500  # characters; it stands in every refusal of the run


def pages(desk: Desk, runs: Runs) -> list[Page]:
    async def listed(visit: Visit) -> web.Response:
        return await desk.show(visit, "runs.html", rows=await runs.runs())

    async def one(visit: Visit) -> web.Response:
        return await shown(visit, visit.asked("id"))

    async def shown(visit: Visit, run: str, status: int = 200, problem: str = "") -> web.Response:
        found = await runs.one(run)
        operations = await desk.operations.operations(Query(run=found["run"], limit=ROWS + 1))
        return await desk.show(
            visit,
            "run.html",
            status,
            run=found,
            rows=operations[:ROWS],
            more=len(operations) > ROWS,
            problem=problem,
            reason_max=REASON_MAX,
        )

    async def close(visit: Visit) -> web.Response:
        return await _done(visit, runs.close_run(visit.typed("run"), visit.by), "It is closed.")

    async def restore(visit: Visit) -> web.Response:
        done = runs.restore_run(visit.typed("run"), visit.by)
        return await _done(visit, done, "It is restored: its calls are sent again.")

    async def revoke(visit: Visit) -> web.Response:
        run, reason = visit.typed("run"), visit.typed("reason")
        if not reason or len(reason) > REASON_MAX:
            problem = f"Give a reason of at most {REASON_MAX} characters: the agent is told it."
            return await shown(visit, run, 400, problem)
        done = runs.revoke_run(run, reason, visit.by)
        return await _done(visit, done, "It is revoked: nothing of it is sent any more.")

    async def _done(visit: Visit, act: Awaitable[object], text: str) -> web.Response:
        try:
            await act
        except ServiceError as error:
            visit.note("bad", error.detail)
        else:
            visit.note("good", text)
        return go(at(ONE, id=visit.typed("run")))

    return [
        Page("GET", PATH, listed),
        Page("GET", ONE, one),
        Page("POST", ONE + "/close", close),
        Page("POST", ONE + "/revoke", revoke),
        Page("POST", ONE + "/restore", restore),
    ]
