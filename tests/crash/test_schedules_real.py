"""Schedules M1, M8 and H7 with the whole proxy: real sockets, a real SQLite ledger.

M1: a governed answer that flows while it is recorded. M8: what a person says about an operation.
H7: a ledger that is damaged or does not open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest

from proxy.ledger.base import LedgerError, WrongKey
from tests.fakes.rawclient import Got, RawClient
from tests.fakes.rawserver import Connection, RawServer, Received
from tests.fakes.served import onceproxy, served
from tests.fakes.upstream import ToyApi
from tests.fakes.whole import (
    Door,
    assert_refused,
    configure,
    door_of,
    outcome,
    post,
    problem,
    toy_rules,
    whole,
)

LONG = b"x" * 300_000  # more than an answer that is awaited before it begins to flow
TAIL = b"the end"
EVENTS = [b"data: %d\n\n" % number for number in range(50)]
LAST_CHUNK = b"0\r\n\r\n"
WITHIN = 10.0  # seconds; far above any honest end
STILL = 0.3  # seconds in which a byte that is wrongly let through would have come

RULES = """\
service: raw
hosts: ["127.0.0.1:{port}"]
source: tests/fakes/rawserver.py
confidence: documented
key: none
endpoints:
  keyed.create:
    match: POST /keyed
    key: {in: header, name: Idempotency-Key, valid_for: 24h, keeps: all}
  plain.create:
    match: POST /plain
  judged.create:
    match: POST /judged
    answers:
      - {body: {error: {exists: true}}, means: rejected}
