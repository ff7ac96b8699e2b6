"""R19: an answer comes back from the ledger as it was, after a restart too. What flows without end
is never answered from there.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest

from tests.fakes.rawclient import Got, RawClient
from tests.fakes.rawserver import Connection, RawServer, Received
from tests.fakes.whole import Door, whole
from tests.reliability import figure

RULES = """
service: raw
hosts: ["127.0.0.1:{port}"]
source: tests/fakes/rawserver.py
confidence: documented
checked: "2026-11-30"
key: none
answers:
  - {{status: 304, means: succeeded}}
endpoints:
  things.create:
    match: "POST /{{kind}}"
"""


def sized(body: bytes, *fields: str, status: str = "200 OK") -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields, "", ""]
    return "\r\n".join(head).encode() + body


def chunked(*parts: bytes, trailers: bytes = b"") -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
    return head + body + b"0\r\n" + trailers + b"\r\n"


def noise(size: int) -> bytes:
    return hashlib.shake_128(b"seed").digest(size)


ANSWERS = {
    "one": sized(b"x"),
    "short": sized(b'{"id": "a"}', "Content-Type: application/json", 'ETag: "1"'),
    "kilobytes": sized(noise(70_000), "Content-Type: application/octet-stream"),
    "ten-megabytes": sized(noise(10_000_000)),
    "chunked": chunked(b"one ", b"two ", noise(5000)),
    "trailers": chunked(b"one", trailers=b"X-Sum: 1\r\n"),
    "gzip": sized(gzip.compress(noise(3000)), "Content-Encoding: gzip"),
    "empty": sized(b"", status="201 Created"),
    "nothing": b'HTTP/1.1 204 No Content\r\nETag: "2"\r\n\r\n',
    "unmodified": b'HTTP/1.1 304 Not Modified\r\nETag: "3"\r\n\r\n',
    "latin": sized(b"\xe4\xff\x00", "Content-Type: text/plain; charset=latin-1"),
    "cookie": sized(b"x", "Set-Cookie: a=b", "Date: Mon, 30 Nov 2026 00:00:00 GMT"),
}
KEPT = ("content-type", "content-encoding", "etag")
STREAM = sized(b"data: 1\n\n", "Content-Type: text/event-stream")
SWITCHED = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)


async def serve(received: Received, connection: Connection) -> None:
    name = received.target.rpartition("/")[2]
    if name == "events":
        await connection.send(STREAM)
    elif name == "socket":
        await connection.send(SWITCHED)
        connection.close()
    else:
        await connection.send(ANSWERS[name])


async def ask(door: Door, url: str) -> Got:
    return await door.call(url, {"n": 1}, step=url.rpartition("/")[2])


async def test_r19_a_replay_is_byte_equal_after_a_restart(tmp_path: Path) -> None:
    async with RawServer(serve) as service:
        rules = RULES.format(port=service.port)
        url = f"http://127.0.0.1:{service.port}"
        async with whole(tmp_path, rules) as door:
            first = {name: await ask(door, f"{url}/{name}") for name in ANSWERS}
            same_life = {name: await ask(door, f"{url}/{name}") for name in ANSWERS}
        async with whole(tmp_path, rules) as door:
            later = {name: await ask(door, f"{url}/{name}") for name in ANSWERS}
        assert len(service.requests) == len(ANSWERS)
    for name, got in first.items():
        assert got.all("onceproxy-outcome") == ["sent"], name
        for again in (same_life[name], later[name]):
            assert again.all("onceproxy-outcome") == ["replayed"], name
            assert (again.status, again.body) == (got.status, got.body), name
            assert [again.all(field) for field in KEPT] == [got.all(field) for field in KEPT], name
            assert again.all("set-cookie") == [], name
    assert first["cookie"].all("set-cookie") == ["a=b"]
    assert first["ten-megabytes"].body == noise(10_000_000)
    figure("R19", "replays after a restart, 1 B to 10 MB", answers=len(ANSWERS), different=0)


@pytest.mark.parametrize("kind", ["events", "socket"])
async def test_r19_event_streams_and_websockets_are_never_answered_from_the_ledger(
    tmp_path: Path, kind: str
) -> None:
    async with RawServer(serve) as service:
        at = f"127.0.0.1:{service.port}"
        upgrade = (
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        )
        fields = upgrade if kind == "socket" else ""
        async with whole(tmp_path, RULES.format(port=service.port)) as door:
            for _ in range(2):
                async with RawClient(door.port) as client:
                    head = f"GET http://{at}/{kind} HTTP/1.1\r\nHost: {at}\r\n{fields}\r\n"
                    got = await client.ask(head)
                assert got.status == (101 if kind == "socket" else 200)
                assert got.all("onceproxy-outcome") == got.all("idempotent-replayed") == []
            _, listed = await door.ask("GET", "/v1/operations")
        assert len(service.requests) == 2
    assert listed["operations"] == []
    figure("R19", f"{kind}: never answered from the ledger", calls=2, answered_from_ledger=0)
