"""The caller's side: what an intercepted call is, which operation it means, whom it waits for, and
what it is told. The operation itself is driven by ``engine.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

import structlog

from proxy.authority import token_digest
from proxy.bound import Bound, Seen
from proxy.core import jsonrpc
from proxy.core.call import (
    Governable,
    Governed,
    Passing,
    name,
    stricter,
    triage,
)
from proxy.core.credentials import is_signed, split
from proxy.core.decide import Answer, Decision, Refuse, bind, decide, notes_wording
from proxy.core.fingerprint import DuplicateMember, canonical
from proxy.core.identity import BadIdentity, Sources, identify, run_of, strip_baggage
from proxy.core.intent import placed, sent_again
from proxy.core.matching import BadPath, Matched
from proxy.core.model import Answered, Body, Identity, Lost, NotSent, Request
from proxy.core.operation import ENDED, Operation, State
from proxy.core.placement import CannotPlace
from proxy.core.refusal import Refusal
from proxy.engine import Engine
from proxy.flights import Flight
from proxy.ledger.base import Damaged, LedgerError, Lookalike
from proxy.net.exchange import Arrival, Incomplete, Meaning, Reply, TooLarge
from proxy.passing import Passings, access_of
from proxy.replies import Replies, nobody_asks, of_answer

log = structlog.get_logger("onceproxy")

HOLD_MAX = 600.0  # seconds for which a call may wait for a person


class Misnamed(Exception):
    """A body names run or step otherwise than the head does; str() is the detail of a 400."""

    def __init__(self, detail: str, request: Request) -> None:
        super().__init__(detail)
        self.request = request


class Callers:
    """``handle`` is what the front door calls for each intercepted call."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ledger = engine.ledger
        self._metrics = engine.metrics
        self._settings = engine.settings
        self._replies = Replies(engine)
        self._passing = Passings(engine, self._replies)
        self._approvals = engine.approvals

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
        return self._replies.refuse(refusal, None, arrival.request)

    def at_once(self, arrival: Arrival) -> Reply | None:
        """The reply to a call whose meaning is known, where its operation is at rest and its answer
        at hand; None where it takes more: then the long way is gone. Never raises."""
        meaning = arrival.meaning
        if meaning is None or meaning.rules is not self._engine.rules:
            return None
        call = meaning.call
        if call.mode != "enforce":
            return None
        try:
            operation = self._ledger.find(call.base, call.former_bases)
            if operation is None or not _plain_repeat(call, operation):
                return None
            if jsonrpc.is_batch(call.request.body) and jsonrpc.speaks(call.endpoint):
                return None  # its answers have the ids of what was sent, which is not at hand
            if operation.state not in ENDED or self._engine.flight(operation.base) is not None:
                return None
            bound = self._bind(call, operation, arrival)
            decision = self._at_rest(bound)
            if not isinstance(decision, Answer):
                return None
            answer = self._ledger.answer_at_hand(decision.operation.key)
            if answer is None:
                return None
            return self._replies.give(bound, decision, answer, "replayed")
        except LedgerError:
            return None  # on the long way it is told what is wrong
        except Exception:
            log.exception("internal error")
            return None

    async def _handle(self, arrival: Arrival) -> Reply:
        if arrival.bad is not None:
            return self._replies.refuse(arrival.bad, None, arrival.request)
        rules, policy, request = self._engine.rules, self._settings.policy, arrival.request
        read = False
        try:
            examined = rules.examine(request)
            if examined.needs_body and self._fits(arrival):
                request, read = await self._with_body(arrival), True
            matched = self._engine.hints.applied(examined.choose(request), request)
            kind = triage(request, matched, arrival.identity or Identity(), policy)
            if not read and (isinstance(kind, Governable) or self._is_metered(arrival, matched)):
                request, read = await self._with_body(arrival), True
                matched = self._engine.hints.applied(examined.choose(request), request)
        except BadPath as error:
            return self._replies.refuse(Refusal("bad-request", str(error)), None, request)
        except Misnamed as error:
            return self._replies.refuse(Refusal("bad-request", str(error)), None, error.request)
        except TooLarge:
            detail = f"The limit is {self._settings.request_body} bytes (limits.request_body)."
            return self._replies.refuse(Refusal("request-too-large", detail), None, request)
        except OSError as error:  # no disk for it, or no descriptor
            log.error("body not kept", detail=error.strerror)
            detail = f"The body could not be kept: {error.strerror}; nothing was sent."
            return self._replies.refuse(Refusal("too-busy", detail), None, request)
        except Incomplete:
            detail = "The body broke off before its end; nothing was sent."
            return self._replies.refuse(Refusal("bad-request", detail), None, request)
        endpoint = matched.endpoint if matched is not None else None
        if isinstance(kind, Passing):
            return await self._passing.forward(arrival, request, endpoint, kind, read)
        call = kind if isinstance(kind, Refusal) else name(kind, request, matched, policy)
        if isinstance(call, Governed):
            return await self._govern(arrival, call)
        mode = stricter(policy.mode, endpoint.mode) if endpoint is not None else policy.mode
        if mode != "enforce" and read:
            return await self._passing.observe(arrival, request, endpoint, mode, call.code)
        return self._replies.refuse(call, endpoint, request)

    def _is_metered(self, arrival: Arrival, matched: Matched | None) -> bool:
        """Whether its body says what it may cost a run. One that is too large to be read goes
        unread, at the rule's default."""
        if matched is None or matched.endpoint.meter is None or not run_of(arrival.identity):
            return False
        return self._fits(arrival) and not arrival.upgrade

    def _fits(self, arrival: Arrival) -> bool:
        length = arrival.content_length
        return length is None or length <= self._settings.request_body

    async def _with_body(self, arrival: Arrival) -> Request:
        """Raises Misnamed, and what ``Arrival.read`` does."""
        request = arrival.request.with_(body=await arrival.read(self._settings.request_body))
        inside = jsonrpc.baggage_of(request.body)
        if not inside:
            return request
        try:
            return _named_inside(arrival, request, inside)
        except BadIdentity as error:
            raise Misnamed(error.detail, request) from None

    # -- a write with a name -----------------------------------------------------------------------

    async def _govern(self, arrival: Arrival, call: Governed) -> Reply:
        while (reply := await self._governed(arrival, call)) is None:
            pass  # the operation that it seemed to be has not come into being
        return reply

    async def _governed(self, arrival: Arrival, call: Governed) -> Reply | None:
        if call.mode != "enforce":  # a mode changes what is recorded, not who may call what
            access = access_of(arrival, call.request, call.endpoint)
            standing = self._engine.authority.standing(access)
            bar = standing.bar or standing.stop
            if bar is not None:
                refusal = Refusal(bar.code, bar.detail)
                return self._replies.refuse(refusal, call.endpoint, call.request)
        newest, judged_otherwise = self._newest(call)
        if judged_otherwise:
            call, newest = await self._recognised(call, newest, judged_otherwise)
        if call.mode != "enforce" and not _honoured(newest):
            seen = "duplicate" if newest is not None else "first"
            if call.mode == "pass" or newest is not None or self._engine.flight(call.base):
                endpoint = call.endpoint if call.ruled else None
                return await self._passing.observe(arrival, call.request, endpoint, call.mode, seen)
            self._metrics.observed(seen)
        if isinstance(newest, Refusal):
            named = await self._replies.with_fields(call, newest)
            if not str(named.operation).startswith(f"{call.run}/"):
                # What another run does is not this one's to know.
                named = replace(named, operation=None, state=None, external_id=None)
            return self._replies.refuse(named, call.endpoint, call.request)
        if newest is None or _plain_repeat(call, newest):
            arrival.meaning = Meaning(call, self._engine.rules)  # it may come again
        bound = self._bind(call, newest, arrival)
        if newest is not None and _worded_anew(call, newest):
            history = await self._ledger.history(newest.key)
            if any(notes_wording(entry.event, call.fingerprint) for entry in history):
                bound.ask = replace(bound.ask, accepted=True)
            bound.seen = None  # it may have moved on meanwhile
        elif judged_otherwise:
            bound.seen = None
        return await self._end_of(bound)

    async def _end_of(self, bound: Bound) -> Reply | None:
        """Wait for whoever drives the operation, or have it driven, and tell what it came to. None:
        it was another call's operation that was being begun, and it is not this one's."""
        flight = None
        while (twin := self._engine.flight(bound.base)) is not None:
            flight, bound.seen = twin, None
            if flight.epoch == bound.ask.epoch and flight.fingerprint != bound.ask.fingerprint:
                bound.ask = replace(bound.ask, joined=True)
            done = await self._twin_done(flight, bound)
            if bound.claimed and flight.fingerprint != bound.ask.fingerprint:
                return None if done else self._replies.kept_waiting(bound)
            if not done:
                return self._replies.impatient(bound)
            if bound.claimed and self._ledger.find(bound.base) is None:
                return None
            if flight.error is not None:
                return self._broken(bound, flight.error, flight)
            if flight.fingerprint == bound.ask.fingerprint and _answered_anew(flight):
                bound.ask = replace(bound.ask, accepted=True)
        decision = self._at_rest(bound)
        if decision is not None:
            answer = None
            if flight is not None and isinstance(decision, Answer):
                answer = flight.answer_for(decision.operation)
            how = "coalesced" if flight is not None else "replayed"
            return await self._replies.tell(bound, decision, answer, how)
        flight = self._engine.depart(bound)
        await flight.news  # this caller's own future: cancelling it cancels no send
        if flight.relay is not None and flight.relay.head is not None:
            if flight.relay.owed:
                self._engine.keep(self._last_word(bound, flight))
            return self._replies.streamed(bound, flight)
        if flight.relay is not None:
            flight.relay.close()
        if not flight.done.done():
            return self._replies.impatient(bound, flight.decision)
        if flight.error is not None:
            return self._broken(bound, flight.error, flight)
        key = _held(flight.decision)
        if key is not None and await self._decided(bound, key):
            bound.seen = None
            return await self._end_of(bound)  # a person has spoken
        return await self._own_end(bound, flight)

    async def _last_word(self, bound: Bound, flight: Flight) -> None:
        """What ends a stream that its server left without an answer: the true one, where it came
        out later, else why there is none."""
        relay, last = flight.relay, b""
        assert relay is not None
        try:
            await asyncio.shield(flight.done)
            if relay.owed and flight.error is None and bound.enforced and not flight.unrecorded:
                reply = await self._own_end(bound, flight)
                if isinstance(reply.body, Body):
                    last = jsonrpc.last_word(reply.headers, reply.body)
        except LedgerError as error:
            log.error("ledger unavailable", operation=bound.base, detail=str(error))
        finally:
            relay.conclude(last)

    async def _decided(self, bound: Bound, key: str) -> bool:
        """Whether a person decides while this call waits for it."""
        assert bound.call is not None
        hold = preference(bound.call.request)
        if hold is None:
            hold = self._settings.approval_wait
        left = bound.arrived + min(hold, HOLD_MAX) - self._engine.clock.monotonic()
        return left > 0 and await self._approvals.wait(bound.base, key, left)

    def _broken(self, bound: Bound, error: Exception, flight: Flight) -> Reply:
        """The ledger failed while an operation was settled: "nothing was sent" must not be said of
        one that was."""
        if isinstance(error, Damaged):
            raise error  # told as what it is: nothing settles it any more
        if isinstance(error, LedgerError) and (flight.sent or self._ever_left(bound)):
            log.error("ledger unavailable", operation=bound.base, detail=str(error))
            return self._replies.impatient(bound)
        raise error

    def _ever_left(self, bound: Bound) -> bool:
        """Whether anything may have left in an earlier flight or life."""
        operation = self._engine.snapshots.load(bound).operation
        return operation is not None and self._engine.may_have_left(operation)

    async def _twin_done(self, flight: Flight, bound: Bound) -> bool:
        """Whether the twin in flight ended before this caller's patience did."""
        waited = self._engine.clock.monotonic() - bound.arrived
        left = max(0.0, self._settings.patience - waited)
        return await self._engine.clock.wait(flight.done, left)

    async def _own_end(self, bound: Bound, flight: Flight) -> Reply:
        decision, operation = flight.decision, flight.operation
        assert decision is not None
        if not bound.enforced or flight.unrecorded:
            # Nothing may be refused (observe), or nothing could be recorded: the true answer.
            if isinstance(flight.result, Answered) and operation is not None:
                return of_answer(flight.result.answer, operation, "sent", nobody_asks)
            code = "upstream-lost" if isinstance(flight.result, Lost) else "upstream-not-reached"
            reason = flight.result.reason if isinstance(flight.result, NotSent | Lost) else ""
            request = bound.call.request if bound.call is not None else None
            return self._replies.refuse(Refusal(code, reason), bound.endpoint, request)
        unkept = isinstance(decision, Refuse) and decision.refusal.code == "outcome-not-kept"
        if unkept and operation is not None and flight.answer_for(operation) is not None:
            decision = Answer(decision.reason, operation)  # not kept, but this caller waits for it
        answer, how = None, "replayed"  # somebody else's end, which this call has only met
        if isinstance(decision, Answer):
            answer, outcome = flight.answer_for(decision.operation), decision.operation.outcome
            if answer is not None:
                how = "reconciled" if outcome is not None and outcome.how == "found" else "sent"
        return await self._replies.tell(bound, decision, answer, how)

    def _newest(self, call: Governed) -> tuple[Operation | Refusal | None, Sequence[Operation]]:
        """The newest version of the operation that this call means, under whatever name; and those
        that it may mean as well, since another rule worked out their fingerprints."""
        others: list[Operation] = []
        if self._ledger.has_step(call.run, call.step):
            found = self._ledger.find(call.base, call.former_bases)
            if found is not None:
                return found, [found] if _judged_otherwise(call, found) else []
            alike = Lookalike(call.run, call.step, call.request.method, call.url)
            for other in self._ledger.alike(alike):
                if call.named_by_caller and other.intent.named:
                    continue
                if other.intent.fingerprint == call.fingerprint:
                    return other, []
                if _judged_otherwise(call, other):
                    others.append(other)
        if call.caller_key_digest is None:
            return None, others
        keyed = self._ledger.by_caller_key(call.endpoint.service, call.caller_key_digest)
        if keyed is None or keyed.intent.fingerprint == call.fingerprint:
            return keyed, others
        detail = "The idempotency key of this call was sent with another request before."
        refusal = Refusal(
            "key-reused",
            detail,
            operation=keyed.key,
            state=str(keyed.state),
            external_id=keyed.outcome.external_id if keyed.outcome else None,
        )
        return refusal, others

    async def _recognised(
        self,
        call: Governed,
        newest: Operation | Refusal | None,
        candidates: Sequence[Operation],
    ) -> tuple[Governed, Operation | Refusal | None]:
        """The call under the fingerprints of the operation that it repeats, by what was sent then
        and by the rule as it is now. A rule that is added or changed makes no new operation."""
        endpoint = call.endpoint
        noise = call.noise
        for operation in candidates:
            stored, intent = await self._ledger.request_of(operation.key), operation.intent
            if stored is None or (operation.method, operation.url) != (
                call.request.method,
                call.url,
            ):
                continue
            try:
                mine = placed(call.bare, endpoint, intent)
                if stored.body.data is None:  # not kept: only the very same bytes are known
                    same = worded = mine.body.sha256 == intent.body_sha256
                else:
                    then = canonical(stored, noise=noise, headers=endpoint.headers)
                    now = canonical(mine, noise=noise, headers=endpoint.headers)
                    same = then.digest() == now.digest()
                    worded = then.digest(endpoint.wording) == now.digest(endpoint.wording)
            except (CannotPlace, DuplicateMember):
                continue
            if same:
                call = replace(call, fingerprint=intent.fingerprint)
            if same or (worded and operation is newest):
                return replace(call, core_fingerprint=intent.core_fingerprint), operation
        return call, newest

    def _bind(self, call: Governed, newest: Operation | None, arrival: Arrival) -> Bound:
        version = bind(newest, call.fingerprint)
        before, body = 0, None
        if newest is not None and newest.version == version:
            before = len(newest.attempts)
            if call.endpoint.signed != "none" or not newest.intent.body_kept:
                with contextlib.suppress(CannotPlace):
                    body = sent_again(call.bare, call.endpoint, newest.intent)
        token = token_digest(arrival.token) if arrival.token is not None else None
        ask = call.ask(
            version=version,
            epoch=self._engine.authority.epoch_of(self._ledger.run(call.run), token),
            arrived_at=self._engine.clock.time(),
            attempts_before=before,
            body_sha256=body,
        )
        arrived = self._engine.clock.monotonic()
        if newest is None:
            base = self._engine.claimed(call) or call.base
            bound = Bound(base, ask, call.endpoint, call, arrived, Seen(None))
            bound.claimed = base != call.base
        else:
            bound = Bound(newest.base, ask, call.endpoint, call, arrived)
            bound.seen = self._engine.snapshots.seen(bound, newest)
        bound.token = token
        return bound

    def _at_rest(self, bound: Bound) -> Answer | Refuse | None:
        """What a recorded end, or the attempt of the twin just waited for, decides for this
        call."""
        if bound.seen is None:
            bound.seen = self._engine.snapshots.load(bound)
        operation = bound.seen.operation
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
            self._engine.snapshots.of(bound, bound.seen),
            self._settings.limits,
        )
        return decision if isinstance(decision, (Answer, Refuse)) else None


