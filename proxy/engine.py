"""The engine: one loop that takes an operation from a call to its end.

    load -> decide -> commit -> act -> settle -> commit -> load ...

``core.decide`` says what to do, this file does it, and nothing else in the program does. The laws
it keeps: the intent is durable before the first byte leaves, the outcome is durable before the
caller has the whole answer, and a send goes out in one place only. First call, duplicate, resume
and background settling differ in nothing but the snapshot they meet.

An operation is driven by one *flight*, a task of its own, so that a caller that leaves cancels
nothing. Who waits for a flight is in ``callers.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import structlog

from proxy.approvals import Approvals, NotAsApproved, allowed, must_be_approved
from proxy.authority import Authority, Rights
from proxy.bound import Bound, Claimed, Seen, claims, now_of, stored_request
from proxy.clock import Clock
from proxy.core import jsonrpc, settle
from proxy.core.approval import requested
from proxy.core.call import Governed, Policy
from proxy.core.classify import Verdict, classify
from proxy.core.credentials import MissingCredential
from proxy.core.decide import (
    Forward,
    Hold,
    Limits,
    Presume,
    Reconcile,
    Refuse,
    RequestApproval,
    Snapshot,
    decide,
)
from proxy.core.decide.budget import WRITE
from proxy.core.decide.drift import mismatch
from proxy.core.decide.state import no_credential
from proxy.core.intent import OBTAINED, inherits, intend
from proxy.core.kept import keep
from proxy.core.matching import RuleSet
from proxy.core.model import Answer, Answered, Request, SendResult
from proxy.core.obtaining import NotObtained, asked, taken
from proxy.core.operation import ENDED, UNSETTLED, Event, Kind, Operation, State, changed
from proxy.core.refusal import Refusal
from proxy.core.rules import Auth
from proxy.core.transitions import IllegalTransition, evolve_all
from proxy.core.views import RequestView
from proxy.failpoints import OFF, Failpoints
from proxy.flights import Claim, Flight, Sights
from proxy.hints import Hints
from proxy.ledger.base import Change, Conflict, Ledger, LedgerError, Refused
from proxy.lending import Lending
from proxy.lookups import Lookups
from proxy.outbound import Outbound, Upstream
from proxy.snapshots import Snapshots

log = structlog.get_logger("onceproxy")

TURNS_MAX = 200  # of one flight: five sends and a lookup every tenth of a second stay far below it


class Observer(Protocol):
    """What is reported for metrics; every label is bounded by the rules."""

    def decided(self, service: str, endpoint: str, outcome: str) -> None: ...
    def suppressed(self, service: str, endpoint: str, how: str) -> None: ...
    def reconciled(self, service: str, result: str) -> None: ...
    def unprotected(self, reason: str) -> None: ...
    def observed(self, decision: str) -> None: ...
    def exhausted(self, unit: str) -> None: ...
    def model_tokens(self, service: str, endpoint: str, how: str, number: int) -> None: ...
    def upstream(self, service: str, seconds: float) -> None: ...
    def foreign(self, service: str) -> None: ...
    def conflict(self, service: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """What the configuration says about calls. Seconds and bytes."""

    policy: Policy = field(default_factory=Policy)
    limits: Limits = field(default_factory=Limits)
    patience: float = 20.0
    request_body: int = 100_000_000
    kept_body: int = 10_000_000
    secrets: Sequence[bytes] = ()
    secret_of: Callable[[Auth], str | None] = lambda auth: None
    journal: bool = False  # the answers of every model are recorded, whatever the rules say
    approval_wait: float = 0.0  # for which a call that needs an approval is held for it


class Engine:
    def __init__(
        self,
        *,
        ledger: Ledger,
        rules: RuleSet,
        upstream: Upstream,
        clock: Clock,
        metrics: Observer,
        settings: Settings | None = None,
        rights: Rights | None = None,
        failpoints: Failpoints = OFF,
    ) -> None:
        self.settings = settings or Settings()
        self.authority = Authority(ledger, rights)
        self.approvals = Approvals(ledger, clock)
        self.hints = Hints()
        self.rules = rules
        self.ledger = ledger
        self.clock = clock
        self.metrics = metrics
        self.outbound = Outbound(
            upstream,
            failpoints=failpoints,
            send_timeout=self.settings.limits.send_timeout,
            kept_body=self.settings.kept_body,
            secret_of=self.settings.secret_of,
            sleep=clock.sleep,
        )
        self._lending = Lending(self.outbound, clock, self.settings.policy.digest_key)
        self._limits = self.settings.limits
        self._began = clock.monotonic()  # what a lost ledger sent was sent before
        self._failpoints = failpoints
        self._flights: dict[str, Flight] = {}
        self._sights = Sights()
        self.snapshots = Snapshots(
            ledger=ledger, clock=clock, authority=self.authority, sights=self._sights
        )
        self._owed: dict[str, Change] = {}  # outcomes that the ledger could not take yet
        self._unsent: set[tuple[str, int]] = set()  # attempts whose intent could not be committed
        self._claims: dict[Claim, Claimed] = {}  # what operations being begun will be found by
        self._kept: set[asyncio.Task[None]] = set()
        self._lookups = Lookups(
            ledger=ledger,
            outbound=self.outbound,
            clock=clock,
            metrics=metrics,
            sights=self._sights,
            lending=self._lending,
            secrets=self.settings.secrets,
        )

    def flight(self, base: str) -> Flight | None:
        """Whoever drives that operation now."""
        return self._flights.get(base)

    def claimed(self, call: Governed) -> str | None:
        """The base of an operation that is being begun under another name, and that this call
        means too: the ledger cannot know it yet."""
        if not self._claims:
            return None
        for claim in claims(call):
            found = self._claims.get(claim)
            if found is not None and not (
                claim[0] == "alike" and found.named and call.named_by_caller
            ):
                return found.base
        return None

    def depart(self, bound: Bound) -> Flight:
        """Drive an operation that nobody drives, until it is at rest or can only wait."""
        assert bound.base not in self._flights, f"{bound.base} is being driven"
        flight = Flight(bound.base)
        self._flights[bound.base] = flight
        bound.ask = self._lending.ask(bound)
        if bound.call is not None:
            flight.expect_caller(bound.ask.epoch, bound.ask.fingerprint)
            flight.claims = claims(bound.call)
            for claim in flight.claims:
                self._claims[claim] = Claimed(bound.base, bound.call.named_by_caller)
        flight.task = asyncio.get_running_loop().create_task(self._fly(flight, bound))
        return flight

    async def _fly(self, flight: Flight, bound: Bound) -> None:
        try:
            await self._drive(flight, bound)
        except Exception as error:
            flight.error = error
        finally:
            del self._flights[bound.base]
            for claim in flight.claims:
                held = self._claims.get(claim)
                if held is not None and held.base == bound.base:
                    del self._claims[claim]
            flight.finish()

    # -- the loop ------------------------------------------------------------------------------

    async def _drive(self, flight: Flight, bound: Bound) -> None:
        # Nobody else drives this operation, so what is known of it stays so, except for what a
        # person or a note changes meanwhile: then a commit meets a Conflict, and it is read again.
        seen, bound.seen = bound.seen, None
        for _ in range(TURNS_MAX):
            try:
                seen = seen if seen is not None else self.snapshots.load(bound)
                operation = seen.operation
                if operation is not None and operation.state in UNSETTLED:
                    operation = await self.mend(operation)
                    await self._lookups.prepare(bound, operation, self.rules)
                    seen = seen._replace(operation=operation)
                snapshot = self.snapshots.of(bound, seen)
                ask = self._lending.ask(bound)
                flight.decision = decide(ask, bound.endpoint, snapshot, self._limits)
                seen = None
                self._lending.lend(bound, flight.decision)
                match flight.decision:
                    case Forward() as forward:
                        seen = Seen(await self._forward(flight, bound, snapshot, forward))
                    case Presume(since=since):
                        await self._presume(bound, snapshot, since)
                    case RequestApproval(expired=expired):
                        await self._request_approval(bound, snapshot, expired)
                    case Reconcile() if snapshot.is_done:
                        await self._lookups.poll(bound, snapshot)
                    case Reconcile():
                        await self._lookups.reconcile(flight, bound, snapshot)
                    case Hold(seconds=float() as seconds) if self._has_patience(flight, seconds):
                        await self.clock.sleep(seconds)
                    case Refuse(blocked_by=str() as blocked_by, reason=reason):
                        await self._blocked(snapshot, blocked_by, reason)
                        return
                    case _:
                        return
            except (Conflict, Refused):
                seen = None
                continue
            except NotAsApproved as error:
                flight.decision = mismatch(error.operation, str(error))
                return
            except NotObtained as error:
                flight.decision = Refuse(
                    "what it needs could not be obtained",
                    Refusal(
                        "upstream-not-reached",
                        str(error),
                        operation=f"{bound.base}/v{bound.ask.version}",
                    ),
                )
                return
            except MissingCredential:
                assert operation is not None
                flight.decision = no_credential(operation)
                await self._blocked(snapshot, "credentials", flight.decision.reason)
                return
            if flight.unrecorded or not bound.enforced:
                return
        raise RuntimeError(f"{bound.base} came to no end in {TURNS_MAX} turns")

    async def _forward(
        self, flight: Flight, bound: Bound, snapshot: Snapshot, forward: Forward
    ) -> Operation:
        operation, request, new = await self._to_send(bound, snapshot)
        must_be_approved(operation, request)
        if not new and jsonrpc.speaks(bound.endpoint):
            request = _asked_anew(flight, bound, request)
        outgoing = self._lending.authorised(bound, request)
        await self._failpoints.reach("before_intent", operation.key)
        operation = await self._intend(bound, operation, forward, request if new else None)
        flight.operation = operation
        await self._failpoints.reach("after_intent", operation.key)
        earlier = flight.relay is not None and not flight.relay.wanted
        result = await self._attempt(flight, bound, operation, outgoing)
        await self._failpoints.reach("after_effect", operation.key)
        operation = await self._record(flight, bound, operation, result)
        await self._failpoints.reach("after_outcome", operation.key)
        if flight.relay is not None and not (earlier and flight.relay.owed):
            flight.relay.end(whole=operation.state in ENDED and flight.complete)
        return operation

    async def _to_send(
        self, bound: Bound, snapshot: Snapshot, *, obtain: bool = True
    ) -> tuple[Operation, Request, bool]:
        """The operation to start an attempt of, its request, and whether that request is new."""
        operation, call = snapshot.operation, bound.call
        if operation is not None:
            # While it may have taken effect, and where only its wording differs, what was stored is
            # sent. Else nothing has come of the earlier request, and this one takes its place.
            same = call is not None and operation.intent.fingerprint == call.fingerprint
            if (
                operation.undecided
                or (operation.ever_left and not same)
                or (allowed(operation) and (same or call is None))  # just what a person has seen
            ):
                return operation, await stored_request(self.ledger, bound, operation), False
        obtained = await self._obtain(bound, snapshot) if obtain else None
        operation, request, _ = self._anew(bound, snapshot, obtained)
        if operation.approval is not None:
            operation = changed(operation, approval=None)  # it was for another request
        return operation, request, True

    async def _obtain(self, bound: Bound, snapshot: Snapshot) -> str | None:
        """What the API gives before the call, once for a version: as long as no intent has it, a
        crash leaves nothing of it. Raises NotObtained."""
        spec, call, operation = bound.endpoint.obtain, bound.call, snapshot.operation
        if spec is None or call is None or call.mode != "enforce":
            return None
        if operation is not None and operation.intent.obtained is not None:
            return operation.intent.obtained
        keyed = bound.endpoint.key is not None and bound.endpoint.key.rendering == OBTAINED
        if bound.endpoint.signed != "none":
            return None
        if keyed and (call.caller_key is not None or inherits(snapshot.previous, call) is not None):
            return None  # it has one
        request = asked(spec, call.bare, call.params)
        if request is None:
            return None
        result = await self.outbound.attempt(
            self._lending.authorised(bound, request),
            run=call.run,
            fresh=False,
            operation_key="",
            relay=None,
        )
        return taken(spec, bound.endpoint, result)

    def _anew(
        self, bound: Bound, snapshot: Snapshot, obtained: str | None
    ) -> tuple[Operation, Request, bool]:
        """The operation with the request that its call makes now."""
        operation, call = snapshot.operation, bound.call
        assert call is not None
        intended = intend(
            call,
            base=bound.base,
            version=bound.ask.version,
            previous=snapshot.previous,
            epoch=bound.ask.epoch,
            secrets=self.settings.secrets,
            now=snapshot.now,
            kept_body=self.settings.kept_body,
            key=operation.intent.upstream_key if operation is not None else None,
            obtained=obtained,
        )
        for note in intended.notes:
            log.warning("sent without a mark", operation=intended.operation.key, detail=note)
        bound.stored = intended.request
        if bound.endpoint.signed != "none" or not intended.operation.intent.body_kept:
            bound.ask = replace(bound.ask, body_sha256=intended.request.body.sha256)  # compared
        if operation is None:
            return intended.operation, intended.request, True
        fresh = intended.operation
        taken = changed(operation, intent=fresh.intent, url=fresh.url, caller_key=fresh.caller_key)
        return taken, intended.request, True

    async def _intend(
        self, bound: Bound, operation: Operation, forward: Forward, request: Request | None
    ) -> Operation:
        """Make the intent durable. Raises Conflict, LedgerError: then nothing may be sent."""
        started = Event(
            Kind.ATTEMPT_STARTED,
            now_of(self.clock, operation),
            {
                "attempt": forward.attempt,
                "reason": forward.reason,
                "keyed": operation.intent.upstream_key is not None,
                "credential": self._lending.credential(bound),
            },
        )
        events: tuple[Event, ...] = (started,)
        if request is not None and operation.attempts and not operation.ever_left:
            events = (Event(Kind.DRIFTED, started.at, {"unsent": True}), started)
        charge = None
        if not operation.attempts:  # one version is one unit, however often it is sent
            charge = self.authority.write if bound.enforced else self.authority.unasked
            events = (*events, Event(Kind.BUDGET_CHARGED, started.at, _WRITE))
        kept = _as_kept(operation, request)
        try:
            after = await self.ledger.commit(
                Change(evolve_all(operation, events), events, request=kept, charge=charge)
            )
        except (Conflict, Refused):
            raise
        except LedgerError:
            self._unsent.add((operation.key, forward.attempt))
            raise
        self._unsent.discard((operation.key, forward.attempt))
        return after

    async def _presume(self, bound: Bound, snapshot: Snapshot, since: float) -> None:
        """Begin the operation as one that a lost ledger may have sent."""
        operation, request, new = await self._to_send(bound, snapshot, obtain=False)
        gap = self.ledger.gap
        if gap is None:
            return  # closed just now
        # Later than the gap, so that it is asked about once.
        at = max(now_of(self.clock, operation), gap.until + 0.001)
        # With several secrets it may have gone out under another key than the one made now.
        keyed = operation.intent.upstream_key is not None and len(self.settings.secrets) <= 1
        event = settle.presumed(
            operation,
            bound.endpoint,
            since,
            at,
            keyed=keyed,
            credential=self._lending.credential(bound),
        )
        after = evolve_all(operation, (event,))
        kept = _as_kept(operation, request) if new else None
        charge = None if operation.attempts else self.authority.write
        after = await self.ledger.commit(Change(after, (event,), request=kept, charge=charge))
        self._sights.left(after.key, self._began)

    async def _request_approval(self, bound: Bound, snapshot: Snapshot, expired: bool) -> None:
        """Keep the call as it would be sent, for a person to decide on. Nothing is sent."""
        obtained = await self._obtain(bound, snapshot)
        operation, request, _ = self._anew(bound, snapshot, obtained)
        now = now_of(self.clock, operation)
        assert bound.call is not None
        view = RequestView(request, bound.call.params)
        events = requested(operation, bound.endpoint, request, view, now, expired=expired)
        after = await self.ledger.commit(
            Change(evolve_all(operation, events), events, request=_as_kept(operation, request))
        )
        log.warning("waits for an approval", operation=after.key, endpoint=bound.endpoint.title)

    async def _attempt(
        self, flight: Flight, bound: Bound, operation: Operation, outgoing: Request
    ) -> SendResult:
        # A write that nothing could settle does not go out on a connection that may be closing.
        bare = operation.intent.upstream_key is None and not bound.endpoint.reconcile
        began = self.clock.monotonic()
        try:
            return await self.outbound.attempt(
                outgoing,
                run=operation.run,
                fresh=bare and not operation.intent.idempotent,
                operation_key=operation.key,
                gate=lambda: self.authority.objection(
                    self.snapshots.access(bound), operation, now_of(self.clock, operation)
                ),
                relay=flight.relay,
                answering=jsonrpc.Answering(outgoing) if jsonrpc.speaks(bound.endpoint) else None,
            )
        finally:
            now = self.clock.monotonic()
            self._sights.left(operation.key, now)
            self.metrics.upstream(bound.endpoint.service, now - began)

    async def _record(
        self,
        flight: Flight,
        bound: Bound,
        operation: Operation,
        result: SendResult,
    ) -> Operation:
        """Settle the open attempt and make its end durable. If the ledger fails now, the caller
        still gets the true answer, and the outcome is owed to the ledger."""
        verdict, kept = self._judge(bound, operation, result)
        assert operation.last is not None
        attempt = operation.last.number
        conflict: tuple[Event, ...] = ()
        moved = False  # while it was under way, by somebody else
        for _ in range(TURNS_MAX):
            events = settle.attempt_ended(
                operation,
                bound.endpoint,
                attempt,
                result,
                verdict,
                now_of(self.clock, operation),
                kept=kept is not None,
            )
            try:
                after = evolve_all(operation, events)
            except IllegalTransition as error:
                if not moved:
                    raise
                log.warning("it came too late", operation=operation.key, detail=str(error))
                after, conflict = operation, ()
                break
            if moved:
                conflict = self._late(operation, after)
                events = (*events, *conflict)
            change = Change(after, events, answer=kept if after.state in ENDED else None)
            try:
                after = await self.ledger.commit(change)
            except Conflict:
                operation, moved = self.ledger.get(operation.key) or operation, True
                continue
            except LedgerError as error:
                log.error("outcome not recorded", operation=after.key, detail=str(error))
                self._owed[after.key] = change
                flight.unrecorded = True
            break
        if conflict:
            self._lookups.conflict(after)
        flight.ended(after, attempt, result)
        if after.state in ENDED:
            self._sights.settled(after.key)
            self._lending.give_back(after.base)
        elif after.state is State.UNKNOWN:
            log.warning(
                "unknown", operation=after.key, attempt=attempt, blocked_by=after.blocked_by
            )
            self._begin_patience(flight)
        return after

    def _judge(
        self, bound: Bound, operation: Operation, result: SendResult
    ) -> tuple[Verdict | None, Answer | None]:
        """What an answer means, and what is kept of it."""
        if not isinstance(result, Answered):
            return None, None
        verdict = classify(
            bound.endpoint,
            result,
            keyed=operation.intent.upstream_key is not None,
            request=bound.call.request if bound.call is not None else bound.stored,
        )
        if verdict.replayed and settle.foreign(operation, len(operation.attempts)):
            self._lookups.foreign(operation)
        elif verdict.replayed:
            self.metrics.suppressed(operation.service, operation.endpoint, "upstream_replayed")
        return verdict, keep(result.answer, bound.endpoint) if result.complete else None

    async def _blocked(self, snapshot: Snapshot, blocked_by: str, reason: str) -> None:
        """Write down why an unknown operation stays so, when that is news."""
        operation = snapshot.operation
        if operation is None or operation.state is not State.UNKNOWN:
            return
        if operation.blocked_by == blocked_by:
            return
        data = {"blocked_by": blocked_by, "reason": reason}
        event = Event(Kind.LOOKUP_INCONCLUSIVE, snapshot.now, data)
        await self.ledger.commit(Change(evolve_all(operation, (event,)), (event,)))

    # -- what this process knows and the ledger does not yet ---------------------------------------

    def may_have_left(self, operation: Operation) -> bool:
        """Whether an undecided attempt may have been sent, by the row and by what is known here."""
        open_ = (a.number for a in operation.attempts if a.undecided)
        return any((operation.key, number) not in self._unsent for number in open_)

    def owes(self, operation: Operation) -> bool:
        """Whether the row is behind what this process knows."""
        return operation.key in self._owed

    async def mend(self, operation: Operation) -> Operation:
        """Bring the row up to what this process knows: an outcome that could not be recorded, or
        an attempt that is open although nobody drives it. Raises LedgerError."""
        owed = self._owed.get(operation.key)
        if owed is not None:
            operation = await self._pay(operation, owed)
            del self._owed[operation.key]
        if operation.state is not State.IN_FLIGHT:
            return operation
        now = now_of(self.clock, operation)
        unsent = {a.number for a in operation.attempts if (operation.key, a.number) in self._unsent}
        events = settle.abandoned(operation, now, unsent)
        operation = await self.ledger.commit(Change(evolve_all(operation, events), events))
        self._unsent -= {(operation.key, number) for number in unsent}
        self._sights.left(operation.key, self.clock.monotonic())
        return operation

    async def _pay(self, operation: Operation, owed: Change) -> Operation:
        """Record an outcome that the ledger could not take, whatever it has been told meanwhile (an
        approval taken back, an answer delivered); it may also have landed all the same."""
        number = owed.events[0].data["attempt"]
        for _ in range(TURNS_MAX):
            operation = self.ledger.get(operation.key) or operation
            ended = operation.attempts[number - 1]
            if ended == owed.operation.attempts[number - 1]:
                return operation
            try:
                after = evolve_all(operation, owed.events)
            except IllegalTransition as error:
                log.error("outcome not recorded", operation=operation.key, detail=str(error))
                return operation
            conflict = self._late(operation, after)
            answer = owed.answer if after.state in ENDED else None
            try:
                after = await self.ledger.commit(
                    Change(after, (*owed.events, *conflict), answer=answer)
                )
            except Conflict:
                continue
            if conflict:
                self._lookups.conflict(after)
            return after
        raise LedgerError(f"{operation.key} changes faster than its outcome can be recorded")

    def _late(self, before: Operation, after: Operation) -> tuple[Event, ...]:
        newest = self.ledger.find(before.base)
        return settle.late(before, after, newest, now_of(self.clock, before))

    # -- patience --------------------------------------------------------------------------------

    def _begin_patience(self, flight: Flight) -> None:
        """From the moment the outcome is unknown, callers wait only so long."""
        if flight.relay is None or flight.unknown_since is not None:
            return
        flight.unknown_since = self.clock.monotonic()
        flight.patience = asyncio.create_task(self._lose_patience(flight))

    async def _lose_patience(self, flight: Flight) -> None:
        await self.clock.sleep(self.settings.patience)
        flight.tell()

    def _has_patience(self, flight: Flight, seconds: float) -> bool:
        """Whether a wait of that length ends before the callers' patience; the background has
        none."""
        if flight.relay is None:
            return False
        self._begin_patience(flight)
        assert flight.unknown_since is not None
        spent = self.clock.monotonic() - flight.unknown_since
        return spent + seconds <= self.settings.patience

    async def stop(self, drain: float) -> None:
        """Wait for what is in flight, at most ``drain`` seconds; what is left becomes unknown."""
        tasks = [flight.task for flight in self._flights.values() if flight.task is not None]
        tasks += self._kept
        if tasks:
            await asyncio.wait(tasks, timeout=drain)

    def keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something that no caller's leaving may end; a stop of the proxy waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)
        return task


def _asked_anew(flight: Flight, bound: Bound, request: Request) -> Request:
    """A stored call of JSON-RPC with the id of whoever has it sent again. Where it keeps its own,
    its answer does not flow: it is awaited, and changed."""
    again = None
    if bound.call is not None and bound.endpoint.signed == "none":
        again = jsonrpc.asked_by(request, bound.call.request)
    if again is None and flight.relay is not None:
        flight.relay.close()
    return again or request


_WRITE = {"amounts": dict(WRITE)}


def _as_kept(operation: Operation, request: Request | None) -> Request | None:
    """The request as it is stored."""
    if request is None or operation.intent.body_kept:
        return request
    return request.with_(body=replace(request.body, data=None, spool=None))
