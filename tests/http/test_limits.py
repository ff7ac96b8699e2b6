"""Limits and slow callers: what one caller takes, others do not lack (bar S14)."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import resource
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy import capacity
from proxy.config import LimitsConfig
from proxy.core.bodies import ANY_RATIO, BodyMissing, content
from proxy.core.model import Body
from proxy.net import connection as connections
from proxy.net.connection import Waits
from proxy.net.exchange import Arrival, Reply
from proxy.net.frontend import FrontDoor
from proxy.net.listener import Room, _Counted
from proxy.net.parsing import HeadLimits
from proxy.net.shares import Shares
from tests.fakes.door import Echo, open_door
from tests.fakes.rawclient import RawClient
from tests.http.world import WAIT

GET = "GET http://a.test/ HTTP/1.1\r\nHost: a\r\n\r\n"
POST = "POST http://a.test/ HTTP/1.1\r\nHost: a\r\n"


class Gate:
    """An engine whose calls wait until they are let go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go = asyncio.Event()

    async def __call__(self, arrival: Arrival) -> Reply:
        self.begun.append(arrival.request.target)
        await self.go.wait()
        return Reply(200, "", (), Body.of(arrival.request.target.encode()))


def call(target: str, run: str) -> str:
    basic = base64.b64encode(f"{run}:s".encode()).decode()
    return (
        f"GET http://a.test/{target} HTTP/1.1\r\nHost: a\r\n"
        f"Proxy-Authorization: Basic {basic}\r\n\r\n"
    )


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0.001)


def test_the_limits_have_defaults() -> None:
    given = LimitsConfig()
    assert (given.connections, given.run_calls, given.waiting_calls) == (512, 64, 1000)
    assert (given.head, given.head_fields) == (64_000, 100)
    assert (given.head_wait, given.body_idle, given.body_wait) == (10.0, 30.0, 300.0)
    assert (given.request_body, given.kept_body) == (100_000_000, 10_000_000)


# Time


async def test_a_head_that_does_not_come_in_time_is_a_408() -> None:
    async with open_door(Echo(), waits=Waits(head=0.05)) as door, RawClient(door.port) as client:
        got = await client.ask("GET http://a.test/ HT")
        assert (got.status, got.all("connection")) == (408, ["close"])
        assert await client.closed() == b""


async def test_a_head_that_drips_gains_no_time() -> None:
    echo = Echo()
    async with open_door(echo, waits=Waits(head=0.1)) as door, RawClient(door.port) as client:
        async with asyncio.timeout(WAIT):
            await client.send("GET http://a.test/ HTTP/1.1\r\n")
            while not client.reader._buffer:
                await client.send("X-A: 1\r\n")
                await asyncio.sleep(0.005)
            assert (await client.answer()).status == 408
    assert echo.arrivals == []


async def test_line_breaks_between_two_requests_begin_no_head() -> None:
    async with (
        open_door(Echo(), waits=Waits(head=0.05, idle=0.3)) as door,
        RawClient(door.port) as client,
    ):
        assert (await client.ask(GET)).status == 200
        await client.send("\r\n")
        assert await client.closed() == b""  # idle at last, without a word


async def test_a_body_that_drips_has_an_end() -> None:
    echo = Echo()
    waits = Waits(piece=1.0, body=0.1)
    async with open_door(echo, waits=waits) as door, RawClient(door.port) as client:
        async with asyncio.timeout(WAIT):
            await client.send(POST + "Content-Length: 100000\r\n\r\n")
            while not client.reader._buffer:
                await client.send("x")
                await asyncio.sleep(0.005)
            assert (await client.answer()).status == 400
    assert echo.bodies == [None]


async def test_a_call_that_is_streamed_on_may_take_as_long_as_it_moves() -> None:
    taken: list[bytes] = []

    async def taking(arrival: Arrival) -> Reply:
        taken.extend([piece async for piece in arrival.stream()])
        return Reply(200)

    waits = Waits(piece=1.0, body=0.01)
    async with open_door(taking, waits=waits) as door, RawClient(door.port) as client:
        await client.send(POST + "Content-Length: 10\r\n\r\n")
        for _ in range(10):
            await client.send("x")
            await asyncio.sleep(0.005)
        assert (await client.answer()).status == 200
    assert b"".join(taken) == b"x" * 10


# Size


