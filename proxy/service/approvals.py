"""Approvals: what waits for a person, and what a person says. A grant sends nothing: the call that
is held for it does, or the next one that is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from proxy.approvals import Approvals
from proxy.authority import Authority
from proxy.clock import Clock
from proxy.core.masking import masked_url, redaction_of
from proxy.core.operation import Approval, Consent, Event, Kind, Operation, State
from proxy.core.rules import Service
from proxy.core.transitions import evolve_all
from proxy.errors import ServiceError
from proxy.ledger.base import Change, Conflict, Damaged, Ledger, LedgerError
from proxy.service.bodies import Reading
from proxy.service.content import request_view

LIST_MAX: Final = 200
TRIES: Final = 5  # something may happen to an operation while a person decides on it
log: Final = structlog.get_logger("onceproxy")


class ApprovalService:
    def __init__(
        self,
        *,
        ledger: Ledger,
        clock: Clock,
        services: Callable[[], Sequence[Service]],
        authority: Authority,
        approvals: Approvals,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._services = services
        self._authority = authority
        self._approvals = approvals

    # Queries

    async def approvals(self, states: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Newest first; ``states``: only those (none given: all)."""
        known = [consent.value for consent in Consent]
        if not set(states) <= set(known):
            raise ServiceError("bad-request", f"A state is one of {', '.join(known)}.")
        # One that has run out is stored as it was: nothing has happened to it.
        stored = {Consent(state) for state in states}
        if Consent.EXPIRED in stored:
            stored |= {Consent.WAITING, Consent.GRANTED}
        found = await self._ledger.approvals(tuple(stored), LIST_MAX)
        told = [await self.told(operation) for operation in found]
        return [each for each in told if not states or each["state"] in states]

    async def of_run(self, run: str) -> list[dict[str, Any]]:
        """What of a run waits for a person, or may be sent because one has said so."""
        open_ = (Consent.WAITING, Consent.GRANTED)
        found = await self._ledger.approvals(open_, LIST_MAX, run=run)
        return [await self.told(operation) for operation in found]

    async def waiting(self) -> int:
        """How many a person can decide on now."""
        found = await self._ledger.approvals((Consent.WAITING,), LIST_MAX)
        now = self._clock.time()
        return sum(op.approval is not None and now < op.approval.expires_at for op in found)

    async def one(self, number: str) -> dict[str, Any]:
        return await self.told(await self._get(number))

    async def told(self, operation: Operation) -> dict[str, Any]:
        """The public view of an operation's approval."""
        approval = operation.approval
        assert approval is not None
        redaction = redaction_of(self._services(), operation.service, operation.endpoint)
        stored = await self._ledger.request_of(operation.key)
        view = request_view(stored, redaction) if stored is not None else None
        return {
            "id": approval.id,
            "operation": operation.key,
            "run": operation.run,
            "step": operation.step,
            "service": operation.service,
            "endpoint": operation.endpoint,
            "state": str(state_of(approval, self._clock.time())),
            "summary": approval.summary,
            "request": {
                "method": operation.method,
                "url": view["url"] if view else masked_url(operation.url, redaction),
                "body": view["body"] if view else None,
                "digest": approval.digest,
            },
            "requested_at": approval.requested_at,
            "expires_at": approval.expires_at,
            "decided_at": approval.decided_at,
            "by": approval.by,
            "note": approval.note,
        }

    # Acts

    async def grant(self, number: str, body: object, by: str) -> dict[str, Any]:
        """The call that is held, or the next one that is the same, is sent."""
        return await self._decide(number, body, by, Kind.APPROVAL_GRANTED)

    async def deny(self, number: str, body: object, by: str) -> dict[str, Any]:
        """The agent is told so, with the note."""
        return await self._decide(number, body, by, Kind.APPROVAL_DENIED)

    async def revoke(self, number: str, body: object, by: str) -> dict[str, Any]:
        """Take back a grant. After it returns nothing more is sent under it; ``in_flight`` says
        whether an attempt had begun before."""
        operation = await self._get(number)
        with self._authority.revoking(key=operation.key):
            told = await self._decide(number, body, by, Kind.APPROVAL_REVOKED)
        after = self._ledger.get(operation.key)
        flying = after is not None and after.state is State.IN_FLIGHT
        return told | {"in_flight": [operation.key] if flying else []}

    async def _decide(self, number: str, body: object, by: str, kind: Kind) -> dict[str, Any]:
        reading = Reading(body, ("by", "note"), '{"note": "agreed with finance"}')
        note = reading.text("note") or ""
        named = reading.text("by", most=200)
        reading.end()
        who = f"{named} ({by})" if named is not None and named != by else by
        for _ in range(TRIES):
            operation = await self._get(number)
            assert operation.approval is not None
            now = max(self._clock.time(), operation.updated_at)
            _must_be_decidable(operation.approval, kind, now)
            if kind is Kind.APPROVAL_GRANTED:
                self._must_be_another(operation, by)
            event = Event(kind, now, {"id": number, "by": who, "note": note})
            change = Change(evolve_all(operation, (event,)), (event,))
            try:
                after = await self._ledger.commit(change)
            except Conflict:
                continue
            except LedgerError as error:
                raise ServiceError("ledger-unavailable", f"Not recorded: {error}") from error
            log.warning("approval decided", operation=after.key, kind=str(kind), by=who)
            self._approvals.decided(after)
            return await self.told(after)
        raise ServiceError("conflict", "Something happened to it meanwhile: look at it again.")

    def _must_be_another(self, operation: Operation, by: str) -> None:
        """Whoever began the run, or one above it, does not approve what it does."""
        run = self._ledger.run(operation.run)
        if run is None:
            return
        if any(each.by == by for each in (run, *self._ledger.above(run))):
            raise ServiceError(
                "forbidden", f"The run was begun with the token {by}: somebody else must approve."
            )

    async def _get(self, number: str) -> Operation:
        try:
            operation = await self._ledger.by_approval(number)
        except Damaged as error:
            raise ServiceError("damaged", f"Its record fails its check: {error}") from error
        if operation is None:
            raise ServiceError("not-found", "There is no such approval, or it was asked for anew.")
        return operation


def state_of(approval: Approval, now: float) -> Consent:
    """As people see it: what nobody can lean on any more has expired."""
    open_ = approval.state in (Consent.WAITING, Consent.GRANTED)
    return Consent.EXPIRED if open_ and now >= approval.expires_at else approval.state


def _must_be_decidable(approval: Approval, kind: Kind, now: float) -> None:
    state = state_of(approval, now)
    if state is Consent.WAITING:
        return
    if kind is Kind.APPROVAL_REVOKED and state in (Consent.GRANTED, Consent.CONSUMED):
        return
    raise ServiceError("not-waiting", _WHY_NOT[state])


_WHY_NOT = {
    Consent.GRANTED: "It was granted already; it can be revoked.",
    Consent.CONSUMED: "It was granted and used already; it can be revoked.",
    Consent.DENIED: "It was denied; a changed call asks anew.",
    Consent.EXPIRED: "It has expired; the next call asks anew.",
    Consent.REVOKED: "It was revoked.",
}
