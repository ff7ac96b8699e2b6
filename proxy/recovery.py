"""Settling without a caller: what an earlier process left open, and what is still unknown.

There is no second road: each operation is driven by the engine's own loop, with an ask that is not
fresh, so that it queries, and sends again only while its intent is young.
"""

from __future__ import annotations

import asyncio

import structlog

from proxy.bound import Bound
from proxy.core.call import unruled_endpoint
from proxy.core.decide import Ask, Hold
from proxy.core.operation import UNSETTLED, Operation, State
from proxy.engine import Engine
from proxy.ledger.base import Damaged

log = structlog.get_logger("onceproxy")

AT_ONCE = 16  # operations settled side by side: a burst of lookups must not look like an attack
PERSON_SECONDS = 60.0  # how often one that waits for a person or a caller is looked at again


class Recovery:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ledger = engine.ledger
        self._due: dict[str, float] = {}  # operation key -> monotonic moment of its next turn

    async def start(self) -> None:
        """Mark what an earlier process left open. Nothing is sent."""
        for operation in await self._ledger.unsettled():
            if operation.state is State.IN_FLIGHT:
                await self._engine.mend(operation)

    async def settle(self, key: str) -> Operation | None:
        """Try to settle one unknown operation now. Returns it as it is then, None if there is
        none."""
        operation = self._ledger.get(key)
        if operation is None or operation.state not in UNSETTLED:
            return operation
        bound = await self._bound(operation)
        # No await between looking and departing: one operation has one flight.
        flight = self._engine.flight(operation.base) or self._engine.depart(bound)
        await asyncio.shield(flight.done)
        if flight.error is not None:
            raise flight.error
        wait = PERSON_SECONDS
        if isinstance(flight.decision, Hold) and flight.decision.seconds is not None:
            wait = flight.decision.seconds
        self._due[key] = self._engine.clock.monotonic() + wait
        return self._ledger.get(key)

    async def settle_all(self) -> None:
        """One pass over everything that is not settled and whose turn has come."""
        now = self._engine.clock.monotonic()
        unsettled = {operation.key for operation in await self._ledger.unsettled()}
        self._due = {key: due for key, due in self._due.items() if key in unsettled}
        free = asyncio.Semaphore(AT_ONCE)
        turns = [key for key in unsettled if self._due.get(key, now) <= now]
        await asyncio.gather(*(self._turn(key, free) for key in turns))

    async def _turn(self, key: str, free: asyncio.Semaphore) -> None:
        async with free:
            try:
                await self.settle(key)
            except Exception as error:
                self._due[key] = self._engine.clock.monotonic() + PERSON_SECONDS
                log.error("not settled", operation=key, detail=str(error))

    async def _bound(self, operation: Operation) -> Bound:
        """The operation as the background asks about it."""
        stored = await self._ledger.request_of(operation.key)
        if stored is None:
            raise Damaged(f"the request of {operation.key} is gone")
        endpoint = self._engine.rules.endpoint(operation.service, operation.endpoint)
        intent = operation.intent
        ask = Ask(
            version=operation.version,
            fingerprint=intent.fingerprint,
            core_fingerprint=intent.core_fingerprint,
            account=intent.account,
            epoch=intent.epoch,
            fresh=False,
            arrived_at=self._engine.clock.time(),
            attempts_before=len(operation.attempts),
            credential=None,
        )
        return Bound(operation.base, ask, endpoint or unruled_endpoint(stored), stored=stored)
