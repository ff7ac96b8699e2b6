"""The same bytes again and again: answered at once, and never anything but what the long way says.

The whole proxy over real sockets; the API counts what arrives.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from proxy.callers import Callers
from proxy.ledger.reads import SqliteReads
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
        assert at_once == [True, True, False, False]


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
