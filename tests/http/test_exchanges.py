"""Duties of a forward proxy that take more than one message, by every way into the proxy."""

from __future__ import annotations

import asyncio
import errno
import ssl
import tempfile

import pytest

from tests.fakes.door import open_passing_door
from tests.fakes.rawclient import RawClient
from tests.fakes.rawserver import OK, Connection, RawServer, Received, answering
from tests.fakes.whole import assert_refused, outcome
from tests.http.world import GATEWAY, PROXY, TUNNEL, WAIT, World, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

GET = "GET {/x} HTTP/1.1\r\nHost: {host}\r\n"
PIECES = 5


def write(step: str, *fields: str, body: str = "{}", kind: str = "keyed") -> str:
    """A governed write."""
    size = (
        () if any(f.startswith("Transfer-") for f in fields) else (f"Content-Length: {len(body)}",)
    )
    own = ("X-Run-Id: exchanges", f"X-Step-Id: {step}", "Content-Type: application/json")
    head = (f"POST {{/v1/{kind}/{step}}} HTTP/1.1", "Host: {host}", *own, *size, *fields, "", "")
    return "\r\n".join(head) + body


class Served:
    """A service that sends a piece of its answer each time the test says so."""

    def __init__(self, head: bytes, end: bytes = b"0\r\n\r\n") -> None:
        self.head, self.end = head, end
        self.go: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def __call__(self, received: Received, connection: Connection) -> None:
        await connection.send(self.head)
        while (piece := await self.go.get()) is not None:
            await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        if self.end:
            await connection.send(self.end)
        else:
            connection.reset()


EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


async def flow(service: Served, client: RawClient, piece: bytes) -> None:
    """Has the service send ``piece``, and returns when the caller has it although the answer goes
    on. A recorded answer runs a piece behind, since its last one waits for the record: so others
    follow, until it is there."""
    service.go.put_nowait(piece)
    got = b""
    async with asyncio.timeout(WAIT):
        while piece not in got:
            try:
                async with asyncio.timeout(0.05):
                    got += await client.reader.read(1 << 16)
            except TimeoutError:
                service.go.put_nowait(b": more\n\n")


@pytest.mark.duty("A-8")
async def test_a_connect_is_answered_by_its_line_and_nothing_else(w: World) -> None:
    async with RawClient(w.door.port) as client:
        await client.send(f"CONNECT {w.host(PROXY)} HTTP/1.1\r\nHost: {w.host(PROXY)}\r\n\r\n")
        expected = b"HTTP/1.1 200 Connection established\r\n\r\n"
        assert await client.reader.readexactly(len(expected)) == expected
        await client.send("GET /x HTTP/1.1\r\nHost: " + w.host(PROXY) + "\r\n\r\n")
        assert (await client.answer()).body == b"ok"


@pytest.mark.duty("A-12", "C-4")
@pytest.mark.parametrize("kind", ["passing", "keyed"])
async def test_a_caller_that_waits_for_100_gets_it_and_the_service_is_not_asked_for_it(
    w: World, way: str, kind: str
) -> None:
    expect = "Expect: 100-continue"
    body = '{"n": 1}'
    if kind == "passing":
        head = f"POST {{/x}} HTTP/1.1\r\nHost: {{host}}\r\n{expect}\r\nContent-Length: 8\r\n\r\n"
    else:
        head = write(f"expect-{way}", expect, body=body).removesuffix(body)
    async with w.client(way) as client, asyncio.timeout(WAIT):
        await client.send(w.fill(way, head))
        assert (await client.answer()).status == 100
        got = await client.ask(body)
        assert (got.status, got.body) == (200, b"ok")
    assert len(w.arrived) == 1
    assert w.arrived[0].all("expect") == []
    assert w.arrived[0].body == body.encode()


@pytest.mark.duty("C-5")
async def test_a_100_of_the_service_is_not_its_answer(w: World, way: str) -> None:
    w.answers(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)
    got = await w.ask(way, write(f"interim-{way}"))
    assert (got.status, got.body, len(w.arrived)) == (200, b"ok", 1)


