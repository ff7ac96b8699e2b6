"""What people and programs may ask and do about operations: one place for API and CLI.

Queries read the ledger. Acts are two: resolving an operation whose outcome nobody could find out,
and asking for a fresh look at it. Resolving sends nothing; "did not happen" only allows the next
call to be sent. Nothing here knows HTTP or a terminal.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

import structlog

from proxy.clock import Clock
from proxy.core.coverage import settles_by
from proxy.core.identity import encode_part
from proxy.core.masking import Redaction, masked_url, redaction_of
from proxy.core.operation import Event, Kind, Operation, State
from proxy.core.rules import Service
from proxy.core.settle import late
from proxy.core.transitions import evolve_all
from proxy.errors import ServiceError
from proxy.ledger.base import (
    Change,
    Conflict,
    Damaged,
    Ledger,
    LedgerError,
    Query,
    StoredEvent,
    as_json,
)
from proxy.retention import Retention, prune
from proxy.service.content import answer_view, request_view
from proxy.service.resolution import Resolution

LIST_MAX: Final = 1_000  # rows of one page; the next begins with ``before``
EVENTS_MAX: Final = 1_000
log: Final = structlog.get_logger("onceproxy")
_ESCAPE: Final = re.compile(r"%[0-9A-F]{2}")
POLL_SECONDS: Final = 0.5  # how late a watcher may learn of an event


class OperationService:
    """Queries and acts over one ledger.

    ``settle`` is the engine's: it tries to find out how one unknown operation ended. ``reload``
    reads the rule files again; it raises ServiceError and keeps the old ones when they cannot be
    used.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        clock: Clock,
        services: Callable[[], Sequence[Service]],
        settle: Callable[[str], Awaitable[object]],
        reload: Callable[[], Awaitable[None]],
        retention: Retention = Retention(),  # noqa: B008 - it is frozen
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._services = services
        self._settle = settle
        self._reload = reload
        self._retention = retention

    # Queries

    async def operations(self, query: Query) -> list[dict[str, Any]]:
        """Newest first."""
        return [self._shown(operation) for operation in await self._ledger.operations(query)]

    async def unresolved(self) -> list[dict[str, Any]]:
        """Every operation whose outcome is not known, oldest first."""
        found = await self._ledger.unsettled()
        return [self._shown(operation) for operation in found if operation.state is State.UNKNOWN]

    async def one(self, key: str) -> dict[str, Any]:
        found = self._detail(self._get(key))
        history = await self._ledger.history(key)
        conflict = any(stored.event.kind is Kind.EFFECT_CONFLICT for stored in history)
        return found | {"conflict": conflict}

    async def content(self, key: str) -> dict[str, Any]:
        """The request as it was sent and the answer as it is replayed, masked; None for what is not
        kept."""
        operation = self._get(key)
        try:
            request = await self._ledger.request_of(key)
            answer = await self._ledger.answer_of(key)
        except Damaged as error:
            raise ServiceError("damaged", f"Its content fails its check: {error}") from error
        redaction = self._redaction(operation)

        def views() -> dict[str, Any]:
            return {
                "operation": key,
                "request": request_view(request, redaction) if request else None,
                "answer": answer_view(answer, redaction) if answer else None,
            }

        return await asyncio.to_thread(views)  # a large body takes a while to be laid out

    async def waiting(self) -> int:
        """How many operations have an outcome that is not known."""
        counts = await self._ledger.counts()
        return counts.get(("", State.UNKNOWN.value, None), 0)

    async def history(self, key: str) -> list[dict[str, Any]]:
        """Every event of one operation, oldest first."""
        self._get(key)
        return [event_json(stored) for stored in await self._ledger.history(key)]

    async def events(self, after: int = 0, limit: int = 100) -> list[dict[str, Any]]:
        """Events of all runs with a ``seq`` above ``after``."""
        stored = await self._ledger.events(after, min(limit, EVENTS_MAX))
        return [event_json(one) for one in stored]

    async def follow(self, after: int) -> AsyncIterator[dict[str, Any] | None]:
        """The same without end; None is yielded whenever there is nothing new, so that a watcher
        can be kept alive or found gone."""
        while True:
            found = await self.events(after)
            for event in found:
                yield event
                after = event["seq"]
            if not found:
                yield None
                await self._clock.sleep(POLL_SECONDS)

    def ledger(self) -> dict[str, Any]:
        """Which life of the ledger this is, and of which time it may not know everything."""
        gap = self._ledger.gap
        return {
            "generation": self._ledger.generation,
            "lives": int(self._ledger.generation.partition("-")[0]),
            "gap": {"since": gap.since, "until": gap.until} if gap is not None else None,
            "alarms": list(self._ledger.alarms),
            "trouble": self._ledger.trouble,
        }

    def services(self) -> list[str]:
        """The names of those that rules know."""
        return sorted(service.name for service in self._services())

    async def rules(self) -> list[dict[str, Any]]:
        """All of them, also those that no call has needed yet, which takes a second."""
        return await asyncio.to_thread(describe_rules, self._services())

    # Acts

    async def resolve(self, key: str, resolution: Resolution) -> dict[str, Any]:
        """Record what a person found out. Raises ServiceError."""
        operation = self._get(key)
        _check_resolvable(operation, resolution)
        now = max(self._clock.time(), operation.updated_at)  # the clock may have been set back
        events = [_resolved(resolution, now)]
        if resolution.external_id:
            events += self._shared(operation, resolution, now)
        after = evolve_all(operation, events)
        conflict = late(operation, after, self._ledger.find(operation.base), now)
        events += conflict
        try:
            stored = await self._ledger.commit(
                Change(after, tuple(events), answer=resolution.answer)
            )
        except Conflict as error:
            raise ServiceError(
                "conflict", "Something happened to it in the meantime: look at it again."
            ) from error
        except LedgerError as error:
            raise ServiceError("ledger-unavailable", f"Not recorded: {error}") from error
        if conflict:
            log.error("effect conflict", operation=key)
        return self._detail(stored)

    async def reconcile(self, key: str) -> dict[str, Any]:
        """Ask the API once more whether the effect exists, and return the operation after it."""
        operation = self._get(key)
        if operation.state is State.UNKNOWN:
            await self._settle(key)
        elif operation.state is State.IN_FLIGHT:
            raise ServiceError("in-flight", "It is being sent: its answer decides.")
        return self._detail(self._get(key))

    async def close_gap(self, by: str) -> dict[str, Any]:
        """A person says that no call will come again that a lost ledger may have sent."""
        await self._ledger.close_gap()
        log.warning("gap closed", by=by)
        return self.ledger()

    async def prune(self) -> dict[str, int]:
        """Take what is older than it has to be kept, now."""
        return (await prune(self._ledger, self._retention, self._clock)).as_json()

    async def reload(self) -> list[dict[str, Any]]:
        """Read the rule files again and return the rules that hold now."""
        await self._reload()
        return await self.rules()

    def _get(self, key: str) -> Operation:
        try:
            operation = self._ledger.get(key)
        except Damaged as error:
            raise ServiceError("damaged", f"Its record fails its check: {error}") from error
        if operation is None:
            raise ServiceError(
                "not-found", "No operation has this key. A key is RUN/STEP/OPERATION/vN."
            )
        return operation

    def _redaction(self, operation: Operation) -> Redaction:
        return redaction_of(self._services(), operation.service, operation.endpoint)

    def _shown(self, operation: Operation) -> dict[str, Any]:
        url = masked_url(operation.url, self._redaction(operation))
        return as_json(operation) | {"url": url}

    def _detail(self, operation: Operation) -> dict[str, Any]:
        found = detail(operation)
        found["url"] = found["request"]["url"] = self._shown(operation)["url"]
        return found

    def _shared(self, operation: Operation, resolution: Resolution, now: float) -> list[Event]:
        owner = self._ledger.adopted(
            operation.service,
            operation.endpoint,
            operation.intent.account,
            resolution.external_id or "",
        )
        if owner is None or owner == operation.key:
            return []
        data = {"external_id": resolution.external_id, "with": owner}
        return [Event(Kind.SHARED_EFFECT, now, data)]


