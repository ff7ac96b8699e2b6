"""The front door on plain sockets: every way in, every shape refused, every way out."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.core.model import Body
from proxy.net.connection import Waits
from proxy.net.exchange import Arrival, Reply
from proxy.net.frontend import FrontDoor
from proxy.net.parsing import HeadLimits
from tests.fakes.door import Echo, open_door, open_passing_door
from tests.fakes.rawclient import Got, RawClient
from tests.fakes.rawserver import Connection, RawServer, Received, answering


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
async def door(echo: Echo, tmp_path: Path) -> AsyncIterator[FrontDoor]:
    async with open_door(echo, waits=Waits(piece=0.3), spool_dir=tmp_path) as door:
        yield door


@pytest.fixture
async def client(door: FrontDoor) -> AsyncIterator[RawClient]:
    async with RawClient(door.port) as client:
        yield client


def said(got: Got) -> dict[str, Any]:
    assert got.status == 200, got
    parsed = json.loads(got.body)
    assert isinstance(parsed, dict)
    return parsed


def basic(pair: str | bytes) -> str:
    raw = pair.encode() if isinstance(pair, str) else pair
    return f"Proxy-Authorization: Basic {base64.b64encode(raw).decode()}"


# Targets


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ("http://a.test/x", "http://a.test/x"),
        ("HTTP://A.Test/x", "http://a.test/x"),
        ("http://a.test./x", "http://a.test/x"),
        ("http://a.test:80/x", "http://a.test/x"),
        ("http://a.test:/x", None),
        ("http://a.test:8080", "http://a.test:8080/"),
        ("http://a.test?q=1", "http://a.test/?q=1"),
        ("https://a.test/x", "https://a.test/x"),
        ("http://[::1]:8080/x", "http://[::1]:8080/x"),
        ("http://[0:0::1]/x", "http://[::1]/x"),
        ("http://xn--bcher-kva.TEST/", "http://xn--bcher-kva.test/"),
        ("http://a.test/%7Ea/%2F..b%2fc/./x;p=%C3%A9?q=a+b%20c&&", None),
    ],
)
async def test_the_target_names_the_destination_and_host_does_not(
    client: RawClient, target: str, url: str | None
) -> None:
    got = await client.ask(f"GET {target} HTTP/1.1\r\nHost: evil.test\r\n\r\n")
    if target == "http://a.test:/x":
        assert got.status == 400
        return
    assert said(got)["url"] == (url or target)
    assert not any(name.lower() == "host" for name, _ in said(got)["headers"])


@pytest.mark.parametrize(
    "target",
    [
        "http://u:p@a.test/",
        "http://a.test/x#fragment",
        "http://a.test:0/",
        "http://a.test:99999/",
        "http://a.test:8a/",
        "http://[a.test]/",
        "http://[fe80::1%25eth0]/",
        "http://a..test/",
        "http://a%2etest/",
        "http:///x",
        "ftp://a.test/",
        "ws://a.test/",
        "/metrics",
        "*",
        "a.test/",
    ],
)
async def test_a_target_that_is_not_one_is_refused_and_the_connection_closed(
    client: RawClient, echo: Echo, target: str
) -> None:
    method = "OPTIONS" if target == "*" else "GET"
    got = await client.ask(f"{method} {target} HTTP/1.1\r\nHost: a.test\r\n\r\n")
    assert got.status == 400
    assert got.all("connection") == ["close"]
    assert await client.closed() == b""
    assert echo.arrivals == []


# What is refused because two parties could read it in two ways

HEAD = "POST http://a.test/x HTTP/1.1\r\nHost: a.test\r\n"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (HEAD + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + "Content-Length: 2\r\nContent-Length: 2\r\n\r\nab", 400),
        (HEAD + "Content-Length: 2, 2\r\n\r\nab", 400),
        (HEAD + "Content-Length: +2\r\n\r\nab", 400),
        (HEAD + "Content-Length: -2\r\n\r\nab", 400),
        (HEAD + "Content-Length: 0x2\r\n\r\nab", 400),
        (HEAD + "Content-Length : 2\r\n\r\nab", 400),
        (HEAD + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
        (HEAD + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (HEAD + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + "Transfer-Encoding: chunked\t\r\n\r\n0\r\n\r\n", 400),
        (HEAD + "Transfer-Encoding: chunked,\r\n\r\n0\r\n\r\n", 400),
        ("POST http://a.test/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + "X-A: 1\r\n folded\r\n\r\n", 400),
        (HEAD + "X-A: 1\nX-B: 2\r\n\r\n", 400),
        (HEAD + "X-A: a\rb\r\n\r\n", 400),
        (HEAD + "X-A: a\0b\r\n\r\n", 400),
        (HEAD + ": empty\r\n\r\n", 400),
        (HEAD + "Host: b.test\r\n\r\n", 400),
        ("POST http://a.test/x HTTP/1.1\r\n\r\n", 400),
        ("POST http://a.test/a b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("POST http://b\xfccher.test/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("FROB http://a.test/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("get http://a.test/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("\x16\x03\x01\x00\xa5\x01\x00\x00", 400),
        (HEAD + "Connection: Content-Length\r\nContent-Length: 0\r\n\r\n", 400),
        (HEAD + "Connection: Idempotency-Key\r\nIdempotency-Key: 1\r\n\r\n", 400),
        (HEAD + "Connection: Host\r\n\r\n", 400),
        (HEAD + "Connection: authorization\r\n\r\n", 400),
        (HEAD + "Connection: X-Run-Id\r\n\r\n", 400),
        (HEAD + "Expect: wonders\r\n\r\n", 417),
        (HEAD + "Via: 1.0 other, 1.1 onceproxy\r\n\r\n", 508),
        ("GET http://a.test/" + "x" * 70_000 + " HTTP/1.1\r\nHost: a\r\n\r\n", 414),
        (HEAD + "X-A: x" + "x" * HeadLimits().field + "\r\n\r\n", 431),
        (HEAD + "X-A: 1\r\n" * 300 + "\r\n", 431),
    ],
)
async def test_a_request_that_can_be_read_in_two_ways_is_refused_before_anything_happens(
    client: RawClient, echo: Echo, raw: str, status: int
) -> None:
    # A second request hides behind it: it must not be served either.
    await client.send(raw.encode("latin-1") + b"GET http://b.test/ HTTP/1.1\r\nHost: b\r\n\r\n")
    got = await client.answer()
    assert got.status == status
    assert got.all("content-type") == ["application/problem+json"]
    document = json.loads(got.body)
    assert document["type"] == "urn:onceproxy:bad-request"
    assert document["status"] == status
    assert b"xxxx" not in got.body
    assert await client.closed() == b""
    assert echo.arrivals == []


@pytest.mark.parametrize("version", ["2.0", "0.9", "1.2"])
async def test_other_versions_of_http_are_a_505(
    client: RawClient, echo: Echo, version: str
) -> None:
    got = await client.ask(f"GET http://a.test/ HTTP/{version}\r\nHost: a\r\n\r\n")
    assert got.status in (400, 505)  # 400 where the parser does not know it at all
    assert await client.closed() == b""
    assert echo.arrivals == []


@pytest.mark.parametrize(
    "chunks",
    ["5\r\nab\r\n0\r\n\r\n", "2\r\nabXX0\r\n\r\n", "zz\r\n", "2;\nx\r\nab\r\n0\r\n\r\n"],
)
async def test_a_broken_chunked_body_is_incomplete(
    client: RawClient, echo: Echo, chunks: str
) -> None:
    await client.send(HEAD + "Transfer-Encoding: chunked\r\n\r\n" + chunks)
    client.writer.write_eof()
    await client.closed()
    assert [body for body in echo.bodies if body is not None] == []


# Header fields


async def test_hop_by_hop_and_identity_fields_do_not_go_on(client: RawClient) -> None:
    got = await client.ask(
        "POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nConnection: close, X-Foo, TE\r\n"
        "X-Foo: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\nTrailer: X\r\n"
        "Proxy-Connection: keep-alive\r\nProxy: http://evil\r\nUpgrade: h2c\r\n"
        "HTTP2-Settings: x\r\nX-Run-Id: r\r\nX-Step-Id: s\r\n"
        f"X-Operation-Id: o\r\nbaggage: run.id=r,user=7\r\n{basic('r:s')}\r\n"
        "Content-Length: 1\r\nX-Kept: 1\r\nx-kept: 2\r\naCCEPT: */*\r\nX-Kept: 3\r\n\r\nx"
    )
    assert said(got)["headers"] == [
        ["X-Kept", "1"],
        ["x-kept", "2"],
        ["aCCEPT", "*/*"],
        ["X-Kept", "3"],
        ["baggage", "user=7"],
    ]
    assert (said(got)["run"], said(got)["step"], said(got)["operation_id"]) == ("r", "s", "o")


async def test_identity_fields_that_a_signature_covers_go_on(client: RawClient) -> None:
    got = await client.ask(
        "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nX-Run-Id: r\r\nX-Step-Id: s\r\n"
        "Authorization: AWS4-HMAC-SHA256 Credential=c, SignedHeaders=host;x-run-id, Signature=s\r\n"
        "\r\n"
    )
    names = [name for name, _ in said(got)["headers"]]
    assert names == ["Authorization", "X-Run-Id"]


async def test_bytes_that_are_not_utf8_survive(client: RawClient, echo: Echo) -> None:
    await client.ask(b"GET http://a.test/ HTTP/1.1\r\nHost: a\r\nX-Latin: caf\xe9\r\n\r\n")
    value = echo.arrivals[0].request.headers[0][1]
    assert value.encode("utf-8", "surrogateescape") == b"caf\xe9"


@pytest.mark.parametrize(
    ("field", "run", "step"),
    [
        (basic("r:s"), "r", "s"),
        (basic("r%2F1:s%253A1"), "r/1", "s%3A1"),
        (basic("r:-"), "r", None),
        (basic("r"), "r", None),
        ("X-Run-Id: r\r\nX-Step-Id: s", "r", "s"),
        ("baggage: a=b\r\nbaggage: run.id=r,step.id=s", "r", "s"),
        ("Proxy-Authorization: Bearer x", None, None),
    ],
)
async def test_identity_comes_from_each_of_its_places(
    client: RawClient, field: str, run: str | None, step: str | None
) -> None:
    got = await client.ask(f"GET http://a.test/ HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n")
    assert (said(got)["run"], said(got)["step"]) == (run, step)


@pytest.mark.duty("A-42")
@pytest.mark.parametrize(
    "field",
    [
        basic("r1:s") + "\r\nX-Run-Id: r2",
        basic(b"\xff:s"),
        "X-Run-Id: a%00b",
        "X-Run-Id: a\r\nX-Run-Id: b",
        "Proxy-Authorization: Basic ???",
    ],
)
async def test_an_identity_that_cannot_be_used_is_a_400(client: RawClient, field: str) -> None:
    got = await client.ask(f"GET http://a.test/ HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n")
    assert got.status == 400
    assert json.loads(got.body)["error"]["code"] == "bad-request"


@pytest.mark.parametrize(
    "fields",
    [
        basic("r:s:once_" + "a" * 43),
        basic("r:s") + "\r\nX-Run-Token: once_" + "a" * 43,
        "X-Run-Id: r\r\nX-Step-Id: s\r\nX-Run-Token: once_" + "a" * 43,
    ],
)
async def test_a_run_token_is_told_from_the_step(
    client: RawClient, echo: Echo, fields: str
) -> None:
    got = await client.ask(f"GET http://a.test/ HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n")
    identity = echo.arrivals[0].identity
    assert identity is not None
    assert (identity.run, identity.step) == ("r", "s")
    assert echo.arrivals[0].token == "once_" + "a" * 43
    assert "once_" not in got.body.decode(), "it does not go on to the service"


# Bodies


async def test_a_chunked_body_is_the_same_as_a_sized_one(client: RawClient, echo: Echo) -> None:
    chunked = (
        HEAD + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3;x=1\r\ncde\r\n0\r\nX-T: 1\r\n\r\n"
    )
    assert said(await client.ask(chunked))["body"] == "abcde"
    sized = HEAD + "Content-Length: 5\r\n\r\nabcde"
    assert said(await client.ask(sized))["body"] == "abcde"
    assert [a.content_length for a in echo.arrivals] == [None, 5]


@pytest.mark.parametrize("method", ["GET", "OPTIONS", "DELETE", "QUERY", "PROPFIND"])
async def test_every_method_may_have_a_body(client: RawClient, method: str) -> None:
    got = await client.ask(
        f"{method} http://a.test/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        "2\r\nab\r\n0\r\n\r\n"
    )
    assert (said(got)["method"], said(got)["body"]) == (method, "ab")


async def test_a_large_body_goes_to_a_file_without_a_name(
    client: RawClient, echo: Echo, tmp_path: Path
) -> None:
    data = bytes(range(256)) * 12_000
    await client.send(HEAD + f"Content-Length: {len(data)}\r\n\r\n")
    await client.send(data)
    assert said(await client.answer())["size"] == len(data)
    assert echo.bodies == [data]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("framing", ["sized", "chunked"])
async def test_a_body_over_the_limit_is_a_413(framing: str) -> None:
    async with open_door(Echo(limit=10)) as door, RawClient(door.port) as client:
        if framing == "sized":
            await client.send(HEAD + "Content-Length: 11\r\n\r\n")
        else:
            await client.send(HEAD + "Transfer-Encoding: chunked\r\n\r\nb\r\n01234567890\r\n")
        got = await client.answer()
        assert got.status == 413
        assert got.all("connection") == ["close"]


async def test_a_body_that_stops_coming_is_incomplete(client: RawClient, echo: Echo) -> None:
    got = await client.ask(HEAD + "Content-Length: 5\r\n\r\nab")
    assert got.status == 400
    assert echo.bodies == [None]


async def test_a_caller_that_leaves_in_its_body_is_incomplete(door: FrontDoor, echo: Echo) -> None:
    async with RawClient(door.port) as client:
        await client.send(HEAD + "Content-Length: 5\r\n\r\nab")
    while not echo.bodies:
        await asyncio.sleep(0)
    assert echo.bodies == [None]
    assert echo.arrivals[0].gone


async def test_expect_is_answered_when_the_body_is_wanted(client: RawClient) -> None:
    await client.send(HEAD + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert (await client.answer()).status == 100
    got = await client.ask("ab")
    assert said(got)["body"] == "ab"
    assert not any(name.lower() == "expect" for name, _ in said(got)["headers"])


async def test_expect_gets_the_final_answer_when_the_body_is_not_wanted() -> None:
    async def known(arrival: Arrival) -> Reply:
        return Reply(200, "OK", (), Body.of(b"known"))

    async with open_door(known) as door, RawClient(door.port) as client:
        got = await client.ask(HEAD + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert (got.status, got.body) == (200, b"known")
        assert got.all("connection") == ["close"]


# Answers


async def test_an_answer_is_what_the_engine_said_and_nothing_else(client: RawClient) -> None:
    got = await client.ask("GET http://a.test/ HTTP/1.1\r\nHost: a\r\n\r\n")
    assert got.reason == "Fine"
    assert [name for name, _ in got.fields] == [
        "Content-Type",
        "X-Echo",
        "x-echo",
        "Content-Length",
    ]


async def replying(reply: Reply, method: str = "GET", version: str = "1.1") -> tuple[Got, bytes]:
    """(the answer, what came after it on the same connection)."""

    async def handle(arrival: Arrival) -> Reply:
        return reply

    async with open_door(handle) as door, RawClient(door.port) as client:
        got = await client.ask(
            f"{method} http://a.test/ HTTP/{version}\r\nHost: a\r\n\r\n", method=method
        )
        await client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")  # refused, and so the end
        return got, await client.closed()


@pytest.mark.parametrize(
    ("reply", "method", "length"),
    [
        (Reply(200, "", (), Body.of(b"abc"), length=None), "HEAD", ["3"]),
        (Reply(200, "", (), length=10), "HEAD", ["10"]),
        (Reply(200), "HEAD", []),
        (Reply(200), "GET", ["0"]),
        (Reply(204), "GET", []),
        (Reply(304), "GET", []),
        (Reply(304, length=7), "GET", ["7"]),
    ],
)
async def test_answers_without_a_body_have_none_and_the_connection_goes_on(
    reply: Reply, method: str, length: list[str]
) -> None:
    got, after = await replying(reply, method)
    assert got.all("content-length") == length
    assert got.all("transfer-encoding") == []
    assert after.startswith(b"HTTP/1.1 400")


async def test_a_line_break_in_an_answer_does_not_become_a_field() -> None:
    reply = Reply(200, "O\r\nX: 1", (("X-A", "1\r\nX-Evil: 1\r\n\r\nHTTP/1.1 200"),))
    got, _ = await replying(reply)
    assert got.all("x-evil") == []
    assert got.all("x") == []


async def test_framing_fields_of_an_answer_are_made_here() -> None:
    reply = Reply(200, "", (("Content-Length", "99"), ("transfer-encoding", "x")), Body.of(b"ab"))
    got, _ = await replying(reply)
    assert got.all("content-length") == ["2"]
    assert got.all("transfer-encoding") == []


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


async def breaking() -> AsyncIterator[bytes]:
    yield b"ab"
    raise OSError("broke off")


async def test_a_body_of_unknown_length_is_chunked() -> None:
    got, after = await replying(Reply(200, "", (), pieces(b"ab", b"", b"cde")))
    assert got.raw_body == b"2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"
    assert after.startswith(b"HTTP/1.1 400")


async def test_a_body_of_known_length_keeps_it() -> None:
    got, after = await replying(Reply(200, "", (), pieces(b"ab", b"cde"), length=5))
    assert got.all("content-length") == ["5"]
    assert got.raw_body == b"abcde"
    assert after.startswith(b"HTTP/1.1 400")


async def test_http_1_0_gets_the_end_of_the_connection_instead_of_chunks() -> None:
    got, after = await replying(Reply(200, "", (), pieces(b"ab", b"cde")), version="1.0")
    assert got.all("connection") == ["close"]
    assert got.body == b"abcde"
    assert after == b""


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, "", (), breaking()),
        Reply(200, "", (), breaking(), length=9),
        Reply(200, "", (), pieces(b"ab"), length=9),
        Reply(200, "", (), pieces(b"ab", b"cd"), length=3),
    ],
)
async def test_an_answer_that_breaks_off_never_looks_whole(reply: Reply) -> None:
    told: list[bool] = []
    reply.delivered = told.append

    async def handle(arrival: Arrival) -> Reply:
        return reply

    async with open_door(handle) as door, RawClient(door.port) as client:
        await client.send("GET http://a.test/ HTTP/1.1\r\nHost: a\r\n\r\n")
        raw = await client.closed()
        assert not raw.endswith(b"0\r\n\r\n")
        _, _, body = raw.partition(b"\r\n\r\n")
        declared = b"Content-Length: 9" in raw or b"Content-Length: 3" in raw
        assert len(body) < 9 if declared else True
    assert told == [False]


async def test_events_reach_the_caller_one_by_one() -> None:
    go = asyncio.Event()

    async def events() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"data: %d\n\n" % number
            await go.wait()
            go.clear()

    async def handle(arrival: Arrival) -> Reply:
        return Reply(200, "", (("Content-Type", "text/event-stream"),), events())

    async with open_door(handle) as door, RawClient(door.port) as client:
        await client.send("GET http://a.test/ HTTP/1.1\r\nHost: a\r\n\r\n")
        await client.reader.readuntil(b"\r\n\r\n")
        for number in range(3):
            expected = b"9\r\ndata: %d\n\n\r\n" % number
            assert await client.reader.readexactly(len(expected)) == expected
            go.set()
        assert await client.reader.readexactly(5) == b"0\r\n\r\n"


async def test_a_caller_that_leaves_a_stream_ends_it() -> None:
    ended = asyncio.Event()
    told: list[bool] = []

    async def endless() -> AsyncIterator[bytes]:
        try:
            yield b"data\n\n"
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def handle(arrival: Arrival) -> Reply:
        return Reply(200, "", (), endless(), delivered=told.append)

    async with open_door(handle) as door:
        async with RawClient(door.port) as client:
            await client.send("GET http://a.test/ HTTP/1.1\r\nHost: a\r\n\r\n")
            await client.reader.readuntil(b"data")
        await ended.wait()
        while not told:
            await asyncio.sleep(0)
    assert told == [False]


async def test_a_caller_that_leaves_does_not_stop_the_engine(echo: Echo) -> None:
    started, go, told = asyncio.Event(), asyncio.Event(), asyncio.Event()
    heard: list[bool] = []

    def delivered(whole: bool) -> None:
        heard.append(whole)
        told.set()

    async def slow(arrival: Arrival) -> Reply:
        started.set()
        await go.wait()
        assert arrival.gone
        return Reply(200, "", (), Body.of(b"done"), delivered=delivered)

    async with open_door(slow) as door:
        async with RawClient(door.port) as client:
            await client.send("POST http://a.test/ HTTP/1.1\r\nHost: a\r\n\r\n")
            await started.wait()
        await asyncio.sleep(0.02)
        go.set()
        await told.wait()
    assert heard == [False]


async def test_a_caller_that_has_its_answer_is_told_of(client: RawClient, echo: Echo) -> None:
    await client.ask("GET http://a.test/ HTTP/1.1\r\nHost: a\r\n\r\n")
    assert echo.delivered == [True]


async def test_a_caller_that_does_not_read_is_cut_off() -> None:
    told = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536

    async def handle(arrival: Arrival) -> Reply:
        return Reply(200, "", (), endless(), delivered=lambda whole: told.set())

    async with open_door(handle, waits=Waits(write=0.1)) as door, RawClient(door.port) as client:
        client.writer.transport.pause_reading()
        await client.send("GET http://a.test/ HTTP/1.1\r\nHost: a\r\n\r\n")
        await told.wait()


# Connections


async def test_connections_go_on_and_pipelined_answers_come_in_order(client: RawClient) -> None:
    one = "GET http://a.test/1 HTTP/1.1\r\nHost: a\r\n\r\n"
    two = "POST http://a.test/2 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab"
    await client.send(one + two + one)
    assert [said(await client.answer())["target"] for _ in range(3)] == ["/1", "/2", "/1"]


@pytest.mark.parametrize(
    ("version", "field", "closes"),
    [
        ("1.1", "X: 1", False),
        ("1.1", "Connection: close", True),
        ("1.0", "X: 1", True),
        ("1.0", "Connection: keep-alive", False),
    ],
)
async def test_a_connection_ends_when_its_caller_says_so(
    client: RawClient, version: str, field: str, closes: bool
) -> None:
    request = f"GET http://a.test/ HTTP/{version}\r\nHost: a\r\n{field}\r\n\r\n"
    got = await client.ask(request)
    if closes:
        assert got.all("connection") == ["close"]
        assert await client.closed() == b""
    else:
        assert said(await client.ask(request))["target"] == "/"


async def test_a_silent_connection_is_closed() -> None:
    async with open_door(Echo(), waits=Waits(idle=0.05)) as door, RawClient(door.port) as client:
        assert await client.closed() == b""


async def test_an_upgrade_that_is_not_websocket_is_an_ordinary_call(
    client: RawClient, echo: Echo
) -> None:
    request = (
        "GET http://a.test/ HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        "Upgrade: {}\r\nHTTP2-Settings: x\r\n\r\n"
    )
    for token in ("h2c", "tcp"):
        assert said(await client.ask(request.format(token)))["headers"] == []
    assert [a.upgrade for a in echo.arrivals] == ["", ""]


async def test_running_calls_end_before_the_door_is_shut() -> None:
    started, go = asyncio.Event(), asyncio.Event()

    async def slow(arrival: Arrival) -> Reply:
        started.set()
        await go.wait()
        return Reply(200, "", (), Body.of(b"done"))

    door = FrontDoor(slow)
    await door.start("127.0.0.1", 0)
    async with RawClient(door.port) as client, RawClient(door.port) as idle:
        await client.send("POST http://a.test/ HTTP/1.1\r\nHost: a\r\n\r\n")
        await started.wait()
        stopping = asyncio.ensure_future(door.stop(5))
        assert await idle.closed() == b""
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", door.port)
        go.set()
        got = await client.answer()
        assert (got.body, got.all("connection")) == (b"done", ["close"])
        await stopping


async def test_a_call_that_does_not_end_is_cut_off_at_last() -> None:
    async def stuck(arrival: Arrival) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    door = FrontDoor(stuck)
    await door.start("127.0.0.1", 0)
    async with RawClient(door.port) as client:
        await client.send("POST http://a.test/ HTTP/1.1\r\nHost: a\r\n\r\n")
        await asyncio.sleep(0.02)
        await door.stop(0.05)
        assert await client.closed() == b""


async def test_an_engine_that_fails_never_says_that_nothing_was_sent() -> None:
    async def broken(arrival: Arrival) -> Reply:
        raise RuntimeError("secret")

    async with open_door(broken) as door, RawClient(door.port) as client:
        got = await client.ask("POST http://a.test/ HTTP/1.1\r\nHost: a\r\n\r\n")
        assert got.status == 424
        assert b"secret" not in got.body


# Through to a service


async def test_compressed_answers_pass_unchanged() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08"
    async with (
        RawServer(answering(answer)) as server,
        open_passing_door() as door,
        RawClient(door.port) as client,
    ):
        got = await client.ask(f"GET http://127.0.0.1:{server.port}/ HTTP/1.1\r\nHost: a\r\n\r\n")
        assert got.body == b"\x1f\x8b\x08"
        assert got.fields == [("Content-Encoding", "gzip"), ("Content-Length", "3")]


@pytest.mark.parametrize("framing", ["Content-Length: 5\r\n\r\nabcde", None])
async def test_a_streamed_upload_reaches_the_service(framing: str | None) -> None:
    rest = framing or "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"
    async with (
        RawServer() as server,
        open_passing_door(streamed=True) as door,
        RawClient(door.port) as client,
    ):
        got = await client.ask(
            f"POST http://127.0.0.1:{server.port}/ HTTP/1.1\r\nHost: a\r\n{rest}"
        )
        assert got.body == b"ok"
        assert server.requests[0].body == b"abcde"


async def test_a_websocket_is_relayed_with_its_early_frames() -> None:
    async def switch(received: Received, connection: Connection) -> None:
        await connection.send(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: x\r\n\r\nfrom the service"
        )
        await connection.send(await connection.reader.readexactly(15))
        await connection.reader.read()
        connection.close()

    async with (
        RawServer(switch) as server,
        open_passing_door() as door,
        RawClient(door.port) as client,
    ):
        got = await client.ask(
            f"GET http://127.0.0.1:{server.port}/chat HTTP/1.1\r\nHost: a\r\n"
            "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n"
            "from the caller"
        )
        assert got.status == 101
        assert got.fields == [
            ("Sec-WebSocket-Accept", "x"),
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
        ]
        assert await client.reader.readexactly(16) == b"from the service"
        assert await client.reader.readexactly(15) == b"from the caller"
        client.writer.write_eof()
        assert await client.closed() == b""
        assert server.requests[0].all("sec-websocket-key") == ["k"]


async def test_a_declined_websocket_is_an_ordinary_answer_and_the_connection_goes_on() -> None:
    async with (
        RawServer() as server,
        open_passing_door() as door,
        RawClient(door.port) as client,
    ):
        request = (
            f"GET http://127.0.0.1:{server.port}/ HTTP/1.1\r\nHost: a\r\n"
            "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        )
        await client.send(request + request)
        assert (await client.answer()).body == b"ok"
        assert (await client.answer()).body == b"ok"


async def test_two_callers_never_share_cookies() -> None:
    answer = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nContent-Length: 0\r\n\r\n"
    async with RawServer(answering(answer)) as server, open_passing_door() as door:
        for _ in range(2):
            async with RawClient(door.port) as client:
                await client.ask(f"GET http://127.0.0.1:{server.port}/ HTTP/1.1\r\nHost: a\r\n\r\n")
        assert [r.all("cookie") for r in server.requests] == [[], []]
