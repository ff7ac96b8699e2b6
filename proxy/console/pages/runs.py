"""Runs: the list, one of them, and closing, revoking and restoring it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final
from urllib.parse import unquote

from aiohttp import web

from proxy.console.desk import Desk, Page, Visit, go
from proxy.console.render import at
from proxy.errors import ServiceError
from proxy.ledger.base import Query, RunQuery

PATH: Final = "/runs"
ONE: Final = "/run"
ROWS: Final = 50  # runs of one page, operations on the page of a run
REASON_MAX: Final = 500  # characters; it stands in every refusal of the run


def pages(desk: Desk) -> list[Page]:
    runs = desk.runs

    async def listed(visit: Visit) -> web.Response:
        before = visit.asked("before")
        found = await runs.runs(RunQuery(limit=ROWS + 1, before=_moment(before)))
        rows = found[:ROWS]
        older = repr(rows[-1]["created_at"]) if len(found) > ROWS else None
        return await desk.show(visit, "runs.html", rows=rows, before=before, older=older)

    async def one(visit: Visit) -> web.Response:
        return await shown(visit, visit.asked("id"))

    async def shown(visit: Visit, run: str, status: int = 200, problem: str = "") -> web.Response:
        found = await runs.one(unquote(run))
        saved = await desk.checkpoints.listed(unquote(run))
        operations = await desk.operations.operations(Query(run=found["run"], limit=ROWS + 1))
        return await desk.show(
            visit,
            "run.html",
            status,
            run=found,
            rows=operations[:ROWS],
            more=len(operations) > ROWS,
            checkpoint=saved[0] if saved else None,
            problem=problem,
            reason_max=REASON_MAX,
        )

    async def close(visit: Visit) -> web.Response:
        outcome = {"outcome": visit.typed("outcome") or "completed"}
        act = runs.close(_named(visit), outcome, visit.by)
        return await _done(visit, act, "It is closed: no further call of it is taken.")

    async def restore(visit: Visit) -> web.Response:
        reason = {"reason": visit.typed("reason")} if visit.typed("reason") else {}
        act = runs.restore(_named(visit), reason, visit.by)
        return await _done(visit, act, "It is open again.")

    async def revoke(visit: Visit) -> web.Response:
        reason = visit.typed("reason")
        if not reason or len(reason) > REASON_MAX:
            problem = f"Give a reason of at most {REASON_MAX} characters: the agent is told it."
            return await shown(visit, visit.typed("run"), 400, problem)
        act = runs.revoke(_named(visit), {"reason": reason}, visit.by)
        return await _done(visit, act, "It is revoked: nothing more of it is sent or answered.")

    return [
        Page("GET", PATH, listed),
        Page("GET", ONE, one),
        Page("POST", ONE + "/close", close),
        Page("POST", ONE + "/revoke", revoke),
        Page("POST", ONE + "/restore", restore),
    ]


async def _done(visit: Visit, act: Awaitable[dict[str, Any]], text: str) -> web.Response:
    try:
        after = await act
    except ServiceError as error:
        visit.note("bad", error.detail)
    else:
        visit.note("good", text)
        for key in after.get("in_flight", ()):
            visit.note("plain", f"On its way before that, and still settled: {key}")
    return go(at(ONE, id=visit.typed("run")))


def _named(visit: Visit) -> str:
    """A run by its name; the pages carry it as it stands in a key."""
    return unquote(visit.typed("run"))


def _moment(text: str) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        raise ServiceError("bad-request", "before must be seconds since the epoch.") from None
