"""The way out: one request on the wire per send, byte for byte, and whether it left."""

from __future__ import annotations

import asyncio
import base64
import gc
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from proxy.core.model import EMPTY, Body, Lost, NotSent, Request
from proxy.net.exchange import BrokenOff, Incomplete
from proxy.net.spool import Collector
from proxy.net.tls import CertificateAuthority
from proxy.net.upstream import Opened, Upstream
from tests.fakes.rawserver import (
    Connection,
    RawServer,
    Received,
    answer_ok,
    answering,
    close_without_answer,
)

METHODS = ["GET", "HEAD", "OPTIONS", "TRACE", "POST", "PUT", "PATCH", "DELETE", "PROPFIND"]


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream(connect_timeout=5, answer_timeout=5, idle_timeout=5)
    await upstream.start()
    yield upstream
    await upstream.close()


def call(
    server: RawServer,
    method: str = "POST",
    target: str = "/",
    headers: tuple[tuple[str, str], ...] = (),
    body: Body = EMPTY,
    scheme: str = "http",
    host: str = "127.0.0.1",
) -> Request:
    return Request(method, scheme, host, server.port, target, headers, body)


async def whole(opened: NotSent | Lost | Opened) -> bytes:
    assert isinstance(opened, Opened)
    body, complete = await opened.read(1 << 30)
    assert complete
    assert body is not None
    return body.data if body.data is not None else b"".join(body.spool.chunks())


async def drain(opened: Opened, into: list[bytes]) -> None:
    async for chunk in opened.chunks():
        into.append(chunk)


# One request on the wire


@pytest.mark.duty("C-25")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fresh", [True, False])
async def test_a_service_that_reads_and_closes_gets_the_request_once_on_a_first_connection(
    upstream: Upstream, method: str, fresh: bool
) -> None:
    async with RawServer(close_without_answer) as server:
        result = await upstream.open(call(server, method, body=Body.of(b"x")), fresh=fresh)
        assert isinstance(result, Lost)
        assert len(server.requests) == 1


@pytest.mark.duty("C-25")
@pytest.mark.parametrize("method", METHODS)
async def test_a_service_that_reads_and_closes_gets_the_request_once_on_a_reused_connection(
    upstream: Upstream, method: str
) -> None:
    async def answer_first_only(received: Received, connection: Connection) -> None:
        if len(server.requests) == 1:
            await answer_ok(received, connection)
        else:
            connection.close()

    async with RawServer(answer_first_only) as server:
        assert await whole(await upstream.open(call(server))) == b"ok"
        result = await upstream.open(call(server, method))
        assert isinstance(result, Lost)
        assert [r.connection for r in server.requests] == [1, 1]


@pytest.mark.duty("C-26")
@pytest.mark.parametrize("method", METHODS)
async def test_a_reset_after_the_request_is_lost_and_not_sent_again(
    upstream: Upstream, method: str
) -> None:
    async def reset(received: Received, connection: Connection) -> None:
        connection.reset()

    async with RawServer(reset) as server:
        result = await upstream.open(call(server, method))
        assert isinstance(result, Lost)
        assert len(server.requests) == 1


async def test_connections_are_reused_and_fresh_ones_are_not(upstream: Upstream) -> None:
    async with RawServer() as server:
        for fresh in (False, False, True, True, False):
            await whole(await upstream.open(call(server), fresh=fresh))
        assert [r.connection for r in server.requests] == [1, 1, 2, 3, 1]
        assert server.requests[2].all("connection") == ["close"]


async def test_an_answer_that_nobody_asked_for_is_not_the_next_ones(upstream: Upstream) -> None:
    kept: list[Connection] = []

    async def keep(received: Received, connection: Connection) -> None:
        kept.append(connection)
        await answer_ok(received, connection)

    async with RawServer(keep) as server, RawServer() as other:
        await whole(await upstream.open(call(server)))
        await kept[0].send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray")
        await whole(await upstream.open(call(other)))  # by then the stray one has come
        assert isinstance(await upstream.open(call(server)), NotSent)
        assert await whole(await upstream.open(call(server))) == b"ok"
        assert [r.connection for r in server.requests] == [1, 2]