"""


class Streaming:
    """An API that answers in pieces, each when it is asked for, ended by ``end`` or by a cut."""

    def __init__(self, *pieces: bytes, kind: str = "text/plain", framing: str = "chunks") -> None:
        self.pieces = pieces
        self.kind = kind
        self.framing = framing
        self.cut = False
        self.next = asyncio.Semaphore(0)

    def go_on(self, pieces: int = 1) -> None:
        for _ in range(pieces):
            self.next.release()

    async def __call__(self, received: Received, connection: Connection) -> None:
        size = sum(map(len, self.pieces)) + (1 if self.cut else 0)
        how = (
            "Transfer-Encoding: chunked" if self.framing == "chunks" else f"Content-Length: {size}"
        )
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {self.kind}\r\n{how}\r\n\r\n"
        await connection.send(head.encode())
        for piece in self.pieces:
            await self.next.acquire()
            framed = b"%x\r\n%s\r\n" % (len(piece), piece)
            await connection.send(framed if self.framing == "chunks" else piece)
        if self.cut:
            connection.close()
        elif self.framing == "chunks":
            await connection.send(LAST_CHUNK)


@asynccontextmanager
async def streaming(
    folder: Path, api: Streaming, **options: object
) -> AsyncIterator[tuple[RawServer, Door]]:
    async with (
        RawServer(api) as server,
        whole(folder, RULES.replace("{port}", str(server.port)), **options) as door,
    ):
        yield server, door


@contextmanager
def busy(door: Door) -> Iterator[None]:
    """Nothing can be committed meanwhile: somebody else holds the ledger's lock."""
    with closing(sqlite3.connect(door.state_dir / "ledger.db", isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


def url(server: RawServer, path: str) -> str:
    return f"http://127.0.0.1:{server.port}/{path}"


def key_of(path: str) -> str:
    return f"run-1/step-1/raw.{path}.create/v1"


async def body_bytes(client: RawClient, length: int) -> bytes:
    """That many bytes of a chunked or counted body, as soon as they are there."""
    found = b""
    while len(found) < length:
        size = int(await client.reader.readuntil(b"\r\n"), 16)
        assert size > 0, found
        found += (await client.reader.readexactly(size + 2))[:-2]
    assert len(found) == length, "a piece reaches beyond what was asked for"
    return found


async def head(client: RawClient) -> dict[str, str]:
    text = (await client.reader.readuntil(b"\r\n\r\n")).decode()
    lines = [line.partition(": ") for line in text.split("\r\n")[1:] if line]
    return {"status": text.split(" ", 2)[1]} | {name.lower(): value for name, _, value in lines}


# M1: answers that flow


@pytest.mark.parametrize("path", ["keyed", "plain"])
async def test_m1_a_long_answer_flows_while_it_is_recorded_and_its_last_chunk_waits(
    path: str, tmp_path: Path
) -> None:
    api = Streaming(LONG, TAIL)
    async with streaming(tmp_path, api) as (server, door), RawClient(door.port) as client:
        await client.send(post(url(server, path), {"a": 1}))
        api.go_on()
        fields = await head(client)
        assert (fields["status"], fields["onceproxy-outcome"]) == ("200", "sent")
        assert fields["onceproxy-operation"] == key_of(path)
        assert door.durable_state(key_of(path)) == "in_flight"
        with busy(door):
            api.go_on()
            assert await body_bytes(client, len(LONG)) == LONG
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.reader.readexactly(1), STILL)
            assert door.durable_state(key_of(path)) == "in_flight"
        assert await body_bytes(client, len(TAIL)) == TAIL
        assert door.durable_state(key_of(path)) == "succeeded"
        assert await client.reader.readexactly(len(LAST_CHUNK)) == LAST_CHUNK
        again = await door.call(url(server, path), {"a": 1})
        assert len(server.requests) == 1
        assert (outcome(again), again.body) == ("replayed", LONG + TAIL)


async def test_m1_an_event_stream_flows_event_by_event_however_short(tmp_path: Path) -> None:
    api = Streaming(*EVENTS, kind="text/event-stream; charset=utf-8")
    async with streaming(tmp_path, api) as (server, door), RawClient(door.port) as client:
        await client.send(post(url(server, "plain"), {"a": 1}))
        assert (await head(client))["status"] == "200"
        came = asyncio.create_task(client.reader.readuntil(EVENTS[0]))
        sent = 0
        while not came.done():  # what comes together flows together; not all of it does
            sent += 1
            api.go_on()
            await asyncio.wait({came}, timeout=STILL)
        assert sent < len(EVENTS)
        assert door.durable_state(key_of("plain")) == "in_flight"
        api.go_on(len(EVENTS) - sent)
        await client.reader.readuntil(LAST_CHUNK)
        assert door.durable_state(key_of("plain")) == "succeeded"
        again = await door.call(url(server, "plain"), {"a": 1})
        assert len(server.requests) == 1
        assert (outcome(again), again.body) == ("replayed", b"".join(EVENTS))


async def test_m1_a_caller_that_leaves_in_the_middle_misses_nothing(tmp_path: Path) -> None:
    api = Streaming(LONG, TAIL)
    async with streaming(tmp_path, api) as (server, door):
        async with RawClient(door.port) as client:
            await client.send(post(url(server, "plain"), {"a": 1}))
            api.go_on()
            await head(client)
        api.go_on()
        again = await door.call(url(server, "plain"), {"a": 1})
        assert len(server.requests) == 1
        assert outcome(again) in ("coalesced", "replayed")
        assert again.body == LONG + TAIL


async def test_m1_a_twin_of_a_flowing_answer_gets_it_whole(tmp_path: Path) -> None:
    api = Streaming(LONG, TAIL)
    async with streaming(tmp_path, api) as (server, door), RawClient(door.port) as client:
        await client.send(post(url(server, "plain"), {"a": 1}))
        api.go_on()
        await head(client)
        twin = asyncio.create_task(door.call(url(server, "plain"), {"a": 1}))
        api.go_on()
        got = await twin
        assert await body_bytes(client, len(LONG + TAIL)) == LONG + TAIL
        assert len(server.requests) == 1
        assert (outcome(got), got.body) == ("coalesced", LONG + TAIL)


async def broken_off(door: Door, call: bytes, go_on: Callable[[], None] | None = None) -> bytes:
    """What came of an answer whose connection then ended without its end. ``go_on`` is called once
    its head is here."""
    async with asyncio.timeout(WITHIN), RawClient(door.port) as client:
        await client.send(call)
        assert (await head(client))["status"] == "200"
        if go_on is not None:
            go_on()
        came = b""
        while not came.endswith(LAST_CHUNK):
            try:
                data = await client.reader.read(1 << 16)
            except ConnectionError:
                return came
            if not data:
                return came
            came += data
    raise AssertionError("a cut answer looked whole")


@pytest.mark.parametrize("framing", ["chunks", "length"])
async def test_m1_an_answer_cut_while_it_flows_is_unknown_where_its_body_decides(
    framing: str, tmp_path: Path
) -> None:
    api = Streaming(LONG, framing=framing)
    api.cut = True
    api.go_on()
    async with streaming(tmp_path, api) as (server, door):
        came = await broken_off(door, post(url(server, "judged"), {"a": 1}))
        assert len(came) < len(LONG) + 1000
        again = await door.call(url(server, "judged"), {"a": 1})
        assert len(server.requests) == 1
        told = assert_refused(again, 424, "outcome-unresolved", "do not repeat it")
        assert told["state"] == "unknown"


@pytest.mark.parametrize(
    "framing",
    [
        "chunks",
        "length",
    ],
)
async def test_m1_an_answer_cut_while_it_flows_never_looks_whole_where_its_status_decides(
    framing: str, tmp_path: Path
) -> None:
    api = Streaming(LONG, framing=framing)
    api.cut = True
    api.go_on()
    async with streaming(tmp_path, api) as (server, door):
        await broken_off(door, post(url(server, "plain"), {"a": 1}))
        again = await door.call(url(server, "plain"), {"a": 1})
        assert len(server.requests) == 1
        assert_refused(again, 409, "outcome-not-kept", "Already done")


async def test_m1_a_fault_of_the_proxy_while_an_answer_flows_ends_the_callers_connection(
    tmp_path: Path,
) -> None:
    api = Streaming(LONG)
    api.go_on()
    async with streaming(tmp_path, api, faults={"after_effect": "raise"}) as (server, door):
        await broken_off(door, post(url(server, "plain"), {"a": 1}))
        again = await door.call(url(server, "plain"), {"a": 1})
        assert len(server.requests) == 1
        assert problem(again)["state"] == "unknown"


@pytest.mark.parametrize("path", ["keyed", "plain"])
async def test_m1_a_proxy_killed_before_the_outcome_is_durable_has_not_ended_the_answer(
    path: str, tmp_path: Path
) -> None:
    api = Streaming(LONG, TAIL)
    api.go_on()
    async with RawServer(api) as server:
        rules = RULES.replace("{port}", str(server.port))
        dying = configure(tmp_path, rules, faults={"after_effect": "kill"})
        with served(tmp_path / "state", "--config", str(dying)) as proxy:
            call = post(url(server, path), {"a": 1})
            await broken_off(door_of(proxy), call, lambda: api.go_on(3))
            proxy.process.wait(30)
        living = configure(tmp_path, rules)
        with served(tmp_path / "state", "--config", str(living)) as proxy:
            again = await door_of(proxy).call(url(server, path), {"a": 1})
        if path == "keyed":
            first, second = server.requests
            assert first.all("idempotency-key") == second.all("idempotency-key") != []
            assert (again.status, again.body) == (200, LONG + TAIL)
        else:
            assert len(server.requests) == 1
            assert_refused(again, 424, "outcome-unresolved", "do not repeat it")


# The toy API, for what is not about streams


@pytest.fixture
async def toy() -> AsyncIterator[ToyApi]:
    api = ToyApi()
    await api.start()
    yield api
    await api.close()


BODY = {"reference": "it", "amount": 4200}
KEYS = {
    "/refunds": "run-1/step-1/toy.refunds.create/v1",
    "/invoices": "run-1/step-1/toy.invoices.create/v1",
    "/messages": "run-1/step-1/toy.messages.send/v1",
}


def effects(toy: ToyApi) -> tuple[int, int]:
    """Requests and effects of the one call of these tests."""
    return toy.requests["it"], toy.effects.counts().get("it", 0)


# M8: what a person says


async def _unknown(door: Door, toy: ToyApi) -> str:
    toy.troubles.fault("it", "drop_after")
    got = await door.call(toy.url + "/messages", BODY)
    assert_refused(got, 424, "outcome-unresolved")
    return KEYS["/messages"]


@pytest.mark.parametrize("external_id", ["ms_77", None])
async def test_m8_happened_without_a_response_is_never_an_invented_answer(
    toy: ToyApi, tmp_path: Path, external_id: str | None
) -> None:
    async with whole(tmp_path, toy_rules(toy.url)) as door:
        key = await _unknown(door, toy)
        said = {"as": "happened", "external_id": external_id, "by": "ada", "evidence": "mailbox"}
        status, _ = await door.resolve(key, **said)
        assert status == 200
    async with whole(tmp_path, toy_rules(toy.url)) as door:  # and after a restart
        for _ in range(2):
            later = await door.call(toy.url + "/messages", BODY)
            assert effects(toy) == (1, 1)
            told = assert_refused(later, 409, "outcome-not-kept", "Already done", "go on")
            assert told["state"] == "succeeded"
            assert told.get("external_id") == external_id
            assert external_id is None or external_id in told["next"]
        shown = await door.operation(key)
        assert (shown["state"], shown["how"]) == ("succeeded", "resolved")


async def test_m8_happened_with_a_response_is_what_later_calls_get(
    toy: ToyApi, tmp_path: Path
) -> None:
    async with whole(tmp_path, toy_rules(toy.url)) as door:
        key = await _unknown(door, toy)
        answer = {"status": 201, "body": {"id": "ms_77"}}
        status, _ = await door.resolve(key, **{"as": "happened", "response": answer})
        assert status == 200
        later = await door.call(toy.url + "/messages", BODY)
        assert effects(toy) == (1, 1)
        assert (later.status, outcome(later)) == (201, "resolved")
        assert json.loads(later.body) == {"id": "ms_77"}


@pytest.mark.parametrize("word", ["happened", "did_not_happen", "abandoned"])
@pytest.mark.parametrize("moment", ["received", "effect"])
async def test_m8_nobody_resolves_what_is_in_flight(
    toy: ToyApi, tmp_path: Path, moment: str, word: str
) -> None:
    async with whole(tmp_path, toy_rules(toy.url)) as door:
        gate = toy.troubles.gate("it", moment)
        call = asyncio.create_task(door.call(toy.url + "/messages", BODY))
        await gate.reached.wait()
        status, told = await door.resolve(KEYS["/messages"], **{"as": word})
        assert status == 409, told
        assert "in-flight" in json.dumps(told)
        gate.opened.set()
        got = await call
        assert effects(toy) == (1, 1)
        assert (got.status, outcome(got)) == (201, "sent")


async def test_m8_a_resolution_by_somebody_who_saw_an_older_row_is_refused(
    toy: ToyApi, tmp_path: Path
) -> None:
    async with whole(tmp_path, toy_rules(toy.url)) as door:
        key = await _unknown(door, toy)
        seen = (await door.operation(key))["revision"]
        status, _ = await door.resolve(key, **{"as": "did_not_happen", "revision": seen - 1})
        assert status == 409
        again = await door.call(toy.url + "/messages", BODY)
        assert effects(toy) == (1, 1)
        assert_refused(again, 424, "outcome-unresolved")


# H7: a ledger that is damaged, or that does not open


def damage(state_dir: Path, *statements: str) -> None:
    """What nothing in the proxy ever does to its file."""
    with closing(sqlite3.connect(state_dir / "ledger.db", isolation_level=None)) as db:
        for statement in statements:
            assert db.execute(statement).rowcount != 0, statement


DAMAGES: dict[str, Sequence[str]] = {
    "state": ["UPDATE operations SET state = 'failed', outcome = NULL"],
    "attempts": ["UPDATE operations SET attempts = '[]'"],
    "intent": ["UPDATE operations SET intent = replace(intent, 'e', 'f')"],
    "unreadable": ["UPDATE operations SET intent = '{'"],
    "url": ["UPDATE operations SET url = url || 'x'"],
    "name": ["UPDATE operations SET key = 'x/' || key, run = 'x'"],
    "gone": ["DELETE FROM operations"],
    "answer": ["UPDATE contents SET sealed = zeroblob(length(sealed)) WHERE kind = 'answer'"],
    "answer gone": ["DELETE FROM contents WHERE kind = 'answer'"],
}


# Each damage to an operation of one kind at every change, in turns; the rest when there is time.
EACH = [
    pytest.param(kind, path, marks=() if turn % len(KEYS) == at else pytest.mark.slow)
    for turn, kind in enumerate(DAMAGES)
    for at, path in enumerate(KEYS)
]


@pytest.mark.parametrize(("kind", "path"), EACH)
async def test_h7_a_damaged_row_is_424_and_never_executed_again(
    toy: ToyApi, tmp_path: Path, kind: str, path: str
) -> None:
    async with whole(tmp_path, toy_rules(toy.url)) as door:
        first = await door.call(toy.url + path, BODY)
        assert first.status == 201
        damage(door.state_dir, *DAMAGES[kind])
        running = await door.call(toy.url + path, BODY)
    async with whole(tmp_path, toy_rules(toy.url)) as door:
        restarted = await door.call(toy.url + path, BODY)
        assert effects(toy) == (1, 1)
        for got in (running, restarted):
            assert_refused(got, 424, "outcome-unresolved", "do not repeat it")
        other = await door.call(toy.url + path, {"reference": "other"}, "run-2", "step-1")
        assert toy.effects.counts()["other"] == 1
        assert other.status == 201


@pytest.mark.parametrize("path", KEYS)
async def test_h7_an_unknown_operation_whose_request_is_damaged_is_424(
    toy: ToyApi, tmp_path: Path, path: str
) -> None:
    config = configure(tmp_path, toy_rules(toy.url), faults={"after_effect": "kill"})
    with served(tmp_path / "state", "--config", str(config)) as proxy:
        async with RawClient(door_of(proxy).port) as client:
            await client.send(post(toy.url + path, BODY))
            assert await client.closed() == b""
        proxy.process.wait(30)
    damage(tmp_path / "state", "UPDATE contents SET sealed = zeroblob(length(sealed))")
    async with whole(tmp_path, toy_rules(toy.url)) as door:
        got = await door.call(toy.url + path, BODY)
        assert effects(toy) == (1, 1)
        assert_refused(got, 424, "outcome-unresolved", "do not repeat it")


async def test_h7_a_file_full_of_garbage_sends_nothing_again(toy: ToyApi, tmp_path: Path) -> None:
    async with whole(tmp_path, toy_rules(toy.url)) as door:
        await door.call(toy.url + "/messages", BODY)
    file = tmp_path / "state" / "ledger.db"
    pages = bytearray(file.read_bytes())
    for start in range(4096, len(pages), 4096):  # all but the first, which says what file it is
        pages[start : start + 4096] = b"\xaa" * 4096
    file.write_bytes(pages)
    got: Got | None = None
    with contextlib.suppress(LedgerError):  # it need not start
        async with whole(tmp_path, toy_rules(toy.url)) as door:
            got = await door.call(toy.url + "/messages", BODY)
    assert effects(toy) == (1, 1)
    assert got is None or got.status in (424, 503)


async def test_h7_a_wrong_key_refuses_to_start_and_the_right_one_has_it_all(
    toy: ToyApi, tmp_path: Path
) -> None:
    async with whole(tmp_path, toy_rules(toy.url)) as door:
        first = await door.call(toy.url + "/messages", BODY)
    key = tmp_path / "state" / "ledger.key"
    shutil.copy(key, tmp_path / "kept.key")
    key.write_text("ab" * 32 + "\n")
    with pytest.raises(WrongKey, match="put back the key file"):
        async with whole(tmp_path, toy_rules(toy.url)):
            pass
    done = onceproxy("serve", "--config", str(configure(tmp_path, toy_rules(toy.url))))
    assert done.returncode == 4
    assert "put back the key file" in done.stderr
    assert "Traceback" not in done.stderr
    key.unlink()
    with pytest.raises(LedgerError, match=r"ledger\.key"):
        async with whole(tmp_path, toy_rules(toy.url)):
            pass
    assert not key.exists(), "a new key for an old ledger would only hide the loss"
    shutil.copy(tmp_path / "kept.key", key)
    async with whole(tmp_path, toy_rules(toy.url)) as door:
        again = await door.call(toy.url + "/messages", BODY)
        assert effects(toy) == (1, 1)
        assert (outcome(again), again.body) == ("replayed", first.body)
