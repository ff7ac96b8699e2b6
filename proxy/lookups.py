"""Asking the API whether an effect exists, and what is made of its answer.

One hit is adopted at once, nothing proves little: that is judged in ``core.settle``. Here are the
pages that are fetched, and the objects that are being adopted just now.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import structlog

from proxy.bound import Bound, now_of, stored_request
from proxy.clock import Clock
from proxy.core import settle
from proxy.core.decide import Ask, Snapshot
from proxy.core.decide.account import same_credential
from proxy.core.intent import mark, other_marks
from proxy.core.kept import keep
from proxy.core.matching import RuleSet
from proxy.core.model import Request
from proxy.core.operation import ENDED, RULE, Kind, Operation, State, changed
from proxy.core.reconcile import (
    BatchInquiry,
    Found,
    Inquiry,
    LookupVerdict,
    NoneFound,
    answered,
    choose,
    inquiry_of,
)
from proxy.core.rules import Lookup
from proxy.core.transitions import evolve_all
from proxy.core.views import BodyMissing, RequestView
from proxy.flights import Flight, Sights
from proxy.ledger.base import Change, Conflict, Ledger
from proxy.lending import Lending
from proxy.outbound import Outbound

log = structlog.get_logger("onceproxy")

_RESULT = {
    Kind.EFFECT_FOUND: "found",
    Kind.EFFECT_ABSENT: "absent",
    Kind.EFFECT_AMBIGUOUS: "several",
    Kind.LOOKUP_INCONCLUSIVE: "inconclusive",
}


class LookupObserver(Protocol):
    """What is reported of lookups."""

    def reconciled(self, service: str, result: str) -> None: ...
    def foreign(self, service: str) -> None: ...
    def conflict(self, service: str) -> None: ...


class Lookups:
    """``secrets``: those that may have made the marks that are looked for."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        outbound: Outbound,
        clock: Clock,
        metrics: LookupObserver,
        sights: Sights,
        lending: Lending,
        secrets: Sequence[bytes],
    ) -> None:
        self._ledger = ledger
        self._outbound = outbound
        self._clock = clock
        self._metrics = metrics
        self._sights = sights
        self._lending = lending
        self._secrets = secrets
        self._adopting: set[tuple[str, str, str | None, str]] = set()  # objects found just now

    async def prepare(self, bound: Bound, operation: Operation, rules: RuleSet) -> None:
        """Find the lookup for an unknown operation, if the rule has one for its stored request."""
        if operation.state is not State.UNKNOWN or bound.lookup is not None:
            return
        if not bound.endpoint.reconcile:
            return
        request = await stored_request(self._ledger, bound, operation)
        if bound.call is not None:
            params = bound.call.params
        else:
            params = rules.params(bound.endpoint, request) or {}
        bound.view = RequestView(request, params)
        with contextlib.suppress(BodyMissing):  # not kept, and the lookup needs it
            bound.lookup = choose(bound.endpoint, bound.view)

    async def reconcile(self, flight: Flight, bound: Bound, snapshot: Snapshot) -> None:
        operation, lookup = snapshot.operation, bound.lookup
        assert operation is not None
        assert lookup is not None
        began = self._clock.monotonic()
        verdict = await self._look(bound, operation, lookup)
        while not await self._learn(flight, bound, snapshot, operation, verdict, began):
            # A person has spoken meanwhile. What was seen to be there is there all the same.
            operation = self._ledger.get(operation.key) or operation
            if operation.state is State.SUCCEEDED or not _there(verdict):
                return

    async def _learn(
        self,
        flight: Flight,
        bound: Bound,
        snapshot: Snapshot,
        operation: Operation,
        verdict: LookupVerdict,
        began: float,
    ) -> bool:
        """Make durable what a lookup taught; False where the operation has moved on."""
        lookup, ask = bound.lookup, self._lending.ask(bound)
        assert lookup is not None
        learned = settle.lookup_ended(
            lookup,
            verdict,
            snapshot.watch,
            now_of(self._clock, operation),
            adopted_by=self._adopted(operation, verdict),
            marked=_marked(bound, operation, lookup),
            same_view=same_credential(ask, operation) or _same_named_account(ask, operation),
            since=operation.first_maybe_sent_at or operation.created_at,
            presumed=operation.presumed,
        )
        self._sights.looked(operation.key, began, ask.credential, counts=learned.counts)
        self._metrics.reconciled(operation.service, _RESULT[learned.events[0].kind])
        events = learned.events
        if operation.state is not State.UNKNOWN and events[0].kind is not Kind.EFFECT_FOUND:
            return True
        after = evolve_all(operation, events)
        newest = self._ledger.find(operation.base)
        conflict = settle.late(operation, after, newest, now_of(self._clock, operation))
        events = (*events, *conflict)
        answer = verdict.answer if isinstance(verdict, Found) else None
        kept = keep(answer, bound.endpoint)
        if after.outcome is not None and kept is None:
            after = changed(after, outcome=replace(after.outcome, kept=False))
        if after == changed(operation, updated_at=after.updated_at) and not learned.counts:
            return True  # as before: not worth a line in the history each time
        try:
            after = await self._adopt(operation, verdict, Change(after, events, answer=kept))
        except Conflict:
            return False
        if after.state in ENDED:
            flight.found(after, answer)
            self._sights.settled(after.key)
            self._lending.give_back(after.base)
            if operation.presumed and after.state is State.SUCCEEDED:
                self.foreign(after)
            if conflict:
                self.conflict(after)
        return True

    async def _look(self, bound: Bound, operation: Operation, lookup: Lookup) -> LookupVerdict:
        """One lookup. For what a lost ledger may have sent it looks for all marks that it may have
        carried."""
        own = mark(bound.endpoint, operation.intent)
        marks: tuple[str | None, ...] = (own,)
        if own is not None and operation.presumed and lookup.by == "marker":
            marks += other_marks(bound.endpoint, operation, self._secrets)
        shifting = False
        for text in marks:
            verdict = await self._inquire(bound, operation, lookup, text)
            if not isinstance(verdict, NoneFound):
                return verdict
            shifting = shifting or verdict.shifting
        return NoneFound(shifting)

    async def _inquire(
        self, bound: Bound, operation: Operation, lookup: Lookup, key: str | None
    ) -> LookupVerdict:
        """Whether there is an object that carries this mark, page by page."""
        assert bound.view is not None
        names = {
            "key": key,
            "sent": mark(bound.endpoint, operation.intent),
            "sent_at": operation.first_maybe_sent_at or operation.created_at,
            "obtained": operation.intent.obtained,
        }
        request, params = bound.view.request, bound.view.params
        inquiry = inquiry_of(bound.endpoint, lookup, request, params, names)
        return await self._to_the_end(inquiry, bound, operation)

    async def poll(self, bound: Bound, snapshot: Snapshot) -> None:
        """Ask what has become of what the API took for later. While that cannot be told, what it
        said stands. Raises Conflict, LedgerError."""
        bound.polled = True
        operation, lookup, call = snapshot.operation, bound.endpoint.poll, bound.call
        assert operation is not None
        assert lookup is not None
        answer = await self._ledger.answer_of(operation.key)
        if answer is None or call is None:
            return
        request = await stored_request(self._ledger, bound, operation)
        names = {
            "key": mark(bound.endpoint, operation.intent),
            "sent_at": operation.first_maybe_sent_at or operation.created_at,
            "obtained": operation.intent.obtained,
            **answered(answer, request, lookup.answer_format),
        }
        inquiry = inquiry_of(bound.endpoint, lookup, request, call.params, names)
        verdict = await self._to_the_end(inquiry, bound, operation)
        events = settle.polled(verdict, now_of(self._clock, operation))
        if events:
            log.info("came to an end", operation=operation.key, how=str(events[0].kind))
            await self._ledger.commit(Change(evolve_all(operation, events), events))

    async def _to_the_end(
        self, inquiry: Inquiry | BatchInquiry, bound: Bound, operation: Operation
    ) -> LookupVerdict:
        while True:
            step = inquiry.next()
            if not isinstance(step, Request):
                return step
            page = self._lending.authorised(bound, step)
            inquiry.feed(
                await self._outbound.attempt(
                    page, run=operation.run, fresh=False, operation_key="", relay=None
                )
            )

    def foreign(self, operation: Operation) -> None:
        """An effect has shown that no ledger of this proxy knows."""
        self._metrics.foreign(operation.service)
        log.error("foreign effect", operation=operation.key)

    def conflict(self, operation: Operation) -> None:
        """An effect came too late to be the only one."""
        self._metrics.conflict(operation.service)
        log.error("effect conflict", operation=operation.key)

    def _adopted(self, operation: Operation, verdict: LookupVerdict) -> str | None:
        """Another operation that already owns the object found."""
        if not isinstance(verdict, Found) or verdict.external_id is None:
            return None
        thing = _thing(operation, verdict.external_id)
        if thing in self._adopting:
            return "an operation that is adopting it just now"
        owner = self._ledger.adopted(*thing)
        return None if owner == operation.key else owner

    async def _adopt(
        self, operation: Operation, verdict: LookupVerdict, change: Change
    ) -> Operation:
        """Commit what a lookup taught; while an object is being adopted nobody else may."""
        if not isinstance(verdict, Found) or verdict.external_id is None:
            return await self._ledger.commit(change)
        thing = _thing(operation, verdict.external_id)
        if change.operation.state not in ENDED:
            return await self._ledger.commit(change)
        self._adopting.add(thing)
        try:
            return await self._ledger.commit(change)
        finally:
            self._adopting.discard(thing)


def _marked(bound: Bound, operation: Operation, lookup: Lookup) -> bool:
    """Whether what the lookup looks for is what this operation had."""
    if lookup.by_obtained:
        return operation.intent.obtained is not None
    return mark(bound.endpoint, operation.intent) is not None


def _thing(operation: Operation, external_id: str) -> tuple[str, str, str | None, str]:
    return operation.service, operation.endpoint, operation.intent.account, external_id


def _there(verdict: LookupVerdict) -> bool:
    """One object, and not one that records a refusal."""
    return isinstance(verdict, Found) and not verdict.failed


def _same_named_account(ask: Ask, operation: Operation) -> bool:
    """Whether the rule says that both are one account, whatever credential they have. Of its own
    credential's account it does not say anything."""
    if ask.credential == RULE:
        return False
    return operation.intent.account is not None and operation.intent.account == ask.account