async def test_a_spooled_body_is_sent_once_and_whole(upstream: Upstream, tmp_path: Path) -> None:
    collector = Collector(tmp_path)
    for _ in range(48):
        collector.add(bytes(range(256)) * 256)
    body = collector.finish()
    assert body.data is None
    assert list(tmp_path.iterdir()) == []  # the file has no name

    async with RawServer() as server:
        assert await whole(await upstream.open(call(server, body=body))) == b"ok"
        assert Body.of(server.requests[0].body).sha256 == body.sha256
        assert server.requests[0].all("content-length") == [str(body.size)]


# Not sent, or lost


@pytest.mark.duty("A-32")
async def test_a_refused_connection_is_not_sent(upstream: Upstream) -> None:
    async with RawServer() as server:
        pass  # its port is closed now
    result = await upstream.open(call(server))
    assert result == NotSent("the connection was refused")


async def test_a_name_that_does_not_resolve_is_not_sent(upstream: Upstream) -> None:
    result = await upstream.open(Request("POST", "http", "no-such-host.invalid", 80, "/", ()))
    assert isinstance(result, NotSent)


@pytest.mark.duty("A-50")
async def test_an_untrusted_certificate_is_not_sent(upstream: Upstream, tmp_path: Path) -> None:
    authority = CertificateAuthority.open(tmp_path / "ca")
    async with RawServer(tls=authority.context("127.0.0.1")) as server:
        result = await upstream.open(call(server, scheme="https"))
        assert isinstance(result, NotSent)
        assert "certificate was not accepted" in result.reason
        assert server.requests == []


async def test_a_service_that_speaks_no_tls_is_not_sent(upstream: Upstream) -> None:
    async def chatter(received: Received, connection: Connection) -> None: ...

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    result = await upstream.open(Request("POST", "https", "127.0.0.1", port, "/", ()))
    assert isinstance(result, NotSent)
    assert "TLS" in result.reason
    listener.close()


async def test_a_trusted_certificate_is_used(tmp_path: Path) -> None:
    authority = CertificateAuthority.open(tmp_path / "ca")
    upstream = Upstream(ca_file=tmp_path / "ca" / "ca.pem")
    await upstream.start()
    async with RawServer(tls=authority.context("127.0.0.1")) as server:
        assert await whole(await upstream.open(call(server, scheme="https"))) == b"ok"
        assert await whole(await upstream.open(call(server, scheme="https"))) == b"ok"
        assert server.connections == 1
        await upstream.close()


@pytest.mark.duty("A-32")
async def test_no_answer_in_time_is_lost(upstream: Upstream) -> None:
    async def silence(received: Received, connection: Connection) -> None: ...

    async with RawServer(silence) as server:
        result = await upstream.open(call(server), timeout=0.05)
        assert result == Lost("it did not answer in time")
        assert len(server.requests) == 1


async def test_a_request_that_would_break_its_framing_is_not_sent(upstream: Upstream) -> None:
    async with RawServer() as server:
        for headers in ((("X-A", "1\r\nX-B: 2"),), (("X-A", "1\n"),), (("X\0", "1"),)):
            assert isinstance(await upstream.open(call(server, headers=headers)), NotSent)
        for target in ("/a b", "/a\r\nX: 1", "/é"):
            assert isinstance(await upstream.open(call(server, target=target)), NotSent)
        assert server.connections == 0


async def test_a_callers_body_that_breaks_off_at_once_is_not_sent(upstream: Upstream) -> None:
    async def body() -> AsyncIterator[bytes]:
        raise Incomplete
        yield b""

    async with RawServer() as server:
        assert isinstance(await upstream.open(call(server), stream=body()), NotSent)
        assert server.connections == 0


async def test_a_callers_body_that_breaks_off_later_is_lost_and_never_looks_whole(
    upstream: Upstream,
) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"half"
        raise Incomplete

    async with RawServer() as server:
        assert isinstance(await upstream.open(call(server), stream=body()), Lost)
        assert server.requests == []


