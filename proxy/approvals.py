"""Calls that are held for a person's word, and the last look at what that word was given for."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict

from proxy.clock import Clock
from proxy.core.approval import request_digest
from proxy.core.model import Request
from proxy.core.operation import Consent, Event, Kind, Operation
from proxy.core.transitions import IllegalTransition, evolve
from proxy.ledger.base import Change, Conflict, Ledger

EXPIRED_AT_ONCE = 1_000  # operations that are looked at in one pass


class NotAsApproved(Exception):
    """What would be sent is not what a person has allowed."""

    def __init__(self, operation: Operation) -> None:
        super().__init__("What would be sent now is not what was approved.")
        self.operation = operation


def allowed(operation: Operation) -> bool:
    """Whether what is stored is what a person has said yes to."""
    approval = operation.approval
    return approval is not None and approval.given


def must_be_approved(operation: Operation, request: Request) -> None:
    """The last look before the intent. Raises NotAsApproved."""
    approval = operation.approval
    if approval is None or not approval.given:
        return
    if request_digest(operation, request) != approval.digest:
        raise NotAsApproved(operation)


class Approvals:
    """The calls that are held, and the end of approvals that nobody used."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)

    def decided(self, operation: Operation) -> None:
        """Wake the calls that are held for it."""
        for future in self._waiting.get(operation.base, ()):
            if not future.done():
                future.set_result(None)

    async def expire(self) -> int:
        """Write down which of those that nobody leans on yet have run out; how many. One that was
        used is looked at when it matters."""
        now, found = self._clock.time(), 0
        open_ = (Consent.WAITING, Consent.GRANTED)
        for operation in await self._ledger.approvals(open_, EXPIRED_AT_ONCE):
            approval = operation.approval
            if approval is None or now < approval.expires_at:
                continue
            at = max(now, operation.updated_at)
            event = Event(Kind.APPROVAL_EXPIRED, at, {"id": approval.id})
            with contextlib.suppress(Conflict, IllegalTransition):  # something happens to it now
                change = Change(evolve(operation, event), (event,))
                self.decided(await self._ledger.commit(change))
                found += 1
        return found

    async def wait(self, base: str, key: str, seconds: float) -> bool:
        """Until a person has decided on that operation, at most so long; whether one has."""
        operation = self._ledger.get(key)
        approval = operation.approval if operation is not None else None
        if approval is None or approval.state is not Consent.WAITING:
            return True  # just now
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[base].add(future)
        try:
            return await self._clock.wait(future, seconds)
        finally:
            self._waiting[base].discard(future)
            if not self._waiting[base]:
                del self._waiting[base]
