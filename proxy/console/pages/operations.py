"""The list of operations, newest first."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from proxy.console.desk import Desk, Page, Visit
from proxy.core.operation import State
from proxy.errors import ServiceError
from proxy.ledger.base import Query
from proxy.service.operations import as_part

PATH: Final = "/operations"
ROWS: Final = 50  # of one page


def pages(desk: Desk) -> list[Page]:
    async def listed(visit: Visit) -> web.Response:
        run, step, service = (visit.asked(name) for name in ("run", "step", "service"))
        state, before = visit.asked("state"), visit.asked("before")
        found = await desk.operations.operations(
            Query(
                run=as_part(run) if run else None,
                step=as_part(step) if step else None,
                service=service or None,
                states=(_state(state),) if state else (),
                before=_moment(before) if before else None,
                limit=ROWS + 1,  # one more tells whether there are
            )
        )
        rows = found[:ROWS]
        return await desk.show(
            visit,
            "operations.html",
            rows=rows,
            filters={"run": run, "step": step, "service": service, "state": state},
            filtered=bool(run or step or service or state),
            before=before,
            older=repr(rows[-1]["created_at"]) if len(found) > ROWS else None,
            states=[one.value for one in State],
            services=desk.operations.services(),
        )

    return [Page("GET", PATH, listed)]


def _state(word: str) -> State:
    try:
        return State(word)
    except ValueError:
        raise ServiceError("bad-request", f"There is no state {word}.") from None


def _moment(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ServiceError("bad-request", "before must be seconds since the epoch.") from None
