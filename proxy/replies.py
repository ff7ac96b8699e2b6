"""What callers are told: the recorded bytes, or a refusal, with headers that say where they come
from. Everything a caller hears leaves a line in the log and counts in the metrics here.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache

import structlog

from proxy.bound import Bound
from proxy.core import jsonrpc
from proxy.core.call import Governed, unruled_endpoint
from proxy.core.decide import Answer, Decision, Hold, Refuse
from proxy.core.fingerprint import DuplicateMember, canonical, differences
from proxy.core.intent import placed
from proxy.core.kept import keep
from proxy.core.model import EMPTY, Body, Request
from proxy.core.model import Answer as HttpAnswer
from proxy.core.operation import Event, Kind, Operation, State
from proxy.core.placement import CannotPlace
from proxy.core.refusal import Refusal
from proxy.core.rules import Endpoint
from proxy.engine import Engine
from proxy.flights import Flight
from proxy.ledger.base import Damaged
from proxy.net.exchange import Reply
from proxy.net.problem import reply as problem

log = structlog.get_logger("onceproxy")

FIELDS_MAX = 8  # enough to see what changed, short enough for a sentence
RETRY_AFTER = 2  # seconds; a twin's answer is usually not far
ENDS = 1024  # replies to duplicates at hand: about 2 MB
END_LIMIT = 4 * 1024  # bytes of a body that is kept with one
OUR_HEADERS = frozenset(
    {"onceproxy-operation", "onceproxy-outcome", "onceproxy-attempts", "onceproxy-recorded-at"}
)


class Ends:
    """Replies to duplicates, by operation key. One holds for the very record and answer that it was
    made of: the ledger reads both anew when it has written about the operation."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Operation, HttpAnswer, Reply]] = {}

    def replayed(
        self, answer: HttpAnswer, operation: Operation, delivered: Callable[[bool], None]
    ) -> Reply:
        made = self._made.get(operation.key)
        if made is not None and made[0] is operation and made[1] is answer:
            known = made[2]
            return Reply(known.status, known.reason, known.headers, known.body, delivered=delivered)
        reply = of_answer(keep(answer, None) or answer, operation, "replayed", delivered)
        if answer.body is not None and answer.body.size <= END_LIMIT:
            self._made.pop(operation.key, None)
            self._made[operation.key] = (operation, answer, replace(reply, delivered=nobody_asks))
            if len(self._made) > ENDS:
                del self._made[next(iter(self._made))]
        return reply


