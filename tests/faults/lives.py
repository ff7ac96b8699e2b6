"""Lives of the proxy, each a process of its own, over one state directory; the API stays here.

    async with nursery() as zygote, world(tmp_path) as world:
        life = await zygote.life(world.config, kill_at=7)

``world`` has an API of four kinds and a client that calls until it has an end; ``judge`` counts
what must be zero.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from proxy.drill.toyapi import ToyApi
from tests.fakes.rawclient import Got, RawClient
from tests.fakes.served import ROOT, environment
from tests.fakes.whole import configure, post
from tests.faults import shim

KINDS = {"keyed": "refunds", "queried": "invoices", "slow": "invoices", "plain": "messages"}
"""Kind of API -> its collection. ``slow`` is queried, and shows an object late."""
LAG = 0.25  # seconds until the slow API's list has an object
RULES = """
service: {service}
hosts: ["{host}"]
source: proxy/drill/toyapi.py
confidence: documented
checked: "2026-11-30"
key: none
endpoints:
  refunds.create:
    match: POST /refunds
    key: {{in: header, name: Idempotency-Key, valid_for: 24h, keeps: success}}
    answers:
      - {{header: {{Idempotent-Replayed: "true"}}, replayed: true}}
      - {{status: 409, body: {{error.type: idempotency_key_in_use}}, means: running}}
      - {{body: {{error.type: idempotency_error}}, means: mismatch}}
    external_id: id
  invoices.create:
    match: POST /invoices
    answers: [{{status: 402, means: rejected}}]
    external_id: id
    marker: {{in: json, name: mark}}
    reconcile:
      request: GET /invoices?reference={{body.reference}}&limit=10
      items: data
      where: {{mark: "{{key}}"}}
      running: {running}ms
      settle: {settle}ms
      answer: {{status: 201, body: "{{item}}"}}
  messages.send:
    match: POST /messages
    answers: [{{status: 402, means: rejected}}]
    external_id: id