@pytest.mark.duty("A-13")
async def test_a_retry_in_another_framing_is_the_same_call(w: World, way: str) -> None:
    chunks = "1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
    async with w.client(way) as client, asyncio.timeout(WAIT):
        sized = await client.ask(w.fill(way, write(f"framing-{way}")))
        raw = write(f"framing-{way}", "Transfer-Encoding: chunked", body=chunks)
        chunked = await client.ask(w.fill(way, raw))
    assert len(w.arrived) == 1
    assert (outcome(sized), outcome(chunked)) == ("sent", "replayed")


@pytest.mark.duty("A-16", "C-1", "C-3")
@pytest.mark.parametrize("kind", ["passing", "keyed"])
async def test_events_reach_the_caller_one_by_one(w: World, way: str, kind: str) -> None:
    service = Served(EVENTS)
    w.answers(service)
    raw = GET + "\r\n" if kind == "passing" else write(f"events-{way}")
    async with w.client(way) as client:
        await client.send(w.fill(way, raw))
        for number in range(PIECES):
            await flow(service, client, b"data: %d\n\n" % number)
        service.go.put_nowait(None)
        async with asyncio.timeout(WAIT):
            await client.reader.readuntil(b"0\r\n\r\n")
    assert len(w.arrived) == 1


@pytest.mark.duty("A-16", "C-2")
async def test_a_streamed_answer_is_in_the_ledger_too(w: World, way: str) -> None:
    service = Served(EVENTS)
    w.answers(service)
    for number in range(PIECES):
        service.go.put_nowait(b"data: %d\n\n" % number)
    service.go.put_nowait(None)
    first = await w.ask(way, write(f"kept-{way}"))
    again = await w.ask(way, write(f"kept-{way}"))
    assert len(w.arrived) == 1
    assert first.body == again.body == b"".join(b"data: %d\n\n" % n for n in range(PIECES))
    assert outcome(again) == "replayed"
    assert again.all("content-type") == ["text/event-stream"]


@pytest.mark.duty("A-16", "A-29")
async def test_a_stream_that_is_cut_never_looks_whole_and_is_never_replayed_as_whole(
    w: World, way: str
) -> None:
    service = Served(EVENTS, end=b"")
    w.answers(service)
    async with w.client(way) as client:
        await client.send(w.fill(way, write(f"cut-{way}", kind="bare")))
        await flow(service, client, b"data: 1\n\n")
        async with asyncio.timeout(WAIT):
            service.go.put_nowait(None)
            assert not (await client.closed()).endswith(b"0\r\n\r\n")
    again = await w.ask(way, write(f"cut-{way}", kind="bare"))
    assert len(w.arrived) == 1
    assert again.status >= 400


@pytest.mark.duty("A-29")
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n9\r\nc",
    ],
    ids=["sized", "chunked"],
)
async def test_a_short_answer_is_cut_off_at_the_caller_too(
    w: World, way: str, answer: bytes
) -> None:
    async def short(received: Received, connection: Connection) -> None:
        await connection.send(answer)
        connection.close()

    w.answers(short)
    async with w.client(way) as client, asyncio.timeout(WAIT):
        await client.send(w.fill(way, GET + "\r\n"))
        raw = await client.closed()
    _, _, body = raw.partition(b"\r\n\r\n")
    assert len(body) < 9
    assert b"\r\n0\r\n\r\n" not in body


@pytest.mark.duty("A-19")
async def test_a_write_sent_twice_in_one_segment_is_one_effect(w: World, way: str) -> None:
    raw = w.fill(way, write(f"ahead-{way}"))
    async with w.client(way) as client, asyncio.timeout(WAIT):
        await client.send(raw + w.fill(way, GET + "\r\n") + raw)
        answers = [await client.answer() for _ in range(3)]
    assert [received.method for received in w.arrived] == ["POST", "GET"]
    assert [got.body for got in answers] == [b"ok"] * 3
    assert [outcome(answers[0]), outcome(answers[2])] == ["sent", "replayed"]


