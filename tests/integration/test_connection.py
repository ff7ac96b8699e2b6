"""One caller's connection at its limits: what is sent ahead, bodies nobody reads, early answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from proxy.core.model import Body
from proxy.net.connection import Waits
from proxy.net.exchange import Arrival, Reply
from tests.fakes.door import Echo, open_door
from tests.fakes.rawclient import RawClient

GET = b"GET http://a.test/%d HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST http://a.test/ HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b"


async def test_any_number_of_requests_sent_ahead_are_answered_in_order() -> None:
    number = 3000  # more than may be held for a caller that does not wait
    seen: list[str] = []

    async def handle(arrival: Arrival) -> Reply:
        seen.append(arrival.request.target)
        await asyncio.sleep(0)
        return Reply(200, "", (), Body.of(arrival.request.target.encode()))

    async with open_door(handle) as door, RawClient(door.port) as client:
        sending = asyncio.ensure_future(client.send(b"".join(GET % n for n in range(number))))
        for n in range(number):
            assert (await client.answer()).body == b"/%d" % n
        await sending
    assert len(seen) == number


async def test_a_caller_that_sends_ahead_is_held_back_and_its_calls_are_not_begun() -> None:
    go, begun = asyncio.Event(), 0

    async def handle(arrival: Arrival) -> Reply:
        nonlocal begun
        begun += 1
        await go.wait()
        return Reply(200, "", (), Body.of(b"x"))

    async with open_door(handle) as door, RawClient(door.port) as client:
        padding = b"X-Padding: " + b"p" * 30_000 + b"\r\n\r\n"
        request = GET[:-2] % 1 + padding
        sending = asyncio.ensure_future(client.send(request * 500))
        done, _ = await asyncio.wait([sending], timeout=0.3)
        assert not done
        assert begun == 1
        go.set()
        for _ in range(500):
            assert (await client.answer()).body == b"x"
        await sending


async def test_a_body_that_nobody_reads_is_held_back_and_comes_whole_when_somebody_does() -> None:
    go, echo = asyncio.Event(), Echo()

    async def handle(arrival: Arrival) -> Reply:
        await go.wait()
        return await echo(arrival)

    data = bytes(range(256)) * 40_000
    async with open_door(handle) as door, RawClient(door.port) as client:
        sending = asyncio.ensure_future(client.send(POST % (len(data), data) + GET % 2))
        done, _ = await asyncio.wait([sending], timeout=0.3)
        assert not done
        go.set()
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 200
        await sending
    assert echo.bodies == [data, b""]


async def test_a_whole_body_counts_even_if_its_caller_has_left() -> None:
    started, go, echo = asyncio.Event(), asyncio.Event(), Echo()

    async def handle(arrival: Arrival) -> Reply:
        started.set()
        await go.wait()
        assert arrival.gone
        return await echo(arrival)

    async with open_door(handle) as door:
        async with RawClient(door.port) as client:
            await client.send(POST % (2, b"ab"))
            await started.wait()
        await asyncio.sleep(0.02)
        go.set()
        while not echo.delivered:
            await asyncio.sleep(0)
    assert (echo.bodies, echo.delivered) == ([b"ab"], [False])


async def test_requests_sent_ahead_are_not_begun_once_their_caller_has_left() -> None:
    started, go, begun = asyncio.Event(), asyncio.Event(), 0

    async def handle(arrival: Arrival) -> Reply:
        nonlocal begun
        begun += 1
        started.set()
        await go.wait()
        return Reply(200, "", (), Body.of(b"x"))

    async with open_door(handle) as door:
        async with RawClient(door.port) as client:
            await client.send(POST % (2, b"ab") * 3)
            await started.wait()
        await asyncio.sleep(0.02)
        go.set()
        await asyncio.sleep(0.02)
    assert begun == 1


async def test_a_refused_caller_can_read_its_answer_while_it_still_sends() -> None:
    async def known(arrival: Arrival) -> Reply:
        return Reply(413, "", (), Body.of(b"known"))

    async with open_door(known) as door, RawClient(door.port) as client:
        await client.send(POST % (20_000_000, b""))
        got = await client.answer()
        assert (got.status, got.body, got.all("connection")) == (413, b"known", ["close"])
        for _ in range(20):
            await client.send(b"x" * 1_000_000)  # no reset
        assert await client.closed() == b""


async def test_a_head_that_is_much_too_long_gets_its_answer() -> None:
    async with open_door(Echo()) as door, RawClient(door.port) as client:
        await client.send(b"GET http://a.test/" + b"x" * 3_000_000)
        assert (await client.answer()).status == 414


@pytest.mark.parametrize("token", [b"h2c", b"websocket"])
async def test_what_follows_a_declined_upgrade_in_one_segment_is_served(token: bytes) -> None:
    echo = Echo()
    ask = b"GET http://a.test/ HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: %b\r\n\r\n"
    async with open_door(echo) as door, RawClient(door.port) as client:
        await client.send(ask % token + POST % (2, b"ab") + ask % token + GET % 3)
        for _ in range(4):
            assert (await client.answer()).status == 200
    assert [a.request.target for a in echo.arrivals] == ["/", "/", "/", "/3"]


@pytest.mark.parametrize("apart", [True, False])
async def test_a_malformed_chunk_is_told_at_once(apart: bool) -> None:
    echo = Echo()
    async with open_door(echo, waits=Waits(piece=60.0)) as door, RawClient(door.port) as client:
        head = b"POST http://a.test/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        await client.send(head + b"2\r\nab" + (b"" if apart else b"XX"))
        if apart:
            while not echo.arrivals:
                await asyncio.sleep(0)
            await client.send(b"XX")
        async with asyncio.timeout(5):
            got = await client.answer()
        assert (got.status, got.all("connection")) == (400, ["close"])
        assert await client.closed() == b""
    assert echo.bodies == ([None] if apart else [])


async def test_an_http_1_0_caller_that_wants_to_go_on_still_gets_the_end_of_a_stream() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"ab"
        yield b"cd"

    async def handle(arrival: Arrival) -> Reply:
        return Reply(200, "", (), pieces())

    async with open_door(handle) as door, RawClient(door.port) as client:
        got = await client.ask(
            b"GET http://a.test/ HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n"
        )
        assert (got.body, got.all("connection")) == (b"abcd", ["close"])


async def test_a_long_call_outlives_the_idle_time_and_the_connection_goes_on() -> None:
    async def slow(arrival: Arrival) -> Reply:
        await asyncio.sleep(0.3)
        return Reply(200, "", (), Body.of(b"x"))

    async with open_door(slow, waits=Waits(idle=0.1)) as door, RawClient(door.port) as client:
        for _ in range(2):
            assert (await client.ask(GET % 1)).body == b"x"
        assert await client.closed() == b""


async def test_tunnels_of_callers_that_leave_at_any_moment_leave_no_connection_behind() -> None:
    async with open_door(Echo()) as door:
        for turns in range(30):
            async with RawClient(door.port) as client:
                await client.send(
                    b"CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n\r\n"
                    b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"
                )
                for _ in range(turns):
                    await asyncio.sleep(0)
                client.writer.transport.abort()
        async with asyncio.timeout(5):
            while door._server.connections:
                await asyncio.sleep(0.01)