"""
RUNNING, SETTLE = 100, 20  # milliseconds; the API works at once, but this process may be busy
PATIENCE = "3s"
GIVE_UP = 20.0  # seconds in which a call must come to its end


def is_end(got: Got) -> bool:
    """Whether a caller stops calling."""
    return got.status not in (409, 502, 503) or is_done_unkept(got)


def is_done_unkept(got: Got) -> bool:
    """Done, as an answer whose body broke off says."""
    return got.status == 409 and b"urn:onceproxy:outcome-not-kept" in got.body


class Gone(Exception):
    """The proxy died under a call."""


class Life:
    """One process of the proxy; ``ends`` is done when it is gone."""

    def __init__(self, number: int, state_dir: Path) -> None:
        self.number, self.state_dir = number, state_dir
        self.pid = self.port = self.control = self.steps = self.writes = 0
        self.failed = ""  # why it did not start
        self.failed_after = 0.0  # seconds of a processor
        self.stopped = False
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ends: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.writer: asyncio.StreamWriter | None = None
        self._heard = asyncio.Event()

    @property
    def alive(self) -> bool:
        return self.port != 0 and not self.ends.done()

    def hears(self, message: dict[str, Any]) -> None:
        match message:
            case {"failed": str(why), "seconds": float(seconds)}:
                self.failed, self.failed_after = why, seconds
            case {"listen": port, "control": control, "steps": steps}:
                self.port, self.control, self.steps = port, control, steps
                self.begun.set_result(None)
            case {"steps": steps, "writes": writes}:
                self.steps, self.writes = steps, writes
                self._heard.set()
            case {"stopped": True}:
                self.stopped = True

    async def _order(self, **order: Any) -> None:
        self._heard.clear()
        assert self.writer is not None
        self.writer.write(json.dumps(order).encode() + b"\n")
        heard = asyncio.ensure_future(self._heard.wait())
        await asyncio.wait({heard, self.ends}, return_when=asyncio.FIRST_COMPLETED)
        heard.cancel()

    async def arm(self, kill_at: int) -> None:
        """Dies when a task goes on for the ``kill_at``-th time from now."""
        await self._order(arm=kill_at)

    async def fail(self, **fault: Any) -> None:
        """As ``shim.arm``, there."""
        await self._order(fail=fault)

    async def step_clock(self, seconds: float) -> None:
        """Its wall clock is ahead by so much from now on."""
        await self._order(clock=float(seconds))

    async def count(self) -> None:
        """Fills ``steps`` and ``writes``."""
        await self._order()

    async def kill(self) -> None:
        if not self.ends.done() and self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        await self.ends

    async def stop(self) -> None:
        os.kill(self.pid, signal.SIGTERM)
        await self.ends

    async def call(self, url: str, body: Any, run: str, step: str, *fields: str) -> Got:
        """One POST through it. Raises Gone."""
        try:
            async with RawClient(self.port) as client:
                return await client.ask(post(url, body, run, step, *fields))
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Gone from error


class Zygote:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lives: dict[int, Life] = {}
        self._numbers = itertools.count(1)

    async def life(
        self,
        config: Path,
        *,
        kill_at: int = 0,
        plants: Sequence[str] = (),
        fail: dict[str, Any] | None = None,
        clock: float = 0.0,
        user: int | None = None,
        steps: bool = True,
        starts: bool = True,
    ) -> Life:
        """A new life, once it takes calls or is gone. ``kill_at`` counts from its start on;
        ``starts``: it must come up."""
        life = Life(next(self._numbers), config.parent / "state")
        self._lives[life.number] = life
        order = {"life": life.number, "config": str(config), "log": str(config.parent / "log")}
        order |= {
            "kill_at": kill_at,
            "plants": list(plants),
            "fail": fail,
            "steps": steps,
            "clock": clock,
            "user": user,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        await asyncio.wait({life.begun, life.ends}, return_when=asyncio.FIRST_COMPLETED)
        if starts and not kill_at:
            assert life.begun.done(), life.failed or (config.parent / "log").read_text()[-3000:]
        return life

    async def listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        life = None
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if life is None:
                    life = self._lives.pop(message["life"])
                    life.pid, life.writer = message["pid"], writer
                else:
                    life.hears(message)
        except ConnectionError:
            pass
        finally:
            if life is not None and not life.ends.done():
                life.ends.set_result(None)
            writer.close()


@asynccontextmanager
async def nursery(folder: Path, watch: str = "") -> AsyncIterator[Zygote]:
    """``watch``: with the shim, watching the files whose path contains that."""
    address = folder / "zygote"
    environ = environment(**(shim.environment(watch) if watch else {}))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.faults.zygote", str(address)),
        env=environ,
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
    )
    zygote = Zygote(process)
    server = await asyncio.start_unix_server(zygote.listen, address)
    try:
        yield zygote
    finally:
        server.close()
        assert process.stdin is not None
        process.stdin.close()
        process.kill()
        await process.wait()


@dataclass
class Zeros:
    """What must be zero, and one sentence for each that is not."""

    duplicates: int = 0
    lost: int = 0
    wrong_status: int = 0
    stuck: int = 0
    budget_resets: int = 0
    wrong: list[str] = field(default_factory=list)

    def count(self, fault: str, sentence: str) -> None:
        setattr(self, fault, getattr(self, fault) + 1)
        self.wrong.append(f"{fault}: {sentence}")

    def figures(self) -> dict[str, int]:
        return {name: value for name, value in asdict(self).items() if name != "wrong"}


@dataclass
class World:
    """The API in its kinds, and a configuration of a proxy in front of it."""

    apis: dict[str, ToyApi]
    config: Path
    folder: Path
    last_words: str = ""  # of the newest answer that was no end

    def url(self, kind: str) -> str:
        return f"{self.api(kind).url}/{KINDS[kind]}"

    def api(self, kind: str) -> ToyApi:
        return self.apis["slow" if kind == "slow" else "toy"]

    def effects(self, kind: str, reference: str) -> int:
        made = self.api(kind).effects.made
        return sum(effect.reference == reference for effect in made)

    async def call(self, life: Life, kind: str, reference: str) -> Got:
        return await life.call(self.url(kind), {"reference": reference}, reference, "step")

    async def final(self, life: Life, kind: str, reference: str) -> Got | None:
        """Calls until there is an end; None if there is none in time. Raises Gone."""
        try:
            async with asyncio.timeout(GIVE_UP):
                while True:
                    got = await self.call(life, kind, reference)
                    if is_end(got):
                        return got
                    self.last_words = got.body.decode()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            return None

    def judge(self, zeros: Zeros, kind: str, reference: str, got: Got | None, where: str) -> None:
        """One operation, after its caller got that end."""
        effects = self.effects(kind, reference)
        what = f"{where}, {kind}: {effects} effects, answer {got.status if got else 'none'}"
        if effects > 1:
            zeros.count("duplicates", what)
        elif got is None:
            zeros.count("stuck", f"{what}; {self.last_words}")
        elif got.status == 201 or is_done_unkept(got):
            if effects == 0:
                zeros.count("lost", what)
        elif not (kind == "plain" and got.status == 424):
            zeros.count("wrong_status", what)

    def judge_budgets(self, zeros: Zeros, references: Iterable[str]) -> None:
        """Each of these has a run of its own, and whatever has reached the API is one write of it,
        however often it was sent and the proxy killed. Called once no life is left."""
        used = charged(self.folder / "state" / "ledger.db")
        for reference in references:
            arrived = sum(api.requests[reference] for api in self.apis.values())
            writes = used.get(reference, 0)
            if writes != 1 if arrived else writes > 1:
                zeros.count("budget_resets", f"{reference}: sent {arrived}, charged {writes}")


def charged(ledger: Path) -> dict[str, int]:
    """Run -> writes, as the file has them."""
    with closing(sqlite3.connect(ledger)) as db:
        rows = db.execute("SELECT run, counters FROM runs").fetchall()
    return {run: int(json.loads(used).get("writes", 0)) for run, used in rows}


@asynccontextmanager
async def world(folder: Path, **options: Any) -> AsyncIterator[World]:
    apis = {"toy": ToyApi(), "slow": ToyApi(lag=LAG)}
    for api in apis.values():
        await api.start()
    rules = folder / "rules"
    rules.mkdir()
    config = configure(
        folder,
        _rules("toy", apis["toy"], SETTLE),
        **{"tls": {"intercept": "none"}, "patience": PATIENCE, **options},
    )
    (rules / "slow.yaml").write_text(_rules("slow", apis["slow"], int(LAG * 1000) + 100))
    try:
        yield World(apis, config, folder)
    finally:
        for api in apis.values():
            await api.close()


def _rules(service: str, api: ToyApi, settle: int) -> str:
    host = api.url.removeprefix("http://")
    return RULES.format(service=service, host=host, running=RUNNING, settle=settle)