def detail(operation: Operation) -> dict[str, Any]:
    """One operation with its attempts and what was sent, bodies left out."""
    intent = operation.intent
    return as_json(operation) | {
        "attempt_list": [
            {
                "number": attempt.number,
                "started_at": attempt.started_at,
                "ended_at": attempt.ended_at,
                "end": attempt.end.value if attempt.end else None,
                "reason": attempt.reason,
                "status": attempt.status,
                "keyed": attempt.keyed,
                "credentialed": attempt.credential is not None,
            }
            for attempt in operation.attempts
        ],
        "request": {
            "method": operation.method,
            "url": operation.url,
            "body_size": intent.body_size,
            "body_sha256": intent.body_sha256,
        },
        "upstream_key": intent.upstream_key,
        "marker": intent.marker,
    }


def event_json(stored: StoredEvent) -> dict[str, Any]:
    return {
        "seq": stored.seq,
        "run": stored.run,
        "operation": stored.key,
        "event": stored.event.kind.value,
        "at": stored.event.at,
        "data": dict(stored.event.data),
        "hash": stored.hash,
    }


def as_part(text: str) -> str:
    """What a person types of a run or step, as it stands in a key; a copied part is one already."""
    return text if _ESCAPE.search(text) else encode_part(text)


def describe_rules(services: Sequence[Service]) -> list[dict[str, Any]]:
    """One object per endpoint, in the order in which they are tried."""
    return [
        {
            "service": service.name,
            "endpoint": endpoint.name,
            "effect": endpoint.effect,
            "key": f"{endpoint.key.place}:{endpoint.key.name}" if endpoint.key else None,
            "settles_by": settles_by(endpoint),
            "confidence": endpoint.confidence,
            "mode": endpoint.mode,
            "file": service.path,
        }
        for service in services
        for endpoint in service.endpoints
    ]


def _check_resolvable(operation: Operation, resolution: Resolution) -> None:
    if resolution.revision is not None and resolution.revision != operation.revision:
        raise ServiceError(
            "conflict",
            f"It is at revision {operation.revision}, not {resolution.revision}: look at it again.",
        )
    state = operation.state
    if state is State.IN_FLIGHT:
        raise ServiceError("in-flight", "It is being sent or settled: wait until it is unknown.")
    if state is State.UNKNOWN:
        return
    if state is State.NOT_APPLIED and resolution.as_ == "abandoned":
        return
    raise ServiceError("not-resolvable", _WHY_NOT.get(str(state), f"It is {state}."))


_WHY_NOT = {
    "not_applied": "It is known to have had no effect, and the next call will be sent; "
    "all that can be said of it is abandoned.",
    "awaiting_approval": "Nothing was sent: there is nothing to resolve.",
    "succeeded": "It has succeeded. Only an unknown operation can be resolved.",
    "failed": "It has failed, without an effect. Only an unknown operation can be resolved.",
}


def _resolved(resolution: Resolution, at: float) -> Event:
    answer = resolution.answer
    return Event(
        Kind.OPERATOR_RESOLVED,
        at,
        {
            "as": resolution.as_,
            "by": resolution.by,
            "evidence": resolution.evidence,
            "external_id": resolution.external_id,
            "status": answer.status if answer else None,
            "kept": answer is not None,
        },
    )
