"""The same bytes again and again: answered at once, and never anything but what the long way says.

The whole proxy over real sockets; the API counts what arrives.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from proxy.callers import Callers
from proxy.ledger.reads import SqliteReads
from proxy.net import parsing
from proxy.net.connection import Connection as CallerConnection
from proxy.net.frontend import FrontDoor
from tests.fakes.rawclient import Got, RawClient
from tests.fakes.rawserver import Connection, RawServer, Received
from tests.fakes.whole import Door, outcome, post, problem, whole

RULES = """\
service: things
hosts: ["localhost:{port}"]
source: tests/fakes/rawserver.py
confidence: documented
key: {in: header, name: Idempotency-Key, valid_for: 24h, keeps: all}
endpoints:
  create:
    match: POST /v1/things
    external_id: id
"""
READ_NOW = RULES.replace("    external_id: id\n", "    effect: read\n")


class Api:
    """Answers 201 with a number; 422 where the body says so."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, received: Received, connection: Connection) -> None:
        self.bodies.append(received.body)
        status = "422 No" if b"refuse" in received.body else "201 Created"
        answer = json.dumps({"id": f"th_{len(self.bodies)}"}).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(answer)}\r\n"
        await connection.send(f"{head}Content-Type: application/json\r\n\r\n".encode() + answer)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call that was met before got its reply at once."""
    seen: list[bool] = []
    real = Callers.at_once

    def watched(self: Callers, arrival: object) -> object:
        reply = real(self, arrival)  # type: ignore[arg-type]
        seen.append(reply is not None)
        return reply

    monkeypatch.setattr(Callers, "at_once", watched)
    return seen


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each request that could be one was answered before anything read it."""
    seen: list[bool] = []
    real = FrontDoor._again

    def watched(self: FrontDoor, connection: CallerConnection, piece: bytes) -> bool:
        seen.append(real(self, connection, piece))
        return seen[-1]

    monkeypatch.setattr(FrontDoor, "_again", watched)
    return seen


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[tuple[Api, Door, str]]:
    api = Api()
    async with RawServer(api) as server:
        rules = RULES.replace("{port}", str(server.port))
        async with whole(folder, rules) as door:
            yield api, door, f"http://localhost:{server.port}/v1/things"


async def asked(door: Door, data: bytes, times: int) -> list[Got]:
    async with RawClient(door.port) as client:
        return [await client.ask(data) for _ in range(times)]


async def test_a_call_that_comes_again_is_answered_at_once_from_the_ledger(
    tmp_path: Path, at_once: list[bool]
) -> None:
    async with world(tmp_path) as (api, door, url):
        first, second, third, fourth = await asked(door, post(url, {"n": 1}), 4)
        assert len(api.bodies) == 1
        assert at_once == [True, True, True]
        assert [outcome(got) for got in (first, second, third)] == ["sent", "replayed", "replayed"]
        assert (third.status, third.fields, third.body) == (201, second.fields, second.body)
        assert fourth == third
    with closing(sqlite3.connect(door.state_dir / "ledger.db")) as db:
        (noted,) = db.execute("SELECT count(*) FROM events WHERE kind = 'Replayed'").fetchone()
    assert noted == 3


async def test_any_number_of_them_sent_ahead_are_answered_in_order(
    tmp_path: Path, at_once: list[bool]
) -> None:
    async with world(tmp_path) as (api, door, url):
        data = [post(url, {"n": n}, "run-1", f"step-{n}") for n in range(2)]
        for each in data:
            await asked(door, each, 2)
        async with RawClient(door.port) as client:
            await client.send(b"".join(data) * 1500)
            bodies = [(await client.answer()).body for _ in range(3000)]
        assert bodies == [b'{"id": "th_1"}', b'{"id": "th_2"}'] * 1500
        assert len(api.bodies) == 2
        assert at_once == [True] * 3002


async def test_other_bytes_are_another_call(tmp_path: Path) -> None:
    async with world(tmp_path) as (api, door, url):
        await asked(door, post(url, {"n": 1}), 3)
        other = await door.call(url, {"n": 2})
        assert problem(other)["type"] == "urn:onceproxy:operation-mismatch"
        assert len(api.bodies) == 1


async def test_a_refusal_that_was_heard_is_followed_by_a_new_version(
    tmp_path: Path, at_once: list[bool]
) -> None:
    async with world(tmp_path) as (api, door, url):
        got = await asked(door, post(url, {"refuse": True}), 4)
        assert [one.status for one in got] == [422] * 4
        assert len(api.bodies) == 4, "each is a new version: the caller has heard the refusal"
        assert True not in at_once


