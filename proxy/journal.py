"""Recorded answers of models, given again when a run that was started anew asks the same.

An agent that resumes asks its model again what it had asked before. Another answer than the one it
acted on makes another plan, other tool calls, and a second bill. So whole answers are kept: per
run, step and request one after the other, and in each start of the run an identical call gets the
next of them that this start has not had; behind the last one calls are sent. Within one start the
same prompt asked twice is two calls, since that may be meant, unless the first one's caller has
gone.

An answer has been *heard* once a caller has it whole. Until then it waits for one: it is read to
its end although its caller left, and an identical call that comes meanwhile waits for it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog

from proxy.core.call import DERIVED_STEP
from proxy.core.fingerprint import DuplicateMember, canonical
from proxy.core.identity import encode_part
from proxy.core.kept import keep
from proxy.core.model import Answer, Body, header
from proxy.core.refusal import Refusal
from proxy.engine import Engine
from proxy.ledger.base import LedgerError, Prompt, Recorded
from proxy.metered import Passage, Sent
from proxy.net.exchange import Arrival, BrokenOff, Reply
from proxy.relay import Relay
from proxy.replies import Replies, moment

log = structlog.get_logger("onceproxy")

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE_END = re.compile(rb"\n")
_ENDS = {
    "text/event-stream": _EVENT_END,
    "application/x-ndjson": _LINE_END,
    "application/jsonl": _LINE_END,
}
"""What ends a piece of a stream, by its content type."""

Send = Callable[[], Awaitable[Sent | Reply]]


@dataclass(eq=False, slots=True)
class _Take:
    """An answer that is on its way. ``waiting``: who waits for it, by start of the run."""

    epoch: int
    arrival: Arrival
    left: bool = False
    number: int | None = None  # once it is recorded
    waiting: dict[int, Arrival] = field(default_factory=dict)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def gone(self) -> bool:
        return self.left or self.arrival.gone

    def meant_by(self, epoch: int) -> bool:
        """Whether an identical call of that start is the same call, and not one more."""
        waiting = self.waiting.get(epoch)
        if waiting is not None and not waiting.gone:
            return False
        return self.epoch < epoch or (self.epoch == epoch and self.gone)


@dataclass(eq=False, slots=True)
class _Track:
    """What is under way of identical calls. ``held``: numbers on their way to a caller, by start;
    ``last``: the highest number that was given."""

    takes: list[_Take] = field(default_factory=list)
    held: set[tuple[int, int]] = field(default_factory=set)
    last: int = 0


class Journal:
    def __init__(self, engine: Engine, replies: Replies) -> None:
        self._engine = engine
        self._ledger = engine.ledger
        self._replies = replies
        self._tracks: dict[Prompt, _Track] = {}

    def prompt(self, call: Passage) -> Prompt | None:
        """What a call asks, where its answers are kept."""
        endpoint, access = call.endpoint, call.access
        if endpoint is None or endpoint.meter is None or not access.run or not call.read:
            return None
        if not (endpoint.journal or self._engine.settings.journal) or call.arrival.upgrade:
            return None
        if endpoint.store == "meta":
            return None  # its bodies are not to be kept
        params = self._engine.rules.params(endpoint, call.request)
        try:
            asked = canonical(
                call.request, noise=endpoint.noise, headers=endpoint.headers, params=params
            )
        except DuplicateMember:
            return None
        identity = call.arrival.identity
        step = identity.step if identity is not None else None
        named = encode_part(step) if step and step != DERIVED_STEP else ""
        return Prompt(access.run, named, asked.digest())

    async def answer(self, prompt: Prompt, call: Passage, send: Send) -> Reply:
        """The recorded answer that is this call's, or else the one that ``send`` brings."""
        assert call.endpoint is not None
        authority = self._engine.authority
        epoch = authority.epoch_of(self._ledger.run(prompt.run), call.access.token)
        while True:
            bar = authority.standing(call.access).bar
            if bar is not None:
                refusal = Refusal(bar.code, bar.detail)
                return self._replies.refuse(refusal, call.endpoint, call.request)
            recorded = self._ledger.journaled(prompt)
            track = self._tracks.setdefault(prompt, _Track())
            found = self._next(recorded, track, epoch)
            if found is not None:
                reply = await self._replay(prompt, track, found, epoch, call)
                if reply is not None:
                    return reply
                continue
            take = next((each for each in track.takes if each.meant_by(epoch)), None)
            if take is None:
                return await self._ask(prompt, track, _Take(epoch, call.arrival), send)
            take.waiting[epoch] = call.arrival
            await take.over.wait()

    def _next(self, recorded: Sequence[Recorded], track: _Track, epoch: int) -> Recorded | None:
        """The first answer that this start of the run has not had."""
        for found in recorded:
            track.last = max(track.last, found.number)
            given = found.heard >= epoch or (found.number, epoch) in track.held
            if found.epoch <= epoch and not given:
                return found
        return None

    async def _replay(
        self, prompt: Prompt, track: _Track, found: Recorded, epoch: int, call: Passage
    ) -> Reply | None:
        """None where it is no longer there."""
        track.held.add((found.number, epoch))
        answer = None
        try:
            answer = await self._ledger.recorded(prompt, found.number)
        finally:
            if answer is None:
                self._release(prompt, track, found.number, epoch)
        if answer is None:
            return None
        assert answer.body is not None
        access, metrics = call.access, self._engine.metrics
        metrics.decided(access.service, access.endpoint, "replayed")
        metrics.suppressed(access.service, access.endpoint, "journal")
        log.info("answered", endpoint=access.endpoint, outcome="replayed", reason="journal")
        added = (
            ("Onceproxy-Outcome", "replayed"),
            ("Idempotent-Replayed", "true"),
            ("Onceproxy-Recorded-At", moment(found.created_at)),
        )
        return Reply(
            answer.status,
            answer.reason,
            (*answer.headers, *added),
            as_it_came(answer) or answer.body,
            delivered=lambda whole: self._heard(prompt, track, found.number, epoch, whole),
        )

    async def _ask(self, prompt: Prompt, track: _Track, take: _Take, send: Send) -> Reply:
        """Send the call; a whole answer is recorded on its way, whoever still listens."""
        track.takes.append(take)
        try:
            sent = await send()
        except BaseException:
            self._over(prompt, track, take)
            raise
        if isinstance(sent, Reply) or not 200 <= sent.opened.status < 300 or sent.opened.pipe:
            self._over(prompt, track, take)
            return sent if isinstance(sent, Reply) else sent.reply()
        opened, relay = sent.opened, Relay(lambda: None)
        head = Answer(opened.status, opened.reason, opened.headers, None)
        relay.open(head, opened.length)
        self._engine.keep(self._take(prompt, track, take, sent, relay))

        def delivered(whole: bool) -> None:
            relay.close()
            take.left = True
            if take.number is not None:
                self._heard(prompt, track, take.number, take.epoch, whole)

        return Reply(
            opened.status,
            opened.reason,
            opened.headers,
            relay.chunks(),
            length=opened.length,
            delivered=delivered,
        )

    async def _take(
        self, prompt: Prompt, track: _Track, take: _Take, sent: Sent, relay: Relay
    ) -> None:
        """Read an answer to its end, settle it and record it; only then its caller has it whole."""
        opened, cost, most = sent.opened, sent.cost, self._engine.settings.kept_body
        parts: list[bytes] = []
        size, whole = 0, False
        try:
            async for chunk in opened.chunks():
                size += len(chunk)
                if size <= most:
                    parts.append(chunk)
                else:
                    parts.clear()  # too long to be kept: it is only passed on
                if cost is not None:
                    cost.feed(chunk)
                last = cost is None or cost.ending or size == opened.length or _says_done(chunk)
                await relay.feed(chunk, may_be_last=last)
            whole = True
            if cost is not None:
                await cost.ended(whole=True)
            if size <= most:
                body = Body.of(b"".join(parts))
                answer = Answer(opened.status, opened.reason, opened.headers, body)
                await self._record(prompt, track, take, answer)
        except BrokenOff as error:
            log.info("answer broke off", detail=error.reason)
        finally:
            opened.close()
            if cost is not None:
                cost.end(whole=False)
            relay.end(whole)
            self._over(prompt, track, take)

    async def _record(self, prompt: Prompt, track: _Track, take: _Take, answer: Answer) -> None:
        """Its caller is given the true answer also where the ledger cannot take it."""
        kept = keep(answer, None)
        assert kept is not None
        assert kept.body is not None
        track.last += 1
        number, now = track.last, self._engine.clock.time()
        track.held.add((number, take.epoch))  # before anybody can find it
        recorded = Recorded(number, take.epoch, now, kept.body.size)
        try:
            await self._ledger.record(prompt, recorded, kept)
        except LedgerError as error:
            log.error("an answer could not be recorded", detail=str(error))
            track.held.discard((number, take.epoch))
            return
        take.number = number
        if take.gone:  # nobody hears it: it is for whoever asks next
            track.held.discard((number, take.epoch))

    def _heard(self, prompt: Prompt, track: _Track, number: int, epoch: int, whole: bool) -> None:
        if whole:
            self._engine.keep(self._note_heard(prompt, track, number, epoch))
        else:
            self._release(prompt, track, number, epoch)

    async def _note_heard(self, prompt: Prompt, track: _Track, number: int, epoch: int) -> None:
        try:
            await self._ledger.heard(prompt, number, epoch)
        except LedgerError as error:
            log.error("an answer may be given once more", detail=str(error))
        finally:
            self._release(prompt, track, number, epoch)

    def _release(self, prompt: Prompt, track: _Track, number: int, epoch: int) -> None:
        track.held.discard((number, epoch))
        self._forget(prompt, track)

    def _over(self, prompt: Prompt, track: _Track, take: _Take) -> None:
        track.takes.remove(take)
        take.over.set()
        self._forget(prompt, track)

    def _forget(self, prompt: Prompt, track: _Track) -> None:
        if not track.takes and not track.held and self._tracks.get(prompt) is track:
            del self._tracks[prompt]


def _says_done(chunk: bytes) -> bool:
    """The word with which most streams of events end."""
    return chunk.rstrip().endswith(b"[DONE]")


def as_it_came(answer: Answer) -> AsyncIterator[bytes] | None:
    """A recorded stream in its pieces, each written by itself; None for what is no stream, or
    cannot be read."""
    if answer.body is None or answer.body.data is None or answer.header("Content-Encoding"):
        return None
    kind = (header(answer.headers, "Content-Type") or "").partition(";")[0].strip().lower()
    ends = _ENDS.get(kind)
    return _each(split(answer.body.data, ends)) if ends is not None else None


def split(data: bytes, ends: re.Pattern[bytes] = _EVENT_END) -> Iterator[bytes]:
    start = 0
    for end in ends.finditer(data):
        yield data[start : end.end()]
        start = end.end()
    if start < len(data):
        yield data[start:]


async def _each(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