async def test_a_callers_body_of_another_length_than_declared_never_looks_whole(
    upstream: Upstream,
) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"four"

    async with RawServer() as server:
        for length in (3, 5):
            result = await upstream.open(call(server), stream=body(), length=length)
            assert isinstance(result, NotSent if length == 3 else Lost)
        assert server.requests == []


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX : 1\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 40,
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 2",
    ],
)
async def test_a_malformed_answer_is_lost(upstream: Upstream, answer: bytes) -> None:
    async def script(received: Received, connection: Connection) -> None:
        await connection.send(answer)
        connection.close()

    async with RawServer(script) as server:
        assert isinstance(await upstream.open(call(server)), Lost)
        assert len(server.requests) == 1


# Bytes


async def test_path_query_and_fields_go_out_byte_for_byte(upstream: Upstream) -> None:
    target = "/%7Ea/%2F..b%2fc/./x;p=%C3%A9?q=a+b%20c&z=%e2%9c%93&"
    headers = (
        ("X-A", "1"),
        ("x-a", "2"),
        ("aUTHorization", "Basic x"),
        ("X-A", "3"),
        ("X-Latin", b"caf\xe9".decode("utf-8", "surrogateescape")),
        ("X-Utf8", "é"),
    )
    async with RawServer() as server:
        await whole(await upstream.open(call(server, "GET", target, headers)))
        received = server.requests[0]
        assert received.target == target
        assert received.head.split(b"\r\n")[1:] == [
            b"Host: 127.0.0.1:%d" % server.port,
            b"X-A: 1",
            b"x-a: 2",
            b"aUTHorization: Basic x",
            b"X-A: 3",
            b"X-Latin: caf\xe9",
            b"X-Utf8: \xc3\xa9",
            b"Via: 1.1 onceproxy",
        ]


async def test_via_is_left_out_where_a_signature_covers_it_or_no_name_is_given() -> None:
    upstream = Upstream(pseudonym=None)
    await upstream.start()
    async with RawServer() as server:
        await whole(await upstream.open(call(server)))
        assert server.requests[0].all("via") == []
        await upstream.close()


async def test_a_streamed_body_keeps_its_framing(upstream: Upstream) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"ab"
        yield b"cde"

    async with RawServer() as server:
        await whole(await upstream.open(call(server), stream=body()))
        await whole(await upstream.open(call(server), stream=body(), length=5))
        chunked, sized = server.requests
        assert chunked.raw_body == b"2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"
        assert chunked.all("content-length") == []
        assert sized.raw_body == b"abcde"
        assert sized.all("transfer-encoding") == []


async def test_methods_with_a_body_by_nature_say_that_they_have_none(upstream: Upstream) -> None:
    async with RawServer() as server:
        for method in ("POST", "DELETE", "GET"):
            await whole(await upstream.open(call(server, method)))
        assert [r.all("content-length") for r in server.requests] == [["0"], [], []]


async def test_an_answer_keeps_its_fields_without_the_hop_by_hop_ones(upstream: Upstream) -> None:
    answer = (
        b"HTTP/1.1 402 Pay\xe9 now\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\nConnection: X-Hop\r\n"
        b"X-Hop: 1\r\nKeep-Alive: timeout=5\r\nX-Latin: \xe9\r\nContent-Encoding: gzip\r\n"
        b"Content-Length: 3\r\n\r\n\x1f\x8b\x08"
    )
    async with RawServer(answering(answer)) as server:
        opened = await upstream.open(call(server))
        assert isinstance(opened, Opened)
        assert opened.status == 402
        assert opened.headers == (
            ("Set-Cookie", "a=1"),
            ("set-cookie", "b=2"),
            ("X-Latin", "\udce9"),
            ("Content-Encoding", "gzip"),
        )
        assert opened.length == 3
        assert await whole(opened) == b"\x1f\x8b\x08"