async def test_a_short_cut_that_fails_is_the_long_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError

    async with world(tmp_path) as (api, door, url):
        monkeypatch.setattr(SqliteReads, "answer_at_hand", broken)
        got = await asked(door, post(url, {"n": 1}), 3)
        assert [outcome(one) for one in got] == ["sent", "replayed", "replayed"]
        assert len(api.bodies) == 1


async def test_another_run_is_another_call(tmp_path: Path, at_once: list[bool]) -> None:
    async with world(tmp_path) as (api, door, url):
        await asked(door, post(url, {"n": 1}), 3)
        await asked(door, post(url, {"n": 1}, "run-2"), 3)
        assert at_once == [True] * 4
        assert len(api.bodies) == 2


async def test_new_rules_decide_anew(tmp_path: Path, at_once: list[bool]) -> None:
    async with world(tmp_path) as (api, door, url):
        data = post(url, {"n": 1})
        await asked(door, data, 3)
        assert len(api.bodies) == 1
        port = url.split(":")[2].split("/")[0]
        (tmp_path / "rules" / "service.yaml").write_text(READ_NOW.replace("{port}", port))
        status, _ = await door.ask("POST", "/v1/rules/reload")
        assert status == 200
        await asked(door, data, 2)
        assert len(api.bodies) == 3, "it is a read now: passed on each time"
        assert at_once == [True, True, *[False] * 4], "asked before and after it is read"


async def test_two_tunnels_of_two_runs_are_not_taken_for_one(
    tmp_path: Path, at_once: list[bool]
) -> None:
    async with world(tmp_path) as (api, door, url):
        host = url.split("/")[2]
        inside = (
            f"POST /v1/things HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            'Content-Length: 8\r\n\r\n{"n": 1}'
        )
        for run in ("run-1", "run-2", "run-1"):
            who = base64.b64encode(f"{run}:step-1".encode()).decode()
            async with RawClient(door.port) as client:
                connect = f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n"
                await client.send(f"{connect}Proxy-Authorization: Basic {who}\r\n\r\n")
                assert b" 200 " in await client.reader.readuntil(b"\r\n\r\n")
                got = [await client.ask(inside) for _ in range(3)]
            assert [one.status for one in got] == [201] * 3
        assert len(api.bodies) == 2
        assert at_once == [True] * 7, "a tunnel like an earlier one reads its calls alike"


async def test_a_piece_that_is_known_is_answered_unread_and_alike(
    tmp_path: Path, unread: list[bool]
) -> None:
    async with world(tmp_path) as (api, door, url):
        data = post(url, {"n": 1})
        async with RawClient(door.port) as client:
            half = data.index(b"\r\n\r\n") + 4
            for piece in (data[:half], data[half:]):  # two pieces: nothing is known of them
                await client.send(piece)
                await asyncio.sleep(0.02)
            await client.answer()
        async with RawClient(door.port) as client:
            await client.send(data * 2)  # one piece with two of them is none of one
            read = [await client.answer() for _ in range(2)]
        assert True not in unread
        got = await asked(door, data, 3)
        assert unread[-3:] == [False, True, True]
        assert got == [read[0]] * 3 == [read[1]] * 3
        assert len(api.bodies) == 1


@pytest.mark.parametrize(
    "before",
    [
        "P",
        "GET ",
        "{known}GET ",
    ],
    ids=["a letter", "a word", "a word behind a request"],
)
async def test_known_bytes_inside_of_another_request_are_no_request(
    tmp_path: Path, at_once: list[bool], before: str
) -> None:
    async with world(tmp_path) as (api, door, url):
        known = post(url, {"n": 1})
        await asked(door, known, 3)
        assert at_once == [True, True]
        async with RawClient(door.port) as client:
            await client.send(before.format(known=known.decode()))
            if "{known}" in before:
                assert outcome(await client.answer()) == "replayed"
            asks = len(at_once)
            await asyncio.sleep(0.05)  # so that the pieces come one after the other
            await client.send(known)
            assert (await client.answer()).status == 400
        assert len(at_once) == asks
        assert len(api.bodies) == 1


async def test_known_bytes_that_are_the_body_of_another_request_are_its_body(
    tmp_path: Path, unread: list[bool]
) -> None:
    async with world(tmp_path) as (api, door, url):
        known = post(url, {"n": 1})
        await asked(door, known, 3)
        asks = len(unread)
        async with RawClient(door.port) as client:
            whole = post(url, known, "run-2")
            await client.send(whole.removesuffix(known))
            await asyncio.sleep(0.05)  # so that the pieces come one after the other
            await client.send(known)
            assert outcome(await client.answer()) == "sent"
        assert api.bodies == [b'{"n": 1}', known]
        assert unread[asks:] == [False], "only the head may be one"