@pytest.mark.parametrize("apart", [True, False])
async def test_a_head_over_the_limit_is_a_431_however_it_comes(apart: bool) -> None:
    echo = Echo()
    limits = HeadLimits(head=2000, fields=100)
    async with open_door(echo, head_limits=limits) as door, RawClient(door.port) as client:
        fields = [f"X-{n}: {'x' * 50}\r\n" for n in range(50)]
        if apart:
            await client.send(POST)
            for field in fields:
                await client.send(field)
                await asyncio.sleep(0)
        else:
            await client.send(POST + "".join(fields) + "\r\n")
        assert (await client.answer()).status == 431
        assert await client.closed() == b""
    assert echo.arrivals == []


async def test_a_body_does_not_count_as_head() -> None:
    limits = HeadLimits(head=2000, fields=100)
    async with (
        open_door(Echo(), head_limits=limits) as door,
        RawClient(door.port) as client,
    ):
        for _ in range(2):
            got = await client.ask(POST + "Content-Length: 50000\r\n\r\n" + "x" * 50_000)
            assert got.status == 200


def test_a_compressed_body_that_grows_too_much_is_not_read() -> None:
    import gzip

    small = gzip.compress(b"0" * (ANY_RATIO - 1))
    assert len(content(Body.of(small), (("Content-Encoding", "gzip"),))) == ANY_RATIO - 1
    bomb = gzip.compress(b"0" * (2 * ANY_RATIO))
    with pytest.raises(BodyMissing):
        content(Body.of(bomb), (("Content-Encoding", "gzip"),))


# Number


@pytest.fixture
async def full() -> AsyncIterator[tuple[FrontDoor, Gate, list[RawClient], list[str]]]:
    """A door with room for three callers, who have come and whose calls run."""
    gate, turned_away = Gate(), []
    async with open_door(gate, connections=3, on_turned_away=turned_away.append) as door:
        clients = [RawClient(door.port) for _ in range(3)]
        for number, client in enumerate(clients):
            await client.__aenter__()
            await client.send(call(str(number), "r"))
        while len(gate.begun) < 3:
            await asyncio.sleep(0.001)
        yield door, gate, clients, turned_away
        gate.go.set()
        for client in clients:
            await client.__aexit__()


Full = tuple[FrontDoor, Gate, list[RawClient], list[str]]


async def test_a_caller_for_whom_there_is_no_room_is_told(full: Full) -> None:
    door, gate, clients, turned_away = full
    async with RawClient(door.port) as late:
        got = await late.ask(GET)
        assert got.status == 503
        assert got.all("retry-after") == ["5"]
        told = json.loads(got.body)
        assert (told["type"], told["retryable"]) == ("urn:onceproxy:too-busy", True)
        assert await late.closed() == b""
    assert (len(gate.begun), turned_away) == (3, ["connections"])
    gate.go.set()
    assert [(await client.answer()).status for client in clients] == [200] * 3


async def test_whoever_comes_when_another_has_left_is_served(full: Full) -> None:
    door, gate, clients, _ = full
    gate.go.set()
    await clients[0].answer()
    await clients[0].__aexit__()
    while door.room.open == 3:
        await asyncio.sleep(0.001)
    async with RawClient(door.port) as late:
        assert (await late.ask(GET)).status == 200


async def test_an_idle_connection_makes_room_and_a_running_call_never_does(
    full: Full, monkeypatch: pytest.MonkeyPatch
) -> None:
    door, gate, clients, turned_away = full
    monkeypatch.setattr(connections, "SPARED_AFTER", 0.0)
    async with RawClient(door.port) as late:
        assert (await late.ask(GET)).status == 503  # all three run
    gate.go.set()
    for client in clients:
        await client.answer()
    gate.go.clear()
    await clients[2].send(call("again", "r"))
    while len(gate.begun) < 4:
        await asyncio.sleep(0.001)
    gate.go.set()
    async with RawClient(door.port) as late:
        assert (await late.ask(GET)).status == 200
        assert await clients[0].closed() == b""  # it had idled longest
        assert (await clients[2].answer()).body == b"/again"
    assert turned_away == ["connections"]


async def test_callers_that_never_finish_their_head_lock_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "SPARED_AFTER", 0.0)
    async with open_door(Echo(), connections=8) as door:
        slow = [RawClient(door.port) for _ in range(40)]
        for client in slow:
            await client.__aenter__()
            await client.send("GET http://a.test/ HT")
        for _ in range(20):
            async with RawClient(door.port) as client:
                assert (await client.ask(GET)).status == 200
        for client in slow:
            client.writer.transport.abort()


