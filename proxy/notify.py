"""Webhooks: an approval is asked for or decided, an operation needs a person, an effect came too
late.

Nothing is queued and no call waits: what is owed is what the history has after a bookmark, and both
are durable. So a notice survives a crash at any moment and a receiver that is away for days; it may
come twice, under the same id.

Requests have the form of Standard Webhooks (standardwebhooks.com). The address is the operator's,
from the configuration, and nothing that an agent says can change it: private ones are open, unlike
those that agents name. They go out by ``net.upstream`` all the same, so that metadata services and
the proxy's own ports stay closed, certificates are verified, and no redirect is followed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol
from urllib.parse import urlsplit

import structlog

from proxy import __version__
from proxy.clock import Clock
from proxy.core.model import Body, Lost, NotSent, Request
from proxy.core.notice import KINDS, TYPES, Notice, holds, notice
from proxy.ledger.base import Damaged, Ledger, LedgerError, StoredEvent

POLL_SECONDS: Final = 1.0  # how late a notice may be; a person takes longer to look
AT_ONCE: Final = 100  # events of one look at the history
FIRST_PAUSE: Final = 5.0  # after a failure; doubles
LONGEST_PAUSE: Final = 600.0  # a receiver that comes back after a day is found within ten minutes
SET_ASIDE_MAX: Final = 100  # notices that the receiver does not take, or whose time has not come
BREAKING_MAX: Final = 10  # of them, those that it answered with an error of its own
BREAKING_TRIES: Final = 3  # before such a one is set aside: mostly it is the receiver that is down
MOVED_ON: Final = 10_000  # events without a notice after which the bookmark is written anew
BOOKMARK: Final = "notify"

log: Final = structlog.get_logger("onceproxy")


class Sender(Protocol):
    """The part of ``net.upstream`` that is used."""

    async def open(
        self, request: Request, *, fresh: bool = False, timeout: float | None = None
    ) -> NotSent | Lost | Opened: ...


class Opened(Protocol):
    @property
    def status(self) -> int: ...
    def close(self) -> None: ...


class Observer(Protocol):
    def notified(self, type_: str, result: str) -> None: ...
    def notices_behind(self, seconds: float, aside: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Receiver:
    """``secrets``: a notice is signed with each, so that they can be rotated. ``events``: which
    types it takes. Seconds."""

    url: str
    secrets: Sequence[bytes]
    events: Collection[str] = TYPES
    console: str | None = None
    timeout: float = 10.0
    keep_trying: float = 3 * 86_400.0

    @property
    def shown(self) -> str:
        """For the log: of some receivers the path is a secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


@dataclass(frozen=True, slots=True)
class Aside:
    """The notice of an event that later ones need not wait for."""

    seq: int
    due: float  # by the wall clock, as processes come and go
    at: float  # when the event was
    tries: int = 0


@dataclass(frozen=True, slots=True)
class Bookmark:
    """All events up to ``after`` are told, but for those that are set aside."""

    after: int
    aside: tuple[Aside, ...] = ()

    @classmethod
    def read(cls, stored: bytes) -> Bookmark:
        told = json.loads(stored)
        return cls(told["after"], tuple(Aside(*each) for each in told["aside"]))

    def written(self) -> bytes:
        aside = [[each.seq, each.due, each.at, each.tries] for each in self.aside]
        return json.dumps({"after": self.after, "aside": aside}).encode()


