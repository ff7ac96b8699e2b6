"""The approvals inbox: what waits with the request that would be sent, and what was decided."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from proxy.console.desk import Desk, Page, Visit, go
from proxy.console.ports import Approvals
from proxy.console.render import at
from proxy.errors import ServiceError

PATH: Final = "/approvals"
ONE: Final = "/approval"
NOTE_MAX: Final = 500  # characters; the agent sees it
DECIDED_ROWS: Final = 50


def pages(desk: Desk, approvals: Approvals) -> list[Page]:
    async def listed(visit: Visit) -> web.Response:
        every = await approvals.approvals()
        decided = [one for one in every if one["state"] != "waiting"]
        decided.sort(key=lambda one: -one["requested_at"])
        return await desk.show(
            visit,
            "approvals.html",
            waiting=await desk.waiting_approvals(),
            decided=decided[:DECIDED_ROWS],
            note_max=NOTE_MAX,
        )

    async def one(visit: Visit) -> web.Response:
        found = await approvals.one(visit.asked("id"))
        return await desk.show(visit, "approval.html", one=found, note_max=NOTE_MAX)

    def act(
        does: Callable[[str, str, str], Awaitable[dict[str, Any]]], done: str
    ) -> Callable[[Visit], Awaitable[web.Response]]:
        async def handle(visit: Visit) -> web.Response:
            id_, note = visit.typed("id"), visit.typed("note")
            found = await approvals.one(id_)
            if visit.typed("digest") != found["request"]["digest"]:
                visit.note("bad", "The request is another one than you saw. Nothing was decided.")
            elif len(note) > NOTE_MAX:
                visit.note("bad", f"A note has at most {NOTE_MAX} characters. Nothing was decided.")
            else:
                try:
                    await does(id_, visit.by, note)
                except ServiceError as error:
                    visit.note("bad", error.detail)
                else:
                    visit.note("good", done)
            return go(at(ONE, id=id_))

        return handle

    granted = "Granted. It is sent when the agent makes this call again, or still waits for it."
    return [
        Page("GET", PATH, listed),
        Page("GET", ONE, one),
        Page("POST", ONE + "/grant", act(approvals.grant, granted)),
        Page("POST", ONE + "/deny", act(approvals.deny, "Denied. The agent is told so.")),
        Page("POST", ONE + "/revoke", act(approvals.revoke, "Revoked. It will not be sent.")),
    ]