UPGRADE = GET + "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n"
SWITCHED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: x\r\n\r\n"
)


@pytest.mark.duty("A-20", "C-11", "C-12")
async def test_a_websocket_keeps_the_frames_that_come_with_its_answer(w: World, way: str) -> None:
    async def switch(received: Received, connection: Connection) -> None:
        await connection.send(SWITCHED + b"early")
        await connection.send(await connection.reader.readexactly(5))
        await connection.reader.read()
        connection.close()

    w.answers(switch)
    async with w.client(way) as client, asyncio.timeout(WAIT):
        got = await client.ask(w.fill(way, UPGRADE + "\r\n") + b"frame")
        assert got.status == 101
        assert got.all("sec-websocket-accept") == ["x"]
        assert await client.reader.readexactly(10) == b"earlyframe"
    [arrived] = w.arrived
    assert arrived.all("upgrade") == ["websocket"]
    assert arrived.all("connection") == ["Upgrade"]
    assert arrived.all("sec-websocket-key") == ["k"]


@pytest.mark.duty("A-20", "C-14")
@pytest.mark.parametrize("answer", [SWITCHED, OK], ids=["switched", "ordinary"])
async def test_a_head_comes_in_one_tls_record(w: World, answer: bytes) -> None:
    async def script(received: Received, connection: Connection) -> None:
        await connection.send(answer)
        if answer is SWITCHED:
            await connection.reader.read()

    w.answers(script)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    host = w.host(TUNNEL)
    tls = w.trust.wrap_bio(incoming, outgoing, server_hostname="localhost")
    async with RawClient(w.door.port) as client, asyncio.timeout(WAIT):
        await client.ask(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n", method="HEAD")
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await client.send(outgoing.read())
                incoming.write(await client.reader.read(1 << 16))
        tls.write(w.fill(TUNNEL, UPGRADE + "\r\n"))
        await client.send(outgoing.read())
        plain = b""
        while not plain:  # session tickets come in records of their own
            incoming.write(await record(client))
            try:
                plain = tls.read(1 << 16)
            except ssl.SSLWantReadError:
                continue
        assert b"\r\n\r\n" in plain


async def record(client: RawClient) -> bytes:
    """One TLS record."""
    head = await client.reader.readexactly(5)
    return head + await client.reader.readexactly(int.from_bytes(head[3:], "big"))


@pytest.mark.duty("A-31", "C-28", "C-29")
async def test_a_caller_that_leaves_finds_its_outcome_when_it_comes_back(
    w: World, way: str
) -> None:
    go = asyncio.Event()

    async def slow(received: Received, connection: Connection) -> None:
        await go.wait()
        await connection.send(OK)

    w.answers(slow)
    async with w.client(way) as client:
        await client.send(w.fill(way, write(f"leaves-{way}", kind="bare")))
        await until(lambda: len(w.arrived) == 1)
        client.writer.transport.abort()
    running = await w.door.operation(f"exchanges/leaves-{way}/things.bare/v1")
    assert running["state"] == "in_flight"  # nobody waits for it, and it shows
    go.set()
    again = await w.ask(way, write(f"leaves-{way}", kind="bare"))
    assert (again.status, again.body) == (200, b"ok")
    assert outcome(again) in ("replayed", "coalesced")
    assert len(w.arrived) == 1


@pytest.mark.duty("A-32")
async def test_no_connection_is_told_apart_from_no_answer(w: World) -> None:
    async def silent(received: Received, connection: Connection) -> None:
        await connection.reader.read()

    async with RawServer() as gone:
        port = gone.port
    raw = write("refused", kind="bare").replace("{/v1", f"http://localhost:{port}/v1")
    raw = raw.replace("refused} HTTP", "refused HTTP")
    got = await w.ask(PROXY, raw)
    assert (got.status, got.all("x-should-retry")) == (403, ["false"])  # no rule names that port
    w.answers(silent)
    got = await w.ask(PROXY, write("silent", kind="bare"))
    assert (got.status, got.all("x-should-retry")) == (424, ["false"])
    assert len(w.arrived) == 1


@pytest.mark.duty("A-33", "C-34")
@pytest.mark.parametrize("at", [PROXY, GATEWAY])
@pytest.mark.parametrize("kind", ["passing", "bare"])
async def test_a_caller_that_sends_no_more_still_gets_its_answer(
    w: World, at: str, kind: str
) -> None:
    go = asyncio.Event()

    async def slow(received: Received, connection: Connection) -> None:
        await go.wait()
        await connection.send(OK)

    w.answers(slow)
    raw = GET + "\r\n" if kind == "passing" else write(f"half-{at}", kind="bare")
    async with w.client(at) as client, asyncio.timeout(WAIT):
        await client.send(w.fill(at, raw))
        client.writer.write_eof()
        await until(lambda: len(w.arrived) == 1)
        go.set()
        assert (await client.answer()).body == b"ok"
        assert await client.closed() == b""


@pytest.mark.duty("A-33", "C-34")
async def test_a_tunnel_ends_each_direction_by_itself(w: World) -> None:
    async def after_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.read()
        writer.write(b"you said " + asked)
        writer.close()

    listener = await asyncio.start_server(after_the_end, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener, open_passing_door() as door, RawClient(door.port) as client:
        host = f"127.0.0.1:{port}"
        await client.ask(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n", method="HEAD")
        await client.send(b"\x00binary")
        client.writer.write_eof()
        async with asyncio.timeout(WAIT):
            assert await client.closed() == b"you said \x00binary"


@pytest.mark.duty("A-34")
async def test_an_ipv6_address_is_called_and_named_in_brackets() -> None:
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        await writer.drain()
        writer.close()

    try:
        listener = await asyncio.start_server(answer, "::1", 0)
    except OSError:
        pytest.skip("this machine has no IPv6")
    port = listener.sockets[0].getsockname()[1]
    async with listener, open_passing_door() as door, RawClient(door.port) as client:
        got = await client.ask(f"GET http://[0:0::1]:{port}/x HTTP/1.1\r\nHost: evil\r\n\r\n")
        assert got.body == b"ok"
    assert b"Host: [::1]:%d\r\n" % port in seen[0]


@pytest.mark.duty("A-35")
async def test_one_host_spelled_in_three_ways_is_one_operation(w: World) -> None:
    raw = write("spelling").replace("{/v1/keyed/spelling}", "{}")
    port = w.plain.port
    targets = [f"http://localhost:{port}", f"HTTP://LocalHost:{port}", f"http://localhost.:{port}"]
    answers = [await w.ask(PROXY, raw.replace("{}", f"{t}/v1/keyed/s", 1)) for t in targets]
    assert len(w.arrived) == 1
    assert [outcome(got) for got in answers] == ["sent", "replayed", "replayed"]
    assert len({got.all("onceproxy-operation")[0] for got in answers}) == 1


async def test_a_body_for_which_there_is_no_disk_is_refused_before_anything_is_sent(
    w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    raw = write("no-disk", body='"' + "x" * (3 << 20) + '"')
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "TemporaryFile", full)
        got = await w.ask(PROXY, raw)
    assert w.arrived == []
    assert_refused(got, 503, "too-busy", "Nothing was sent")
    assert outcome(await w.ask(PROXY, raw)) == "sent"
    assert len(w.arrived) == 1


@pytest.mark.duty("C-27")
@pytest.mark.parametrize("size", [1, 5 << 20])
async def test_what_is_sent_again_is_the_same_to_the_byte(w: World, size: int) -> None:
    async def lost_once(received: Received, connection: Connection) -> None:
        if len(w.arrived) == 1:
            connection.reset()
        else:
            await connection.send(OK)

    w.answers(lost_once)
    body = '"' + "x" * size + '"'
    got = await w.ask(PROXY, write(f"again-{size}", body=body))
    first, second = w.arrived
    assert first.body == second.body == body.encode()
    key = f"exchanges/again-{size}/things.keyed/v1"
    assert first.all("idempotency-key") == second.all("idempotency-key") == [key]
    assert (got.status, got.body) == (200, b"ok")


HALF = b"HTTP/1.1 200 OK\r\nContent-Le"
MOMENTS = {  # what the service has sent when it happens
    "before-head": b"",
    "mid-head": HALF,
    "mid-body": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab",
    "after-body": OK,
}


@pytest.mark.duty("C-37")
@pytest.mark.parametrize("kind", ["passing", "bare"])
@pytest.mark.parametrize("how", ["reset", "end", "stall"])
async def test_however_a_service_fails_a_part_is_never_a_whole(
    w: World, how: str, kind: str
) -> None:
    async def failing(received: Received, connection: Connection) -> None:
        said = next(m for m in MOMENTS if f"/{m}" in received.target)
        await connection.send(MOMENTS[said])
        if how == "reset":
            connection.reset()
        elif how == "end":
            connection.close()
        elif said != "after-body":
            await connection.reader.read()

    async def one(moment: str) -> bytes:
        raw = write(f"{moment}-{how}", kind="bare")
        if kind == "passing":
            raw = f"GET {{/{moment}}} HTTP/1.1\r\nHost: {{host}}\r\n\r\n"
        raw = raw.replace("Host", "Connection: close\r\nHost", 1)
        async with w.client(PROXY) as client:
            await client.send(w.fill(PROXY, raw))
            return await client.closed()

    w.answers(failing)
    async with asyncio.timeout(2 * WAIT):
        answers = dict(zip(MOMENTS, await asyncio.gather(*map(one, MOMENTS)), strict=True))
    assert len(w.arrived) == len(MOMENTS)
    for moment, answer in answers.items():
        status, body = answer[9:12], answer.partition(b"\r\n\r\n")[2]
        if moment == "after-body":
            assert (status, body) == (b"200", b"ok"), answer
        elif moment == "mid-body" and kind == "passing":
            assert (status, body) == (b"200", b"ab"), answer  # of nine
        else:
            assert status in (b"409", b"424", b"502"), answer


@pytest.mark.duty("C-15")
async def test_a_body_that_ends_with_its_connection_is_framed_for_the_caller(
    w: World, way: str
) -> None:
    async def until_the_end(received: Received, connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\n\r\nabc")
        connection.close()

    w.answers(until_the_end)
    async with w.client(way) as client, asyncio.timeout(WAIT):
        got = await client.ask(w.fill(way, GET + "\r\n"))
        assert (got.body, got.all("transfer-encoding")) == (b"abc", ["chunked"])
        w.answers(answering(OK))
        assert (await client.ask(w.fill(way, GET + "\r\n"))).body == b"ok"


@pytest.mark.duty("C-7", "C-17", "C-18")
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\nLocation: /1\r\nContent-Type: a/b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Type: a/b\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ],
    ids=["empty", "sized", "chunked", "204"],
)
async def test_a_replay_is_what_the_first_caller_got(
    w: World, way: str, answer: bytes, request: pytest.FixtureRequest
) -> None:
    w.answers(answer)
    raw = write(request.node.callspec.id)
    first, again = [await w.ask(way, raw) for _ in range(2)]
    assert len(w.arrived) == 1
    assert (first.status, first.body) == (again.status, again.body)
    added = {"onceproxy-outcome", "idempotent-replayed", "onceproxy-recorded-at"}
    fields = [
        [pair for pair in got.fields if pair[0].lower() not in added] for got in (first, again)
    ]
    assert sorted(fields[0]) == sorted(fields[1])
    for got in (first, again):
        framing = got.all("content-length") + got.all("transfer-encoding")
        assert len(framing) == (0 if got.status == 204 else 1)
