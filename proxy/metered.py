"""What calls cost that are forwarded unrecorded: a read by the call, a call of a model by what it
may use at most, which is reserved before anything leaves and settled by what its answer reports.

A reservation ends once, whatever happens: settled, given back where the model never looked at the
call, or left charged and marked where nobody can know.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import structlog

from proxy.core.authority import Access
from proxy.core.call import Passing
from proxy.core.decide import budget
from proxy.core.metering import UsageReader, reserved
from proxy.core.model import Answer, Request
from proxy.core.operation import Event, Kind
from proxy.core.refusal import Refusal
from proxy.core.rules import Endpoint
from proxy.core.runs import Amounts, Charge, Exhausted, limited, noted, reservation, settlement
from proxy.core.views import RequestView
from proxy.engine import Engine
from proxy.ledger.base import LedgerError, Refused
from proxy.net.exchange import Arrival, Reply
from proxy.outbound import Opened

log = structlog.get_logger("onceproxy")


class Meters:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.ledger = engine.ledger

    async def charge(
        self, access: Access, endpoint: Endpoint | None, request: Request, *, enforced: bool
    ) -> Reservation | Refusal | None:
        """Charge a call to its run: a Reservation where the answer settles it, a Refusal where too
        little is left. ``enforced``: whether it may be refused."""
        if not access.run or (endpoint is not None and not endpoint.counted):
            return None
        if endpoint is None or endpoint.meter is None:
            taken = await self._take(access, self.engine.authority.read, enforced)
            return taken if isinstance(taken, Refusal) else None
        tokens = reserved(endpoint.meter, RequestView(request))
        charge = Charge(reservation(tokens), self.engine.authority.rights.budget)
        taken = await self._take(access, charge, enforced)
        if isinstance(taken, Refusal):
            return taken
        return Reservation(self, access, endpoint, tokens, durable=taken)

    async def _take(self, access: Access, charge: Charge, enforced: bool) -> bool | Refusal:
        """Whether it is durable, as it is where a limit speaks of it: then it must survive whatever
        happens next. What nothing limits is counted, and no call waits for that."""
        run = self.ledger.run(access.run)
        above = self.ledger.above(run) if run is not None else ()
        if not enforced or not limited(run, above, charge):
            self.ledger.count(access.run, Charge(charge.amounts, enforce=False))
            return False
        event = self.event(Kind.BUDGET_CHARGED, access, charge.amounts)
        try:
            await self.ledger.amend(access.run, noted(event), charge=charge)
        except Refused as refused:
            if not isinstance(refused.reason, Exhausted):
                raise
            self.engine.metrics.exhausted(refused.reason.shortage.unit)
            return budget.refusal(refused.reason.shortage)
        return True

    def event(self, kind: Kind, access: Access, amounts: Amounts, **more: int | None) -> Event:
        about = {"service": access.service, "endpoint": access.endpoint}
        return Event(kind, self.engine.clock.time(), {"amounts": dict(amounts), **about, **more})


class Reservation:
    """What one call of a model has reserved, and what its answer says it used."""

    def __init__(
        self, meters: Meters, access: Access, endpoint: Endpoint, tokens: int, *, durable: bool
    ) -> None:
        self._meters = meters
        self._access = access
        self._endpoint = endpoint
        self._tokens = tokens
        self._durable = durable
        self._reader: UsageReader | None = None
        self._settling: asyncio.Task[None] | None = None

    def answered(self, opened: Opened) -> None:
        """The head of its answer has come."""
        head = Answer(opened.status, opened.reason, opened.headers, None)
        self._reader = UsageReader(self._endpoint, head)

    def feed(self, data: bytes) -> None:
        if self._reader is not None:
            self._reader.feed(data)

    @property
    def ending(self) -> bool:
        """What has come of the answer may be all that its caller waits for."""
        return self._reader is None or self._reader.ending

    async def flow(self, opened: Opened) -> AsyncIterator[bytes]:
        """The answer on its way to the caller, who has it whole only when it is settled. One that
        leaves ends the answer, as it would without us: a model that nobody hears stops."""
        left = opened.length
        async for chunk in opened.chunks():
            self.feed(chunk)
            if left is not None:
                left -= len(chunk)
                if left <= 0:
                    await self.ended(whole=True)
            yield chunk
        await self.ended(whole=True)

    async def ended(self, *, whole: bool) -> None:
        """The same as ``end``, durable at return. Giving up the wait changes nothing."""
        await asyncio.shield(self.end(whole=whole))

    def end(self, *, whole: bool) -> asyncio.Task[None]:
        """Settle it. ``whole``: its answer came to its end. Only the first word counts."""
        if self._settling is None:
            reader = self._reader
            used = reader.end(whole) if reader is not None else None
            aside = reader is not None and reader.set_aside
            self._settling = self._meters.engine.keep(self._settle(used, unit_back=aside))
        return self._settling

    def not_sent(self) -> asyncio.Task[None]:
        """No byte of it has left: it cost nothing."""
        if self._settling is None:
            self._settling = self._meters.engine.keep(self._settle(0, unit_back=True))
        return self._settling

    async def _settle(self, used: int | None, *, unit_back: bool) -> None:
        meters, access, tokens = self._meters, self._access, self._tokens
        charge = None
        if used is not None:
            amounts = settlement(tokens, used, turn=not unit_back)
            charge = Charge(amounts, enforce=False)
        how, number = ("used", used) if used is not None else ("kept", tokens)
        meters.engine.metrics.model_tokens(access.service, access.endpoint, how, number)
        try:
            if self._durable or charge is None:
                said = charge.amounts if charge is not None else {}
                event = meters.event(Kind.BUDGET_SETTLED, access, said, reserved=tokens, used=used)
                await meters.ledger.amend(access.run, noted(event), charge=charge)
            else:
                meters.ledger.count(access.run, charge)
        except LedgerError as error:
            log.error("a reservation could not be settled: it stays charged", detail=str(error))


@dataclass(frozen=True, slots=True)
class Passage:
    """One call on its way. ``read``: its body is in ``request``."""

    arrival: Arrival
    access: Access
    request: Request
    endpoint: Endpoint | None
    passing: Passing
    read: bool


@dataclass(frozen=True, slots=True)
class Sent:
    """A call whose answer has begun; ``cost``: what it settles."""

    opened: Opened
    cost: Reservation | None

    def reply(self) -> Reply:
        opened, cost = self.opened, self.cost
        body = opened.pipe or (opened.chunks() if cost is None else cost.flow(opened))

        def delivered(whole: bool) -> None:
            if cost is not None:
                cost.end(whole=False)  # unless it has ended: it broke off, or its caller left
            if not whole:
                opened.close()

        return Reply(
            opened.status,
            opened.reason,
            opened.headers,
            body,
            length=opened.length,
            delivered=delivered,
        )
