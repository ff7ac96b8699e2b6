"""The two APIs that the schedules are played against, and short ways to call them.

``KEYED`` deduplicates by its key and marks what it replays; ``QUERIED`` has no key but can be
asked, except for its ``/plain``, which has neither.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from proxy.core.call import Policy
from proxy.core.model import Body, Lost, Request
from proxy.core.operation import Kind
from proxy.engine import Settings
from proxy.ledger.base import Change, LedgerError
from proxy.ledger.memory import MemoryLedger
from proxy.ledger.sqlite import SqliteLedger
from proxy.net.exchange import Arrival
from tests.fakes.clock import FakeClock
from tests.fakes.scripted import Proxy, Scripted, answer, ruleset
from tests.fakes.world import Opened, post

KEYED = """
service: pay
hosts: [api.world.test]
source: https://api.world.test/docs
confidence: documented
checked: "2026-11-30"
key: {in: header, name: Idempotency-Key, valid_for: 24h, keeps: all, existing: replace}
answers:
  - {header: {Idempotent-Replayed: "true"}, replayed: true}
  - {status: 409, body: {error: in_progress}, means: running}
  - {body: {error: idempotency_error}, means: mismatch}
endpoints:
  refunds.create:
    match: POST /refunds
    external_id: id
"""

QUERIED = """
service: notes
hosts: [api.world.test]
source: https://api.world.test/docs
confidence: documented
checked: "2026-11-30"
key: none
endpoints:
  notes.create:
    match: POST /notes
    distinguish: [body.list]
    wording: [body.text]
    external_id: id
    marker: {in: json, name: mark}
    reconcile:
      request: GET /notes?list={body.list}
      items: data
      where: {mark: "{key}"}
      pages: {cursor: next, into: cursor, max: 2}
      found: {failed: {state: failed}}
      running: 60s
      settle: 5s
      looks: 2
      answer: {status: 201, body: "{item}"}
  plain.create:
    match: POST /plain
    external_id: id
"""

REFUND = "run-1/step-1/pay.refunds.create"
PLAIN = "run-1/step-1/notes.plain.create"
OK = {"id": "re_1"}
REPLAYED = {"Idempotent_Replayed": "true"}
PATIENT = Settings(policy=Policy(digest_key=b"d"))
IMPATIENT = Settings(policy=Policy(digest_key=b"d"), patience=0.1)


def saying(rules: str, *lines: str) -> str:
    """The rule file with these lines of its own at the top level."""
    return rules.replace("hosts:", "\n".join((*lines, "hosts:")), 1)


def keyed(*sends: Any, rules: str = KEYED, **more: Any) -> Proxy:
    return Proxy(ruleset(rules), Scripted(list(sends)), **more)


def queried(*sends: Any, lookups: Sequence[Any] = (), rules: str = QUERIED, **more: Any) -> Proxy:
    return Proxy(ruleset(rules), Scripted(list(sends), list(lookups)), **more)


def refund(amount: int = 500, **more: Any) -> Arrival:
    return post("/refunds", {"amount": amount}, **more)


def invoice(key: str, run: str = "run-1", amount: int = 500, **more: Any) -> Arrival:
    """A refund with the caller's own idempotency key."""
    headers = [("Idempotency-Key", key), *more.pop("headers", ())]
    return refund(amount, run=run, headers=headers, **more)


def note(text: str = "hello", **more: Any) -> Arrival:
    return post("/notes", {"list": "a", "text": text}, **more)


def plain(**more: Any) -> Arrival:
    return post("/plain", {"n": 1}, **more)


def note_key(proxy: Proxy) -> str:
    """The base of the one operation that there is."""
    found = list(proxy.ledger._operations.values())  # type: ignore[attr-defined]
    return str(found[0].base)


def key_of(request: Request) -> str | None:
    return request.header("Idempotency-Key")


def bearer(token: str) -> list[tuple[str, str]]:
    return [("Authorization", f"Bearer {token}")]


def basic(user: str) -> list[tuple[str, str]]:
    secret = base64.b64encode(f"{user}:x".encode()).decode()
    return [("Authorization", f"Basic {secret}")]


def page(*items: Any) -> Opened:
    """The whole list that a lookup reads."""
    return answer(200, {"data": list(items), "next": None})


def only_for(proxy: Proxy, credential: list[tuple[str, str]]) -> Callable[[Request], Opened]:
    """A lookup that shows the note to one credential, and to every other an empty list."""

    def look(request: Request) -> Opened:
        mine = request.header("Authorization") == credential[0][1]
        return page({"id": "n1", "mark": f"{note_key(proxy)}/v1"}) if mine else page()

    return look


def slowly(
    proxy: Proxy, result: Opened | Lost, seconds: float = 3
) -> Callable[[Request], Awaitable[Opened | Lost]]:
    """An answer that takes its time."""

    async def step(request: Request) -> Opened | Lost:
        await proxy.clock.sleep(seconds)
        return result

    return step


@contextlib.asynccontextmanager
async def on_disk(folder: Path, clock: FakeClock) -> AsyncIterator[SqliteLedger]:
    """A ledger of its own in a file, closed at the end whatever the test came to."""
    ledger = SqliteLedger(folder / "ledger.db", key=secrets.token_bytes(32), clock=clock)
    await ledger.open()
    try:
        yield ledger
    finally:
        await ledger.close()


async def settle_often(proxy: Proxy, rounds: int = 40, seconds: float = 5) -> None:
    """Time passes and the background does what it does."""
    for _ in range(rounds):
        proxy.clock.advance(seconds)
        await proxy.recovery.settle_all()


async def kinds(proxy: Proxy, key: str) -> list[Kind]:
    return [entry.event.kind for entry in await proxy.ledger.history(key)]


class Boom(Exception):
    """A fault of the proxy's own, after the bytes have left."""


def boom(request: Request) -> Opened:
    raise Boom


class Gate:
    """A send that stays on the wire until the gate is opened; ``most`` were there at once."""

    def __init__(self, result: Opened) -> None:
        self.result = result
        self.running = self.most = 0
        self.entered, self.open = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Request) -> Opened:
        self.running += 1
        self.most = max(self.most, self.running)
        self.entered.set()
        await self.open.wait()
        self.running -= 1
        return self.result

    async def reached(self) -> None:
        """Until a send is on the wire; one that never comes fails the test instead of hanging."""
        await asyncio.wait_for(self.entered.wait(), 10)


class Cut(Opened):
    """An answer whose body breaks off after five bytes."""

    async def read(self, limit: int) -> tuple[Body | None, bool]:
        return Body.of(self.body[:5]), False


class Failing(MemoryLedger):
    """Fails commits on demand; ``landed``: the failed commit is there all the same."""

    fail = 0
    landed = False

    async def commit(self, change: Change) -> Any:
        if self.fail:
            self.fail -= 1
            if self.landed:
                await super().commit(change)
            raise LedgerError("disk I/O error")
        return await super().commit(change)


def failing(proxy: Proxy) -> Failing:
    """The proxy begins anew over a ledger that can be made to fail."""
    proxy.ledger = ledger = Failing(proxy.clock)
    proxy.start()
    return ledger
