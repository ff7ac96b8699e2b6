"""The caller's side: what an intercepted call is, which operation it means, whom it waits for, and
what it is told. The operation itself is driven by ``engine.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import structlog

from proxy.core.call import UNRULED, Governable, Governed, Passing, name, noise_of, triage
from proxy.core.decide import Answer, Decision, Hold, Refuse, bind, decide
from proxy.core.fingerprint import DuplicateMember, canonical, differences
from proxy.core.intent import placed
from proxy.core.matching import BadPath
from proxy.core.model import EMPTY, Answered, Denied, Identity, Lost, NotSent, Request
from proxy.core.model import Answer as HttpAnswer
from proxy.core.operation import Event, Kind, Operation, State
from proxy.core.placement import CannotPlace
from proxy.core.refusal import Refusal
from proxy.core.rules import Endpoint
from proxy.engine import ENDED, Bound, Engine
from proxy.flights import Flight
from proxy.ledger.base import Damaged, LedgerError, Lookalike
from proxy.net.exchange import Arrival, Incomplete, Reply, TooLarge
from proxy.net.problem import reply as problem
from proxy.replies import keep, of_answer

log = structlog.get_logger("onceproxy")

FIELDS_MAX = 8  # enough to see what changed, short enough for a sentence
RETRY_AFTER = 2  # seconds; a twin's answer is usually not far


class Callers:
    """``handle`` is what the front door calls for each intercepted call."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ledger = engine.ledger
        self._metrics = engine.metrics
        self._settings = engine.settings

    async def handle(self, arrival: Arrival) -> Reply:
        """Answer one intercepted call. Never raises."""
        try:
            return await self._handle(arrival)
        except Damaged as error:
            log.error("ledger damaged", detail=str(error))
            refusal = Refusal("outcome-unresolved", "The ledger's record of this call is damaged.")
        except LedgerError as error:
            log.error("ledger unavailable", detail=str(error))
            refusal = Refusal("ledger-unavailable", "The intent could not be recorded.")
        except Exception:
            log.exception("internal error")
            refusal = Refusal("internal-error", "The proxy met a fault of its own; see its log.")
        return self._refuse(refusal, None)

    async def _handle(self, arrival: Arrival) -> Reply:
        if arrival.bad is not None:
            return self._refuse(arrival.bad, None)
        rules, policy, request = self._engine.rules, self._settings.policy, arrival.request
        read = False
        try:
            examined = rules.examine(request)
            if examined.needs_body and self._fits(arrival):
                request, read = await self._with_body(arrival), True
            matched = examined.choose(request)
            kind = triage(request, matched, arrival.identity or Identity(), policy)
            if isinstance(kind, Governable) and not read:
                request, read = await self._with_body(arrival), True
                matched = examined.choose(request)
        except BadPath as error:
            return self._refuse(Refusal("bad-request", str(error)), None)
        except TooLarge:
            detail = f"The limit is {self._settings.request_body} bytes (limits.request_body)."
            return self._refuse(Refusal("request-too-large", detail), None)
        except Incomplete:
            detail = "The body broke off before its end; nothing was sent."
            return self._refuse(Refusal("bad-request", detail), None)
        endpoint = matched.endpoint if matched is not None else None
        if isinstance(kind, Passing):
            return await self._pass(arrival, request, endpoint, kind, read)
        call = kind if isinstance(kind, Refusal) else name(kind, request, matched, policy)
        if isinstance(call, Refusal):
            return self._refuse(call, endpoint)
        return await self._govern(arrival, call)

    def _fits(self, arrival: Arrival) -> bool:
        length = arrival.content_length
        return length is None or length <= self._settings.request_body

    async def _with_body(self, arrival: Arrival) -> Request:
        return arrival.request.with_(body=await arrival.read(self._settings.request_body))

    # -- a write with a name -----------------------------------------------------------------------

    async def _govern(self, arrival: Arrival, call: Governed) -> Reply:
        newest = self._newest(call)
        if isinstance(newest, Refusal):
            return self._refuse(await self._with_fields(call, newest), call.endpoint)
        if call.mode != "enforce" and not _honoured(newest):
            if call.mode == "pass" or newest is not None:
                self._metrics.observed("pass" if newest is None else "duplicate")
                passing = Passing(f"mode {call.mode}", unprotected=True)
                endpoint = call.endpoint if call.ruled else None
                return await self._pass(arrival, call.request, endpoint, passing, True)
            self._metrics.observed("first")
        bound = self._bind(call, newest)
        self._engine.lent.lend(bound.base, call.credentials)
        return await self._settled(bound)

    async def _settled(self, bound: Bound) -> Reply:
        """Wait for whoever drives the operation, or have it driven, and tell what it came to."""
        flight = None
        while (twin := self._engine.flight(bound.base)) is not None:
            flight, bound.seen = twin, None
            if not await self._twin_done(flight, bound):
                return self._impatient(bound)
        decision = self._at_rest(bound)
        if decision is not None:
            answer = flight.answer if flight is not None else None
            how = "coalesced" if flight is not None else "replayed"
            return await self._tell(bound, decision, answer, how)
        flight = self._engine.depart(bound)
        await flight.news  # this caller's own future: cancelling it cancels no send
        if flight.relay is not None and flight.relay.head is not None:
            return self._streamed(bound, flight)
        if flight.relay is not None:
            flight.relay.close()
        if not flight.done.done():
            return self._impatient(bound, flight.decision)
        if flight.error is not None:
            raise flight.error
        return await self._own_end(bound, flight)

    async def _twin_done(self, flight: Flight, bound: Bound) -> bool:
        """Whether the twin in flight ended before this caller's patience did. Raises its error."""
        waited = self._engine.clock.time() - bound.ask.arrived_at
        left = max(0.0, self._settings.patience - waited)
        if not await self._engine.clock.wait(flight.done, left):
            return False
        if flight.error is not None:
            raise flight.error
        return True

    async def _own_end(self, bound: Bound, flight: Flight) -> Reply:
        decision, operation = flight.decision, flight.operation
        assert decision is not None
        if not bound.enforced or flight.unrecorded:
            # Nothing may be refused (observe), or nothing could be recorded: the true answer.
            if isinstance(flight.result, Answered) and operation is not None:
                return of_answer(flight.result.answer, operation, "sent", _nobody_asks)
            code = "upstream-lost" if isinstance(flight.result, Lost) else "upstream-not-reached"
            reason = flight.result.reason if isinstance(flight.result, NotSent | Lost) else ""
            return self._refuse(Refusal(code, reason), bound.endpoint)
        mine = (
            operation is not None
            and isinstance(decision, Answer)
            and (operation.key == decision.operation.key)
        )
        found = mine and operation is not None and operation.outcome is not None
        how = "replayed"
        if mine:
            assert operation is not None
            queried = found and operation.outcome is not None and operation.outcome.how == "found"
            how = "reconciled" if queried else "sent"
        return await self._tell(bound, decision, flight.answer if mine else None, how)

    def _newest(self, call: Governed) -> Operation | Refusal | None:
        """The newest version of the operation that this call means, under whatever name."""
        if self._ledger.has_step(call.run, call.step):
            found = self._ledger.find(call.base, call.former_bases)
            if found is not None:
                return found
            alike = Lookalike(call.run, call.step, call.request.method, call.bare.url)
            for other in self._ledger.alike(alike):
                both_named = call.named_by_caller and ":" in other.name
                if other.intent.fingerprint == call.fingerprint and not both_named:
                    return other
        if call.caller_key_digest is None:
            return None
        keyed = self._ledger.by_caller_key(call.endpoint.service, call.caller_key_digest)
        if keyed is None or keyed.intent.fingerprint == call.fingerprint:
            return keyed
        return Refusal(
            "key-reused",
            "The idempotency key of this call was sent with another request before.",
            operation=keyed.key,
            state=str(keyed.state),
            external_id=keyed.outcome.external_id if keyed.outcome else None,
        )

    def _bind(self, call: Governed, newest: Operation | None) -> Bound:
        version = bind(newest, call.fingerprint)
        before, body = 0, None
        if newest is not None and newest.version == version:
            before = len(newest.attempts)
            if call.endpoint.signed != "none" or not newest.intent.body_kept:
                with contextlib.suppress(CannotPlace):
                    body = placed(call.bare, call.endpoint, newest.intent).body.sha256
        run = self._ledger.run(call.run)
        ask = call.ask(
            version=version,
            epoch=run.epoch if run is not None else 1,
            arrived_at=self._engine.clock.time(),
            attempts_before=before,
            body_sha256=body,
        )
        base = newest.base if newest is not None else call.base
        begun = newest is None or newest.version == version
        seen = (newest, None) if begun else (None, newest)
        return Bound(base, ask, call.endpoint, call, seen)

    def _at_rest(self, bound: Bound) -> Answer | Refuse | None:
        """What a recorded end, or the attempt of the twin just waited for, decides for this
        call."""
        if bound.seen is None:
            bound.seen = self._engine.load(bound)
        operation, previous = bound.seen
        if operation is None or self._engine.owes(operation):
            return None
        fresh_end = len(operation.attempts) > bound.ask.attempts_before
        if operation.state not in ENDED and not (
            operation.state is State.NOT_APPLIED and fresh_end
        ):
            return None
        decision = decide(
            bound.ask,
            bound.endpoint,
            self._engine.snapshot(bound, operation, previous),
            self._settings.limits,
        )
        return decision if isinstance(decision, (Answer, Refuse)) else None

    # -- what it is told ---------------------------------------------------------------------------

    async def _tell(
        self, bound: Bound, decision: Decision, answer: HttpAnswer | None, how: str
    ) -> Reply:
        match decision:
            case Answer():
                return await self._answer(bound, decision, answer, how)
            case Refuse(refusal=refusal):
                named = await self._with_fields(bound.call, refusal)
                return self._refuse(named, bound.endpoint)
            case _:
                return self._impatient(bound, decision)

    async def _answer(
        self, bound: Bound, decision: Answer, answer: HttpAnswer | None, how: str
    ) -> Reply:
        operation, outcome = decision.operation, decision.operation.outcome
        if answer is None or answer.body is None:
            answer = await self._ledger.answer_of(operation.key)
        if answer is None:
            if operation.state is not State.FAILED or outcome is None or outcome.status is None:
                raise Damaged(f"the answer of {operation.key} is gone")
            answer = HttpAnswer(outcome.status, "", (), EMPTY)
        if outcome is not None and outcome.how == "resolved":
            how = "resolved"
        for event in self._notes(bound, decision, how):
            self._ledger.note(operation, event)
        if how in ("replayed", "coalesced", "reconciled"):
            self._suppressed(bound.endpoint, "drift_replayed" if decision.drifted else how)
        if how not in ("sent", "reconciled"):
            answer = keep(answer, None) or answer
        self._decided(bound.endpoint, how, operation, decision.reason)
        return of_answer(answer, operation, how, self._delivered(bound, operation))

    def _notes(self, bound: Bound, decision: Answer, how: str) -> tuple[Event, ...]:
        now = self._engine.clock.time()
        notes = decision.notes
        if how == "replayed":
            notes = (*notes, Event(Kind.REPLAYED, now, {"epoch": bound.ask.epoch}))
        elif how == "coalesced":
            notes = (*notes, Event(Kind.COALESCED, now, {"epoch": bound.ask.epoch}))
        call = bound.call
        if call is not None and decision.operation.intent.credential != call.credential:
            notes = (*notes, Event(Kind.CREDENTIAL_CHANGED, now, {}))
        return notes

    def _delivered(self, bound: Bound, operation: Operation) -> Callable[[bool], None]:
        """Recorded only where it decides something: a refusal that was heard makes the next call a
        new version, and an answer that was heard makes a reworded call drift."""
        if operation.state is not State.FAILED and not bound.endpoint.wording:
            return _nobody_asks
        if (operation.delivered_epoch or 0) >= bound.ask.epoch:
            return _nobody_asks

        def delivered(whole: bool) -> None:
            if whole:
                at = self._engine.clock.time()
                event = Event(Kind.ANSWER_DELIVERED, at, {"epoch": bound.ask.epoch})
                self._ledger.note(operation, event)

        return delivered

    def _streamed(self, bound: Bound, flight: Flight) -> Reply:
        relay, operation = flight.relay, flight.operation
        assert operation is not None
        assert relay is not None
        assert relay.head is not None
        self._decided(bound.endpoint, "sent", operation, "streamed")
        told = self._delivered(bound, operation)

        def delivered(whole: bool) -> None:
            relay.close()
            told(whole)

        return of_answer(
            relay.head, operation, "sent", delivered, stream=relay.chunks(), length=relay.length
        )

    async def _with_fields(self, call: Governed | None, refusal: Refusal) -> Refusal:
        """Name the fields that differ, where the earlier request is still kept."""
        key = refusal.operation
        if refusal.code not in ("operation-mismatch", "key-reused") or key is None or call is None:
            return refusal
        operation = self._ledger.get(key)
        stored = await self._ledger.request_of(key)
        if operation is None or stored is None or stored.body.data is None:
            return refusal
        noise = noise_of(call.endpoint, call.caller_key)
        headers = call.endpoint.headers
        try:
            mine = placed(call.bare, call.endpoint, operation.intent)
            fields = differences(
                canonical(stored, noise=noise, headers=headers),
                canonical(mine, noise=noise, headers=headers),
            )
        except (DuplicateMember, CannotPlace):
            return refusal
        return replace(refusal, fields=fields[:FIELDS_MAX])

    def _impatient(self, bound: Bound, decision: Decision | None = None) -> Reply:
        if isinstance(decision, Hold) and decision.seconds is not None:
            return self._refuse(decision.otherwise, bound.endpoint)
        operation, _ = self._engine.load(bound)
        unknown = operation is not None and operation.state is State.UNKNOWN
        refusal = Refusal(
            "outcome-unknown" if unknown else "operation-in-progress",
            "It is still being settled." if unknown else "Its answer has not come yet.",
            operation=operation.key if operation else f"{bound.base}/v{bound.ask.version}",
            state=str(operation.state) if operation is not None else None,
            retry_after=RETRY_AFTER,
        )
        return self._refuse(refusal, bound.endpoint)

    def _refuse(self, refusal: Refusal, endpoint: Endpoint | None) -> Reply:
        service = endpoint.service if endpoint is not None else "none"
        self._metrics.decided(service, endpoint.name if endpoint else "none", "refused")
        log.info("refused", code=refusal.code, operation=refusal.operation, detail=refusal.detail)
        if endpoint is not None and endpoint.refusal is not None:
            refusal = replace(refusal, shape=endpoint.refusal)
        attempts = None
        if refusal.operation is not None:
            with contextlib.suppress(Damaged):
                operation = self._ledger.get(refusal.operation)
                attempts = len(operation.attempts) if operation is not None else 0
        return problem(refusal, attempts=attempts)

    def _decided(self, endpoint: Endpoint, outcome: str, operation: Operation, reason: str) -> None:
        self._metrics.decided(endpoint.service, endpoint.name, outcome)
        log.info(
            "answered",
            operation=operation.key,
            outcome=outcome,
            reason=reason,
            attempts=len(operation.attempts),
        )

    def _suppressed(self, endpoint: Endpoint, how: str) -> None:
        self._metrics.suppressed(endpoint.service, endpoint.name, how)

    # -- calls that are not governed ---------------------------------------------------------------

    async def _pass(
        self,
        arrival: Arrival,
        request: Request,
        endpoint: Endpoint | None,
        passing: Passing,
        read: bool,
    ) -> Reply:
        """Forward a call unrecorded and have its answer flow back."""
        service = endpoint.service if endpoint is not None else UNRULED
        label = endpoint.name if endpoint is not None else "content"
        self._metrics.decided(service, label, "passed")
        if passing.unprotected:
            self._metrics.unprotected(passing.reason)
        outbound = self._engine.outbound
        if endpoint is not None:
            request = outbound.authorised(request, endpoint, None)
        has_body = not read and arrival.content_length != 0
        opened = await outbound.send(
            request,
            stream=arrival.stream() if has_body else None,
            length=arrival.content_length if has_body else None,
            upgrade=arrival.upgrade,
        )
        match opened:
            case Denied(reason):
                return self._refuse(Refusal("egress-denied", reason), None)
            case NotSent(reason):
                return self._refuse(Refusal("upstream-not-reached", reason), None)
            case Lost(reason):
                return self._refuse(Refusal("upstream-lost", reason), None)
        return Reply(
            opened.status,
            opened.reason,
            opened.headers,
            opened.pipe or opened.chunks(),
            length=opened.length,
            delivered=lambda whole: None if whole else opened.close(),
        )


def _nobody_asks(whole: bool) -> None:
    """For answers whose delivery decides nothing."""


def _honoured(newest: Operation | None) -> bool:
    """Whether an operation in the ledger binds calls whatever the mode is now."""
    if newest is None or newest.intent.mode != "enforce":
        return False
    return newest.state not in (State.FAILED, State.NOT_APPLIED)