async def test_interim_answers_are_not_taken_for_the_final_one(upstream: Upstream) -> None:
    answer = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    )
    async with RawServer(answering(answer)) as server:
        assert await whole(await upstream.open(call(server))) == b"ok"


@pytest.mark.parametrize(
    ("method", "answer", "length"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", 10),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", None),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n", 10),
    ],
)
async def test_answers_without_a_body_leave_the_connection_usable(
    upstream: Upstream, method: str, answer: bytes, length: int | None
) -> None:
    async with RawServer(answering(answer)) as server:
        for _ in range(2):
            opened = await upstream.open(call(server, method))
            assert isinstance(opened, Opened)
            assert opened.length == length
            assert await whole(opened) == b""


async def test_redirects_are_not_followed_and_cookies_are_not_kept(upstream: Upstream) -> None:
    answer = (
        b"HTTP/1.1 302 Found\r\nLocation: /other\r\nSet-Cookie: a=1\r\nContent-Length: 0\r\n\r\n"
    )
    async with RawServer(answering(answer)) as server:
        for _ in range(2):
            opened = await upstream.open(call(server, "GET"))
            assert isinstance(opened, Opened)
            assert opened.status == 302
            await whole(opened)
        assert [r.all("cookie") for r in server.requests] == [[], []]


# Bodies of answers


async def test_events_come_one_by_one(upstream: Upstream) -> None:
    go = asyncio.Event()

    async def events(received: Received, connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(3):
            await connection.send(b"8\r\ndata: 1\n\r\n")
            await go.wait()
            go.clear()
        await connection.send(b"0\r\n\r\n")

    async with RawServer(events) as server:
        opened = await upstream.open(call(server, "GET"))
        assert isinstance(opened, Opened)
        count = 0
        async for chunk in opened.chunks():
            assert chunk == b"data: 1\n"  # the next one is not even written yet
            count += 1
            go.set()
        assert count == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
    ],
)
@pytest.mark.parametrize("how", ["read", "chunks"])
@pytest.mark.parametrize("end", ["close", "reset"])
async def test_an_answer_that_breaks_off_is_not_complete(
    upstream: Upstream, answer: bytes, how: str, end: str
) -> None:
    async def script(received: Received, connection: Connection) -> None:
        await connection.send(answer)
        await asyncio.sleep(0.01)  # so that a reset does not overtake the bytes
        connection.close() if end == "close" else connection.reset()

    async with RawServer(script) as server:
        opened = await upstream.open(call(server))
        assert isinstance(opened, Opened)
        if how == "read":
            body, complete = await opened.read(100)
            assert not complete
            assert body is not None
            assert body.data == b"ab"
        else:
            got: list[bytes] = []
            with pytest.raises(BrokenOff):
                await drain(opened, got)
            assert b"".join(got) == b"ab"