async def test_what_comes_behind_a_request_in_its_piece_is_not_lost_when_it_comes_again(
    tmp_path: Path, unread: list[bool]
) -> None:
    async with world(tmp_path) as (api, door, url):
        first, second = post(url, {"n": 1}), post(url, {"n": 2}, "run-2")
        for _ in range(3):
            async with RawClient(door.port) as client:
                await client.send(first + second[:40])
                assert (await client.answer()).body == b'{"id": "th_1"}'
                await client.send(second[40:])
                assert (await client.answer()).body == b'{"id": "th_2"}'
        assert True not in unread
        assert len(api.bodies) == 2


async def test_the_same_bytes_at_two_gateways_are_two_calls(
    tmp_path: Path, unread: list[bool]
) -> None:
    apis = [Api(), Api()]
    async with RawServer(apis[0]) as one, RawServer(apis[1]) as two:
        hosts = f'["localhost:{one.port}", "localhost:{two.port}"]'
        ports = [free_port(), free_port()]
        gateways = [
            {"listen": f"127.0.0.1:{port}", "to": f"http://localhost:{server.port}"}
            for port, server in zip(ports, (one, two), strict=True)
        ]
        rules = RULES.replace('["localhost:{port}"]', hosts)
        async with whole(tmp_path, rules, gateway=gateways):
            data = post("http://localhost", {"n": 1}, target="/v1/things")
            ends = []
            for port in (*ports, *ports):
                async with RawClient(port) as client:
                    ends.append([(await client.ask(data)).status for _ in range(2)])
    assert ends == [[201, 201], [422, 422]] * 2, "another address: not the recorded operation"
    assert [len(api.bodies) for api in apis] == [1, 0]
    assert unread == [False, True, False, False, True, True, False, False]


@pytest.mark.parametrize("number", [1, 2])
async def test_a_connection_that_repeats_is_not_idle(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_once: list[bool],
    unread: list[bool],
    number: int,
) -> None:
    seen: list[CallerConnection] = []
    real = CallerConnection.connection_made

    def watched(self: CallerConnection, transport: asyncio.BaseTransport) -> None:
        seen.append(self)
        real(self, transport)

    async with world(tmp_path) as (_, door, url):
        data = post(url, {"n": 1})
        await asked(door, data, 2)
        monkeypatch.setattr(CallerConnection, "connection_made", watched)
        async with RawClient(door.port) as client:
            since = []
            for _ in range(4):
                await client.send(data * number)  # two in one piece are parsed
                for _ in range(number):
                    await client.answer()
                since.append(seen[0].idle_since)
    assert at_once == [True] * (1 + 4 * number)
    assert unread.count(True) == (5 if number == 1 else 1)
    assert len(set(since)) == 4, "a caller that is busy is not the one that makes room"


async def test_a_stop_says_that_the_connection_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unread: list[bool]
) -> None:
    real, doors = FrontDoor._again, []

    def watched(self: FrontDoor, connection: CallerConnection, piece: bytes) -> bool:
        doors.append(self)
        return real(self, connection, piece)

    monkeypatch.setattr(FrontDoor, "_again", watched)
    async with world(tmp_path) as (_, door, url):
        data = post(url, {"n": 1})
        async with RawClient(door.port) as client:
            assert [(await client.ask(data)).all("connection") for _ in range(2)] == [[], []]
            doors[0]._stopping = True
            got = await client.ask(data)
            assert (outcome(got), got.all("connection")) == ("replayed", ["close"])
            assert await client.closed() == b""
    assert unread == [False, True, False]


def test_a_piece_is_alone_where_nothing_can_be_behind_its_request() -> None:
    def alone(piece: bytes, *, body: int = 0, whole: bool = True, upgrade: bool = False) -> bool:
        payload = SimpleNamespace(total_bytes=body, is_eof=lambda: whole)
        return parsing.alone(piece, SimpleNamespace(upgrade=upgrade), payload)  # type: ignore[arg-type]

    head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    assert alone(head)
    assert alone(b"\r\n" + head)
    assert alone(head + b"ab", body=2)
    assert not alone(head + b"ab", body=1)
    assert not alone(head, whole=False)
    assert not alone(head + b"2\r\nab\r\n0\r\n\r\n", body=2)
    assert not alone(b"\r\n\r\n" + head)
    assert not alone(head, upgrade=True)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