class Away(Exception):
    """The receiver takes nothing at present."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """``away``: nothing else would be taken either; ``maybe``: or else it fails on this one."""

    why: str
    away: bool = False
    maybe: bool = False


@dataclass(slots=True)
class Notifier:
    ledger: Ledger
    clock: Clock
    sender: Sender
    receiver: Receiver
    metrics: Observer
    _mark: Bookmark = field(default_factory=lambda: Bookmark(0))
    _written: Bookmark | None = None
    _failures: int = 0  # in a row, of a receiver that takes nothing
    _oldest: float | None = None  # when the event was for which this round ended
    _away: Trouble | None = None  # of this round

    async def prepare(self) -> None:
        """Find the bookmark, or put one at the end of the history: what came before there was a
        receiver is not told. To be called before any call is taken. Raises LedgerError."""
        stored = await self.ledger.bookmark(BOOKMARK)
        if stored is not None:
            self._mark = self._written = Bookmark.read(stored)
        else:
            self._mark = Bookmark(self.ledger.last_event())
            await self._write()

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            await self.clock.sleep(await self.round())

    async def round(self) -> float:
        """Deliver what is owed. Seconds until it is worth looking again."""
        self._oldest = self._away = None
        try:
            await self._deliver_aside()
            await self._deliver_new()
        except Away:
            self._failures += 1
            pause = _pause(self._failures)
        except LedgerError as error:
            log.warning("webhooks wait for the ledger", why=str(error))
            pause = FIRST_PAUSE
        except Exception:
            log.exception("webhooks failed")
            pause = LONGEST_PAUSE
        else:
            self._failures = 0
            pause = POLL_SECONDS
        refused = [each.at for each in self._mark.aside if each.tries]
        owed = refused if self._oldest is None else [*refused, self._oldest]
        late = max(0.0, self.clock.time() - min(owed)) if owed else 0.0
        self.metrics.notices_behind(late, len(self._mark.aside))
        return pause

    async def _deliver_new(self) -> None:
        while True:
            last = self.ledger.last_event()
            if last <= self._mark.after:
                return
            found = await self.ledger.events(self._mark.after, AT_ONCE, kinds=KINDS)
            for stored in found:
                if not await self._make_room():
                    return
                self._oldest = stored.event.at
                aside = await self._told(stored)
                kept = (*self._mark.aside, aside) if aside is not None else self._mark.aside
                self._mark = Bookmark(stored.seq, kept)
                if aside is not None:
                    await self._write()
                self._oldest = None
            if len(found) < AT_ONCE:
                # ``last`` was asked first: what came since is not passed over.
                self._mark = replace(self._mark, after=max(self._mark.after, last))
                if self._written is None or last - self._written.after >= MOVED_ON:
                    await self._write()
                return

    async def _deliver_aside(self) -> None:
        now = self.clock.time()
        for each in self._mark.aside:
            if now < each.due <= now + LONGEST_PAUSE:  # later ones: the clock was set back
                continue
            found = await self.ledger.events(each.seq - 1, 1)
            again = None
            if found and found[0].seq == each.seq:
                again = await self._told(found[0], each)
            others = tuple(one for one in self._mark.aside if one.seq != each.seq)
            kept = (*others, again) if again is not None else others
            self._mark = replace(self._mark, aside=kept)
            await self._write()

    async def _make_room(self) -> bool:
        """Whether one more can be set aside; the oldest that the receiver refuses makes room."""
        aside = self._mark.aside
        if len(aside) < SET_ASIDE_MAX:
            return True
        refused = [each for each in aside if each.tries]
        if not refused:
            return False  # all of them have their moment within a minute
        gone = min(refused, key=lambda each: each.seq)
        log.error("webhook given up: too many are refused", seq=gone.seq, tries=gone.tries)
        self.metrics.notified("-", "given_up")
        self._mark = replace(self._mark, aside=tuple(each for each in aside if each is not gone))
        await self._write()
        return True

    async def _told(self, stored: StoredEvent, before: Aside | None = None) -> Aside | None:
        """Deliver the notice of an event, if it has one; how it is set aside, if it is. Raises
        Away: it is still owed."""
        made = await self._notice(stored)
        if made is None or made.type not in self.receiver.events:
            return None
        now = self.clock.time()
        if made.due > now and before is None:
            return Aside(stored.seq, made.due, made.at)
        if made.due and not holds(made, self.ledger.get(made.operation)):
            return None
        trouble = self._away or await self._post(made, now)
        if trouble is None:
            self.metrics.notified(made.type, "delivered")
            if before is None:
                self._mark = replace(self._mark, after=stored.seq)
                await self._write()
            return None
        return self._failed(stored, made, trouble, before)

    def _failed(
        self, stored: StoredEvent, made: Notice, trouble: Trouble, before: Aside | None
    ) -> Aside | None:
        now = self.clock.time()
        told = {"id": made.id, "type": str(made.type), "operation": made.operation}
        told |= {"to": self.receiver.shown, "why": trouble.why}
        self.metrics.notified(made.type, "failed")
        if trouble.away:
            self._away = trouble
        if now - made.at > self.receiver.keep_trying:
            log.error("webhook given up", **told)
            self.metrics.notified(made.type, "given_up")
            return None
        tries = before.tries + 1 if before is not None else 1
        aside = not trouble.away and (before is not None or not trouble.maybe)
        if trouble.maybe and self._failures >= BREAKING_TRIES and not aside:
            aside = len(self._mark.aside) < BREAKING_MAX
            self._failures = 0
        pause = _pause(tries if aside else self._failures + 1)
        log.warning("webhook not delivered", again_in=pause, **told)
        if not aside:
            raise Away
        return Aside(stored.seq, now + pause, made.at, tries)

    async def _notice(self, stored: StoredEvent) -> Notice | None:
        try:
            operation = self.ledger.get(stored.key)
        except Damaged as error:
            log.error("no webhook of a damaged operation", operation=stored.key, why=str(error))
            return None
        if operation is None:
            return None  # of a run, or forgotten since
        return notice(operation, await self.ledger.history(stored.key), stored.seq)

    async def _post(self, made: Notice, now: float) -> Trouble | None:
        """Why it was not taken; None if it was."""
        body = json.dumps(made.as_json(self.receiver.console)).encode()
        opened = await self.sender.open(
            request(self.receiver, made.id, body, now), fresh=True, timeout=self.receiver.timeout
        )
        if isinstance(opened, (NotSent, Lost)):
            return Trouble(opened.reason, away=True)
        opened.close()
        status = opened.status
        if 200 <= status < 300:
            return None
        return Trouble(f"it answered {status}", away=status == 429, maybe=status >= 500)

    async def _write(self) -> None:
        await self.ledger.set_bookmark(BOOKMARK, self._mark.written())
        self._written = self._mark


def request(receiver: Receiver, number: str, body: bytes, now: float) -> Request:
    """The request of one delivery, signed at that moment."""
    parts = urlsplit(receiver.url)
    assert parts.hostname is not None
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    when = str(int(now))
    return Request(
        "POST",
        parts.scheme,
        parts.hostname,
        parts.port or (443 if parts.scheme == "https" else 80),
        target,
        (
            ("Content-Type", "application/json"),
            ("User-Agent", f"onceproxy/{__version__}"),
            ("webhook-id", number),
            ("webhook-timestamp", when),
            ("webhook-signature", signatures(receiver.secrets, number, when, body)),
        ),
        Body.of(body),
    )


def signatures(secrets: Sequence[bytes], number: str, when: str, body: bytes) -> str:
    """One per secret, apart by a space."""
    signed = f"{number}.{when}.".encode() + body
    made = (hmac.digest(secret, signed, hashlib.sha256) for secret in secrets)
    return " ".join(f"v1,{base64.b64encode(each).decode()}" for each in made)


def _pause(failures: int) -> float:
    return min(FIRST_PAUSE * 2.0 ** min(failures - 1, 20), LONGEST_PAUSE)