async def test_an_answer_that_ends_with_its_connection_is_complete(upstream: Upstream) -> None:
    async def script(received: Received, connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        connection.close()

    async with RawServer(script) as server:
        assert await whole(await upstream.open(call(server))) == b"all of it"


@pytest.mark.parametrize("framing", ["sized", "chunked"])
async def test_an_answer_over_the_limit_can_still_be_streamed_whole(
    upstream: Upstream, framing: str
) -> None:
    data = bytes(range(256)) * 20_000
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data
    if framing == "chunked":
        answer = (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"%x\r\n%b\r\n" % (len(data), data)
            + b"0\r\n\r\n"
        )
    async with RawServer(answering(answer)) as server:
        opened = await upstream.open(call(server))
        assert isinstance(opened, Opened)
        body, _ = await opened.read(3_000_000)
        assert body is None
        assert b"".join([chunk async for chunk in opened.chunks()]) == data


async def test_an_answer_that_stops_in_the_middle_is_broken_off() -> None:
    upstream = Upstream(idle_timeout=0.05)
    await upstream.start()

    async def script(received: Received, connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab")

    async with RawServer(script) as server:
        opened = await upstream.open(call(server))
        assert isinstance(opened, Opened)
        _, complete = await opened.read(100)
        assert not complete
        await upstream.close()


async def test_an_answer_that_comes_before_the_whole_upload_is_given(upstream: Upstream) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(early, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    opened = await upstream.open(
        Request("PUT", "http", "127.0.0.1", port, "/", ()), stream=body(), length=10
    )
    assert isinstance(opened, Opened)
    assert opened.status == 413
    await whole(opened)
    listener.close()


async def test_a_cancelled_send_gives_its_connection_up(upstream: Upstream) -> None:
    async def silence(received: Received, connection: Connection) -> None: ...

    async with RawServer(silence) as server:
        task = asyncio.ensure_future(upstream.open(call(server)))
        await server.received(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gc.collect()  # an unclosed connection would warn, and warnings are errors


# Parent proxies and tunnels


@pytest.mark.duty("A-40")
async def test_a_parent_proxy_gets_absolute_form_and_its_own_credential() -> None:
    async with RawServer() as parent:
        upstream = Upstream(proxy=f"http://user:pass@127.0.0.1:{parent.port}")
        await upstream.start()
        for _ in range(2):
            request = Request("GET", "http", "service.test", 80, "/a?b=1", (("X-A", "1"),))
            assert await whole(await upstream.open(request)) == b"ok"
        received = parent.requests[1]
        assert received.target == "http://service.test/a?b=1"
        assert received.all("host") == ["service.test"]
        expected = base64.b64encode(b"user:pass").decode()
        assert received.all("proxy-authorization") == [f"Basic {expected}"]
        await upstream.close()


async def test_a_parent_proxy_that_refuses_a_tunnel_means_not_sent() -> None:
    refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    async with RawServer(answering(refusal)) as parent:
        upstream = Upstream(proxy=f"http://127.0.0.1:{parent.port}")
        await upstream.start()
        result = await upstream.open(Request("GET", "https", "service.test", 443, "/", ()))
        assert isinstance(result, NotSent)
        assert "407" in result.reason
        tunnel = await upstream.tunnel("service.test", 443)
        assert isinstance(tunnel, NotSent)
        assert "407" in tunnel.reason
        await upstream.close()


async def test_a_tunnel_through_a_parent_keeps_the_bytes_after_its_answer() -> None:
    answer = answering(b"HTTP/1.1 200 OK\r\n\r\nhello")
    async with RawServer(answer) as parent:
        upstream = Upstream(proxy=f"http://127.0.0.1:{parent.port}")
        await upstream.start()
        pipe = await upstream.tunnel("service.test", 443)
        assert not isinstance(pipe, NotSent)
        assert parent.requests[0].line == "CONNECT service.test:443 HTTP/1.1"
        assert await pipe.read() == b"hello"
        pipe.close()
        await upstream.close()


async def test_a_switched_protocol_keeps_the_bytes_after_its_answer(upstream: Upstream) -> None:
    async def switch(received: Received, connection: Connection) -> None:
        await connection.send(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: x\r\n\r\nfirst frame"
        )
        await connection.send(await connection.reader.read(4))

    async with RawServer(switch) as server:
        opened = await upstream.open(call(server, "GET"), upgrade="websocket")
        assert isinstance(opened, Opened)
        assert opened.status == 101
        assert opened.headers == (("Sec-WebSocket-Accept", "x"),)
        assert opened.pipe is not None
        assert await opened.pipe.read() == b"first frame"
        opened.pipe.write(b"ping")
        assert await opened.pipe.read() == b"ping"
        assert server.requests[0].all("upgrade") == ["websocket"]
        assert server.requests[0].all("connection") == ["Upgrade"]
        opened.pipe.close()


def test_the_system_roots_are_kept_when_a_file_is_added(tmp_path: Path) -> None:
    authority = CertificateAuthority.open(tmp_path / "ca")
    assert authority.certificate.not_valid_after_utc > datetime.now(UTC)
    before = len(ssl.create_default_context().get_ca_certs())
    context = Upstream(ca_file=tmp_path / "ca" / "ca.pem")._ssl
    assert len(context.get_ca_certs()) == before + 1
