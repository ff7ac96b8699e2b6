"""The approvals inbox: what waits with the request that would be sent, and what was decided."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from proxy.console.desk import Desk, Page, Visit, go
from proxy.console.render import at
from proxy.errors import ServiceError

PATH: Final = "/approvals"
ONE: Final = "/approval"
NOTE_MAX: Final = 500  # characters; the agent sees it
ROWS: Final = 50  # of what was decided

Act = Callable[[str, object, str], Awaitable[dict[str, Any]]]


def pages(desk: Desk) -> list[Page]:
    approvals = desk.approvals

    async def listed(visit: Visit) -> web.Response:
        decided = [one for one in await approvals.approvals() if one["state"] != "waiting"]
        return await desk.show(
            visit,
            "approvals.html",
            waiting=await desk.waiting_approvals(),
            decided=decided[:ROWS],
            note_max=NOTE_MAX,
        )

    async def one(visit: Visit) -> web.Response:
        found = await approvals.one(visit.asked("id"))
        return await desk.show(visit, "approval.html", one=found, note_max=NOTE_MAX)

    def act(does: Act, done: str) -> Callable[[Visit], Awaitable[web.Response]]:
        async def handle(visit: Visit) -> web.Response:
            visit.note(*await _decided(visit, does, done))
            return go(at(ONE, id=visit.typed("id")))

        return handle

    async def _decided(visit: Visit, does: Act, done: str) -> tuple[str, str]:
        id_, note = visit.typed("id"), visit.typed("note")
        found = await approvals.one(id_)
        if visit.typed("digest") != found["request"]["digest"]:
            return "bad", "The request is another one than you saw. Nothing was decided."
        if len(note) > NOTE_MAX:
            return "bad", f"A note has at most {NOTE_MAX} characters. Nothing was decided."
        try:
            after = await does(id_, {"note": note} if note else {}, visit.by)
        except ServiceError as error:
            return "bad", error.detail
        if after.get("in_flight"):
            done += " An attempt had begun before and is still settled."
        return "good", done

    granted = "Granted. It is sent when the agent makes this call again, or still waits for it."
    revoked = "Revoked. Nothing more is sent under it."
    return [
        Page("GET", PATH, listed),
        Page("GET", ONE, one),
        Page("POST", ONE + "/grant", act(approvals.grant, granted)),
        Page("POST", ONE + "/deny", act(approvals.deny, "Denied. The agent is told so.")),
        Page("POST", ONE + "/revoke", act(approvals.revoke, revoked)),
    ]