def _held(decision: Decision | None) -> str | None:
    """The key of the operation that waits for a person."""
    if isinstance(decision, Refuse) and decision.refusal.code == "approval-required":
        return decision.refusal.operation
    return None


def _named_inside(arrival: Arrival, request: Request, inside: Sequence[str]) -> Request:
    """The request without what names run and step in the baggage of its calls, which the arrival
    has then. Raises BadIdentity."""
    sources = arrival.sources or Sources()
    baggage = ",".join(filter(None, (sources.baggage, *inside)))
    arrival.identity = identify(replace(sources, baggage=baggage))
    rest = strip_baggage(inside[0])
    if rest == inside[0] or jsonrpc.is_batch(request.body) or is_signed(split(request)[1]):
        return request
    return request.with_(body=jsonrpc.with_baggage(request.body, rest))


def preference(request: Request) -> float | None:
    """Seconds of ``Prefer: wait=N`` (RFC 7240); None where it is not said, or not in a number."""
    for field, value in request.headers:
        if field.lower() == "prefer":
            for part in value.split(","):
                word, _, given = part.partition(";")[0].partition("=")
                number = given.strip().strip('"')
                if word.strip().lower() == "wait" and number.isascii() and number.isdigit():
                    return float(number)
    return None


def _plain_repeat(call: Governed, newest: Operation | None) -> bool:
    """Whether it is the very call that made the operation, with nothing to be asked about it."""
    return newest is not None and newest.intent.fingerprint == call.fingerprint


def _judged_otherwise(call: Governed, operation: Operation) -> bool:
    intent = operation.intent
    return intent.fingerprint != call.fingerprint and intent.rule_digest != call.endpoint.digest


def _worded_anew(call: Governed, newest: Operation) -> bool:
    intent = newest.intent
    same = intent.fingerprint == call.fingerprint
    return not same and intent.core_fingerprint == call.core_fingerprint


def _answered_anew(flight: Flight) -> bool:
    return isinstance(flight.decision, Answer) and flight.decision.drifted


def _honoured(newest: Operation | Refusal | None) -> bool:
    """Whether an operation in the ledger binds calls whatever the mode is now."""
    if not isinstance(newest, Operation) or newest.intent.mode != "enforce":
        return False
    return newest.state not in (State.FAILED, State.NOT_APPLIED)
