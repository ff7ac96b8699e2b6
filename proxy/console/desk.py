"""What the pages share: the services they ask, who is visiting, and how a page is shown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from proxy.clock import Clock
from proxy.console import render
from proxy.console.sessions import Session
from proxy.service.services import Services


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of somebody who is signed in. ``form``: the fields that were sent with it."""

    request: web.Request
    session: Session
    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def by(self) -> str:
        return self.session.holder.name

    def asked(self, name: str) -> str:
        return self.request.query.get(name, "").strip()

    def typed(self, name: str) -> str:
        return self.form.get(name, "").strip()

    def note(self, tone: str, text: str) -> None:
        """Something that the next page tells: good | bad | plain."""
        self.session.notes.append((tone, text))


Handler = Callable[[Visit], Awaitable[web.Response]]


@dataclass(frozen=True, slots=True)
class Page:
    method: str
    path: str
    handler: Handler


class Desk:
    def __init__(self, services: Services, clock: Clock) -> None:
        self.operations = services.operations
        self.runs = services.runs
        self.approvals = services.approvals
        self.checkpoints = services.checkpoints
        self.clock = clock

    async def show(
        self, visit: Visit, template: str, status: int = 200, **values: Any
    ) -> web.Response:
        """The page, with what all pages show: who is signed in, and how much is waiting."""
        notes, visit.session.notes = visit.session.notes, []
        shared = {
            "now": self.clock.time(),
            "holder": visit.by,
            "form_token": visit.session.form,
            "notes": notes,
            "here": visit.request.path,
            "unknown_count": await self.operations.waiting(),
            "waiting_count": await self.approvals.waiting(),
        }
        return render.page(template, shared | values, status)

    async def waiting_approvals(self) -> list[dict[str, Any]]:
        """Those that end soonest first, then the oldest."""
        found = await self.approvals.approvals(["waiting"])
        return sorted(found, key=lambda one: (one["expires_at"], one["requested_at"]))


def go(path: str) -> web.Response:
    """To another page, by GET."""
    return web.Response(status=303, headers={**render.GUARDS, "Location": path})
