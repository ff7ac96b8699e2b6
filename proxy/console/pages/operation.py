"""One operation: what is known of it and why, and the two things a person can do about it."""

from __future__ import annotations

from typing import Any, Final

import orjson
from aiohttp import web

from proxy.console import words
from proxy.console.desk import Desk, Page, Visit, go
from proxy.console.render import at
from proxy.errors import ServiceError
from proxy.service.resolution import TEXT_MAX, Resolution, read_resolution

PATH: Final = "/operation"
LINES_MAX: Final = 300  # of a history; of a longer one the beginning and the end
HEAD_LINES: Final = 20


def pages(desk: Desk) -> list[Page]:
    async def one(visit: Visit) -> web.Response:
        return await shown(visit, visit.asked("key"))

    async def shown(visit: Visit, key: str, status: int = 200, **values: Any) -> web.Response:
        """``typed``: what stands in the form; ``problems``, ``changes``: why it was not taken."""
        operation = await desk.operations.one(key)
        events = await desk.operations.history(key)
        lines = words.timeline(events)
        left_out = max(0, len(lines) - LINES_MAX)
        if left_out:
            lines = lines[:HEAD_LINES] + lines[HEAD_LINES + left_out :]
        content, damage = None, ""
        try:
            content = await desk.operations.content(key)
        except ServiceError as error:
            damage = error.detail  # the history is still worth reading
        form: dict[str, Any] = {"typed": {}, "problems": [], "changes": []}
        return await desk.show(
            visit,
            "operation.html",
            status,
            op=operation,
            why=words.why(operation, events),
            lines=lines,
            left_out=left_out,
            head_lines=HEAD_LINES,
            content=content,
            damage=damage,
            approval=_approval(events),
            seen=events[-1]["seq"] if events else 0,
            text_max=TEXT_MAX,
            **(form | values),
        )

    async def reconcile(visit: Visit) -> web.Response:
        key = visit.typed("key")
        before = await desk.operations.one(key)
        try:
            after = await desk.operations.reconcile(key)
        except ServiceError as error:
            visit.note("bad", error.detail)
            return go(at(PATH, key=key))
        visit.note(*_learned(before, after))
        return go(at(PATH, key=key))

    async def resolve(visit: Visit) -> web.Response:
        key, typed = visit.typed("key"), dict(visit.form)
        try:
            resolution = _resolution(visit)
        except ServiceError as error:
            problems = list(error.problems) or [error.detail]
            return await shown(visit, key, 400, typed=typed, problems=problems)
        try:
            after = await desk.operations.resolve(key, resolution)
        except ServiceError as error:
            if error.code not in ("conflict", "in-flight", "not-resolvable"):
                raise
            changes = await _changes(key, visit.typed("seen"))
            return await shown(
                visit, key, 409, typed=typed, changes=changes, problems=[error.detail]
            )
        visit.note("good", f"Recorded. It is {after['state']} now.")
        return go(at(PATH, key=key))

    async def _changes(key: str, seen: str) -> list[words.Entry]:
        """What happened since the form was shown."""
        last = int(seen) if seen.isascii() and seen.isdigit() and len(seen) < 19 else 0
        events = await desk.operations.history(key)
        return words.timeline([event for event in events if event["seq"] > last])

    return [
        Page("GET", PATH, one),
        Page("POST", PATH + "/reconcile", reconcile),
        Page("POST", PATH + "/resolve", resolve),
    ]


def _approval(events: list[dict[str, Any]]) -> str | None:
    """The one that was asked for last; an earlier one cannot be looked at."""
    asked = [event["data"] for event in events if event["event"] == "ApprovalRequested"]
    return str(asked[-1]["id"]) if asked else None


def _learned(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, str]:
    if after["state"] != before["state"]:
        tone = "good" if after["state"] == "succeeded" else "plain"
        return tone, f"Asked the API. It is {after['state']} now."
    if after["state"] != "unknown":
        return "plain", f"There was nothing to ask: it is {after['state']}."
    held = words.blocked(after)
    return "plain", f"Still unknown. {held.title}. {held.do}"


def _resolution(visit: Visit) -> Resolution:
    """What the form says. Raises ServiceError with all that is wrong with it."""
    problems: list[str] = []
    body: dict[str, Any] = {"as": visit.typed("as"), "evidence": visit.typed("evidence")}
    happened = body["as"] == "happened"
    if not body["as"]:
        problems.append("Say what became of it.")
    if not body["evidence"]:
        problems.append("Say how you know: it stays in the history.")
    revision = visit.typed("revision")
    if not (revision.isascii() and revision.isdigit() and len(revision) < 19):
        problems.append("The form is not whole: load the page anew.")
    else:
        body["revision"] = int(revision)
    if visit.typed("external_id"):
        if happened:
            body["external_id"] = visit.typed("external_id")
        else:
            problems.append("An external id goes with “It happened” only.")
    if visit.typed("answer"):
        if happened:
            body["response"] = _answer(visit, problems)
        else:
            problems.append("An answer goes with “It happened” only.")
    if problems:
        raise ServiceError("bad-request", " ".join(problems), problems)
    return read_resolution(body, visit.by)


def _answer(visit: Visit, problems: list[str]) -> dict[str, Any] | None:
    try:
        return {"status": 200, "body": orjson.loads(visit.typed("answer"))}
    except orjson.JSONDecodeError as error:
        problems.append(f"The answer is not JSON: {error}.")
        return None