class Replies:
    """Words for what an operation came to."""

    def __init__(self, engine: Engine) -> None:
        self._ends = Ends()
        self._engine = engine
        self._ledger = engine.ledger
        self._metrics = engine.metrics

    async def tell(
        self, bound: Bound, decision: Decision, answer: HttpAnswer | None, how: str
    ) -> Reply:
        match decision:
            case Answer():
                if answer is None or answer.body is None:
                    answer = await self._recorded(decision.operation)
                return self.give(bound, decision, answer, how, await self._asked(bound, decision))
            case Refuse(refusal=refusal, short=short):
                if short is not None:
                    self._metrics.exhausted(short.unit)
                self._note(decision)
                named = await self.with_fields(bound.call, refusal)
                return self.refuse(named, bound.endpoint, _request_of(bound))
            case _:
                return self.impatient(bound, decision)

    def _note(self, decision: Refuse) -> None:
        key = decision.refusal.operation
        operation = self._ledger.get(key) if decision.notes and key is not None else None
        for event in decision.notes if operation is not None else ():
            assert operation is not None
            self._ledger.note(operation, event)

    async def _recorded(self, operation: Operation) -> HttpAnswer:
        answer = await self._ledger.answer_of(operation.key)
        if answer is not None:
            return answer
        end = operation.outcome if operation.outcome is not None else operation.last
        if operation.state is State.SUCCEEDED or end is None or end.status is None:
            raise Damaged(f"the answer of {operation.key} is gone")
        return HttpAnswer(end.status, "", (), EMPTY)

    async def _asked(self, bound: Bound, decision: Answer) -> Body | None:
        """What a recorded answer answers, where its ids have to be told apart."""
        call = bound.call
        if call is None or not jsonrpc.speaks(bound.endpoint):
            return None
        if not jsonrpc.is_batch(call.request.body):
            return None
        stored = await self._ledger.request_of(decision.operation.key)
        return stored.body if stored is not None else None

    def give(
        self,
        bound: Bound,
        decision: Answer,
        answer: HttpAnswer,
        how: str,
        asked: Body | None = None,
    ) -> Reply:
        """The reply with a recorded answer; what there is to note of it is noted. ``asked``: what
        it answers, where that has to be known."""
        operation, outcome = decision.operation, decision.operation.outcome
        if outcome is not None and outcome.how == "resolved":
            how = "resolved"
        for event in self._notes(bound, decision, how):
            self._ledger.note(operation, event)
        if how in ("replayed", "coalesced", "reconciled"):
            self._suppressed(bound.endpoint, "drift_replayed" if decision.drifted else how)
        self._decided(bound.endpoint, how, operation, decision.reason)
        delivered = self._delivered(bound, operation)
        addressed = bound.call is not None and jsonrpc.speaks(bound.endpoint)
        if how == "replayed" and not addressed:
            return self._ends.replayed(answer, operation, delivered)
        if how not in ("sent", "reconciled"):
            answer = keep(answer, None) or answer
        if bound.call is not None and addressed:
            answer = jsonrpc.addressed(answer, bound.call.request, asked)
        return of_answer(answer, operation, how, delivered)

    def _notes(self, bound: Bound, decision: Answer, how: str) -> tuple[Event, ...]:
        now = self._now(decision.operation)
        notes = decision.notes
        if how == "replayed":
            notes = (*notes, Event(Kind.REPLAYED, now, {"epoch": bound.ask.epoch}))
        elif how == "coalesced":
            notes = (*notes, Event(Kind.COALESCED, now, {"epoch": bound.ask.epoch}))
        call = bound.call
        if call is not None and decision.operation.intent.credential != call.credential:
            notes = (*notes, Event(Kind.CREDENTIAL_CHANGED, now, {}))
        return notes

    def _now(self, operation: Operation) -> float:
        """The wall clock, but never before the newest event of the operation."""
        return max(self._engine.clock.time(), operation.updated_at)

    def _delivered(self, bound: Bound, operation: Operation) -> Callable[[bool], None]:
        """Recorded only where it decides something: a refusal that was heard makes the next call a
        new version, and an answer that was heard makes a reworded call drift."""
        if operation.state is not State.FAILED and not bound.endpoint.wording:
            return nobody_asks
        if (operation.delivered_epoch or 0) >= bound.ask.epoch:
            return nobody_asks

        def delivered(whole: bool) -> None:
            if whole:
                epoch = {"epoch": bound.ask.epoch}
                event = Event(Kind.ANSWER_DELIVERED, self._now(operation), epoch)
                self._ledger.note(operation, event)

        return delivered

    def streamed(self, bound: Bound, flight: Flight) -> Reply:
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

    async def with_fields(self, call: Governed | None, refusal: Refusal) -> Refusal:
        """Name the fields that differ, where the earlier request is still kept."""
        key = refusal.operation
        if refusal.code not in ("operation-mismatch", "key-reused") or key is None or call is None:
            return refusal
        operation = self._ledger.get(key)
        stored = await self._ledger.request_of(key)
        if operation is None or stored is None or stored.body.data is None:
            return refusal
        noise = call.noise
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

    def impatient(self, bound: Bound, decision: Decision | None = None) -> Reply:
        if isinstance(decision, Hold) and decision.seconds is not None:
            return self.refuse(decision.otherwise, bound.endpoint, _request_of(bound))
        operation = self._engine.snapshots.load(bound).operation
        unknown = operation is not None and operation.state is State.UNKNOWN
        refusal = Refusal(
            "outcome-unknown" if unknown else "operation-in-progress",
            "It is still being settled." if unknown else "Its answer has not come yet.",
            operation=operation.key if operation else f"{bound.base}/v{bound.ask.version}",
            state=str(operation.state) if operation is not None else None,
            retry_after=RETRY_AFTER,
        )
        return self.refuse(refusal, bound.endpoint, _request_of(bound))

    def kept_waiting(self, bound: Bound) -> Reply:
        """By another request with the same key, whose name is not this call's to know."""
        detail = "Another call with its idempotency key is on its way."
        refusal = Refusal("operation-in-progress", detail, retry_after=RETRY_AFTER)
        return self.refuse(refusal, bound.endpoint, _request_of(bound))

    def refuse(
        self, refusal: Refusal, endpoint: Endpoint | None, request: Request | None = None
    ) -> Reply:
        """``request``: whose host says the shape where no rule has an endpoint, and whose id is the
        answer's where calls have ids."""
        service, title = (endpoint.service, endpoint.name) if endpoint is not None else ("", "")
        self._metrics.decided(service, title, "refused")
        log.info("refused", code=refusal.code, operation=refusal.operation, detail=refusal.detail)
        if endpoint is not None and (endpoint.match is not None or jsonrpc.speaks(endpoint)):
            shape = endpoint.refusal
            if shape is None and jsonrpc.speaks(endpoint):
                shape = jsonrpc.shape(refusal, request)
        elif request is not None:
            shape = self._engine.rules.refusal_at(request.host, request.port)
        else:
            shape = None
        if shape is None and endpoint is None and request is not None and _is_rpc(request):
            shape = jsonrpc.shape(refusal, request)
        if shape is not None:
            refusal = replace(refusal, shape=shape)
        attempts = None
        if refusal.operation is not None:
            with contextlib.suppress(Damaged):
                operation = self._ledger.get(refusal.operation)
                attempts = len(operation.attempts) if operation is not None else 0
        held = refusal.code == "approval-required"
        return problem(refusal, attempts=attempts, outcome="held" if held else "refused")

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


def _is_rpc(request: Request) -> bool:
    return jsonrpc.speaks(unruled_endpoint(request))


def _request_of(bound: Bound) -> Request | None:
    return bound.call.request if bound.call is not None else None


def of_answer(
    answer: HttpAnswer,
    operation: Operation,
    how: str,
    delivered: Callable[[bool], None],
    *,
    stream: AsyncIterator[bytes] | None = None,
    length: int | None = None,
) -> Reply:
    """``how`` is the word of ``Onceproxy-Outcome``."""
    added = [
        ("Onceproxy-Operation", operation.key),
        ("Onceproxy-Outcome", how),
        ("Onceproxy-Attempts", str(len(operation.attempts))),
    ]
    if how == "replayed":
        added.append(("Idempotent-Replayed", "true"))
        if operation.outcome is not None:
            added.append(("Onceproxy-Recorded-At", moment(operation.outcome.at)))
    headers = tuple(pair for pair in answer.headers if pair[0].lower() not in OUR_HEADERS)
    body = stream if stream is not None else (answer.body or EMPTY)
    return Reply(
        answer.status, answer.reason, (*headers, *added), body, length=length, delivered=delivered
    )


@lru_cache(maxsize=1024)
def moment(at: float) -> str:
    """Seconds since the epoch as an RFC 3339 date and time."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def nobody_asks(whole: bool) -> None:
    """For answers whose delivery decides nothing."""
