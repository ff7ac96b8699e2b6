"""Who may do what: what the configuration allows, and what a run's own standing permits.

``Standing`` is what a decision gets of it. A *bar* stops sends and replays; a *stop* only sends, so
that an effect that is there is still told; neither stops asking the API about one.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any

from proxy.core.model import frozen
from proxy.core.runs import Run, Shortage

UNKNOWN = ("unruled", "content")
"""Service and endpoint of a call that no rule knows."""

PARTS = ("run", "service", "endpoint", "method")


@frozen
class Access:
    """Who asks, for what. ``run`` as in an operation key, "" for none; ``token``: digest of the run
    token that the call carries; ``epoch`` None: that of its token, without one the newest;
    ``believed``: it is the proxy's own background, which needs no token."""

    run: str
    service: str
    endpoint: str
    method: str
    token: str | None = None
    epoch: int | None = None
    believed: bool = False
    owner: str = ""  # whose operation it is, where that is another run: its budget pays


@frozen
class Bar:
    """``code`` is a refusal's. ``known``: whoever asks belongs to the run, so that the refusal may
    tell what its operations have come to."""

    code: str
    detail: str
    known: bool = True


@frozen
class Standing:
    bar: Bar | None = None
    stop: Bar | None = None
    short: Shortage | None = None  # one more operation would cost more than is left


OPEN = Standing()


@frozen
class Line:
    """Globs over a run's name, a service, an endpoint's name and a method."""

    run: str = "*"
    service: str = "*"
    endpoint: str = "*"
    method: str = "*"

    @classmethod
    def parse(cls, value: object) -> Line:
        """Raises ValueError."""
        if not isinstance(value, dict) or not value:
            raise ValueError("a line is a mapping of run, service, endpoint and method")
        unknown = [str(name) for name in value if name not in PARTS]
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: a line has run, service, endpoint, method")
        for name, glob in value.items():
            if not isinstance(glob, str) or not glob:
                raise ValueError(f"{name}: must be a text with * for any")
        method = str(value.get("method", "*")).upper()
        return cls(**{**value, "method": method})

    def fits(self, run: str, service: str, endpoint: str, method: str) -> bool:
        return (
            fnmatch.fnmatchcase(method, self.method)
            and fnmatch.fnmatchcase(service, self.service)
            and fnmatch.fnmatchcase(endpoint, self.endpoint)
            and fnmatch.fnmatchcase(run, self.run)
        )

    def plain(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in PARTS if getattr(self, name) != "*"}


@frozen
class Lists:
    """Where ``allow`` is not empty, only what a line of it fits is sent; ``deny`` wins."""

    allow: tuple[Line, ...] = ()
    deny: tuple[Line, ...] = ()

    def objection(self, run: str, service: str, endpoint: str, method: str) -> Bar | None:
        """``run``: as the agent names it, "" for a call that names none. ``method`` is as it
        arrived: methods are case-sensitive, and one in lower case is another one."""
        about = (run, service, endpoint, method.upper())
        if any(line.fits(*about) for line in self.deny):
            return Bar("authority-revoked", "authority.deny closes this endpoint to this run.")
        if self.allow and not any(line.fits(*about) for line in self.allow):
            return Bar("authority-revoked", "No line of authority.allow opens this endpoint.")
        return None

    def objection_unread(self, run: str, places: Sequence[tuple[str, str]]) -> Bar | None:
        """To what cannot be read, so that it may be any call to these (service, endpoint), or one
        that no rule knows."""
        if any(
            fnmatch.fnmatchcase(run, line.run)
            and fnmatch.fnmatchcase(service, line.service)
            and fnmatch.fnmatchcase(endpoint, line.endpoint)
            for line in self.deny
            for service, endpoint in (*places, UNKNOWN)
        ):
            return Bar(
                "authority-revoked",
                "authority.deny closes a part of this host to this run, and a tunnel is not read.",
            )
        if self.allow and not all(
            any(line.method == "*" and line.fits(run, *place, "*") for line in self.allow)
            for place in places or (UNKNOWN,)
        ):
            return Bar(
                "authority-revoked",
                "authority.allow does not open all of this host to this run, and a tunnel is not "
                "read.",
            )
        return None


def bar_of(run: Run, above: Sequence[Run], token: str | None, *, required: bool) -> Bar | None:
    """Why nothing goes out for this run, nor is replayed to it. ``token``: digest of the one that
    the call carries. ``required``: a run whose calls carry none is not believed."""
    held = run.token(token) if token is not None else None
    if token is not None and held is None:
        return WRONG_TOKEN  # first: why a run was stopped is not for everybody
    if token is None and required:
        return NO_TOKEN
    if run.revoked is not None:
        return Bar("authority-revoked", f"The run was revoked: {run.revoked.reason}")
    if run.closed is not None:
        return Bar("run-closed", "The run is closed.")
    for each in above:
        if each.revoked is not None:
            reason = each.revoked.reason
            return Bar("authority-revoked", f"The run above this one was revoked: {reason}")
        if each.closed is not None:
            return Bar("run-closed", "The run above this one is closed.")
    if held is not None and held.revoked is not None:
        return Bar("authority-revoked", f"The run's token was revoked: {held.revoked.reason}")
    return None


def distrusted(run: Run, epoch: int | None) -> Bar | None:
    """Why the proxy sends nothing again by itself of what that start of the run began: who made
    those calls may be who lost the token. A call that comes again is judged by what it carries."""
    if any(token.revoked is not None and epoch in (None, token.epoch) for token in run.tokens):
        return Bar("authority-revoked", "A token of the run was revoked; nothing is sent for it.")
    return None


NO_TOKEN = Bar(
    "missing-identity",
    "Only calls with a run token are taken here: `onceproxy run` gives its command one, and so "
    "does POST /v1/runs.",
    known=False,
)
WRONG_TOKEN = Bar("authority-revoked", "The call's token is not one of its run.", known=False)