async def test_places_are_given_back_by_tunnels_and_by_callers_that_vanish() -> None:
    async with open_door(Echo(), connections=4) as door:
        for turns in range(40):
            async with RawClient(door.port) as client:
                await client.send("CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n\r\nGET")
                for _ in range(turns % 8):
                    await asyncio.sleep(0)
                client.writer.transport.abort()
            async with asyncio.timeout(WAIT):
                while door.room.open:
                    await asyncio.sleep(0.001)


async def test_a_run_has_its_share_and_its_other_calls_wait_in_order() -> None:
    gate = Gate()
    async with open_door(gate, run_calls=2) as door:
        clients = [RawClient(door.port) for _ in range(5)]
        for number, client in enumerate(clients):
            await client.__aenter__()
            await client.send(call(str(number), "other" if number == 4 else "one"))
            await settled()
        assert gate.begun == ["/0", "/1", "/4"]
        gate.go.set()
        assert [(await c.answer()).body for c in clients] == [b"/%d" % n for n in range(5)]
        assert gate.begun == ["/0", "/1", "/4", "/2", "/3"]
        for client in clients:
            await client.__aexit__()


async def test_a_call_too_many_is_told_so_and_one_that_left_is_never_begun() -> None:
    gate, turned_away = Gate(), []
    options = {"run_calls": 1, "waiting_calls": 1, "on_turned_away": turned_away.append}
    async with (
        open_door(gate, **options) as door,
        RawClient(door.port) as first,
        RawClient(door.port) as third,
    ):
        await first.send(call("first", "r"))
        await settled()
        async with RawClient(door.port) as second:
            await second.send(call("second", "r"))
            await settled()
            got = await third.ask(call("third", "r"))
            assert (got.status, turned_away) == (503, ["run_calls"])
            second.writer.transport.abort()
        await settled()
        gate.go.set()
        assert (await first.answer()).body == b"/first"
        assert (await first.ask(call("fourth", "r"))).body == b"/fourth"
    assert gate.begun == ["/first", "/fourth"]


async def test_shares_are_whole_whoever_gives_up() -> None:
    shares = Shares(1, 10)
    assert shares.take("r")
    waiting = [asyncio.ensure_future(shares.wait("r")) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.sleep(0)
    shares.leave("r")
    await asyncio.sleep(0)
    assert waiting[0].done()
    shares.leave("r")
    waiting[2].cancel()  # in the very turn in which it gets its place
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert shares.take("r")
    shares.leave("r")
    assert (shares._taken, shares._waiting, shares._room) == ({}, {}, 10)


# Descriptors


@pytest.mark.parametrize("end", [["close"], ["detach"], ["detach", "close"], ["close", "close"]])
def test_a_place_is_given_back_once_however_a_socket_ends(end: list[str]) -> None:
    """asyncio closes a socket, uvloop detaches it."""
    room = Room(1)
    one, other = socket.socketpair()
    counted = _Counted(one, room)
    assert not room.free()
    descriptor = counted.fileno()
    for act in end:
        getattr(counted, act)()
    if "detach" in end:
        os.close(descriptor)
    other.close()
    assert room.open == 0


def test_the_number_of_connections_follows_the_limit_of_open_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[0])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    monkeypatch.setattr(capacity, "_open_files", lambda: 40)
    assert capacity.room_for(100) == (100, None)
    assert capacity.room_for(512) == (512, None)
    assert limits.pop() == (40 + capacity.SPARE + 1024, 4096)
    limits[0] = (64, 64)
    possible, warning = capacity.room_for(512)
    assert warning is not None
    assert (possible, "ulimit -n" in warning) == (capacity.AT_LEAST, True)
    limits[0] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert capacity.room_for(5000) == (5000, None)


def test_every_listener_is_ours() -> None:
    """asyncio's own accept loop knows no limit and answers a lack of descriptors with silence."""
    for file in (Path(__file__).parents[2] / "proxy").rglob("*.py"):
        if "drill" in file.parts:
            continue
        text = file.read_text()
        for other in ("create_server(", "start_server(", "TCPSite(", "SockSite(", "run_app("):
            assert other not in text, file
