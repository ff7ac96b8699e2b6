"""One call by every way into the proxy, and by every way of naming run and step: one operation.

The whole proxy, a real ledger, an API that counts what arrives, over http and over https.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.clients.certificates import make
from tests.fakes.rawclient import Got, RawClient
from tests.fakes.rawserver import Connection, RawServer, Received
from tests.fakes.whole import Door, outcome, whole

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
KEY = "case:7/step%20one/things.create/v1"
BODY = b'{"amount": 4200, "note": "caf\xc3\xa9"}'
BASIC = base64.b64encode(b"case%3A7:step%20one").decode()
NAMES = {  # how run and step are named where the way has fields
    "credential": [f"Proxy-Authorization: Basic {BASIC}"],
    "headers": ["X-Run-Id: case%3A7", "X-Step-Id: step%20one"],
    "baggage": ["baggage: run.id=case%3A7,step.id=step%20one"],
}
PATH = "/as/case%3A7/step%20one"


async def made(received: Received, connection: Connection) -> None:
    answer = json.dumps({"id": f"th_{connection.number}"}).encode()
    head = f"HTTP/1.1 201 Created\r\nContent-Length: {len(answer)}\r\n"
    await connection.send(f"{head}Content-Type: application/json\r\n\r\n".encode() + answer)


@asynccontextmanager
async def world(folder: Path, scheme: str) -> AsyncIterator[tuple[RawServer, Door, str]]:
    ca_file, certificate = make(folder)
    tls = None
    if scheme == "https":
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
    async with RawServer(made, tls) as server:
        host = f"localhost:{server.port}"
        rules = RULES.replace("{port}", str(server.port))
        async with whole(folder, rules, upstream={"ca_file": str(ca_file)}) as door:
            yield server, door, host


def call(target: str, host: str, *fields: str) -> bytes:
    lines = [
        f"POST {target} HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        f"Content-Length: {len(BODY)}",
        *fields,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + BODY


async def by_absolute(door: Door, scheme: str, host: str, named: str) -> Got:
    async with RawClient(door.port) as client:
        return await client.ask(call(f"{scheme}://{host}/v1/things", host, *NAMES[named]))


async def by_tunnel(door: Door, scheme: str, host: str, named: str) -> Got:
    """With http the tunnel carries plain HTTP, as undici's does; https is opened with the CA."""
    inside = [] if named == "credential" else NAMES[named]
    outside = NAMES[named] if named == "credential" else []
    async with RawClient(door.port) as client:
        connect = [f"CONNECT {host} HTTP/1.1", f"Host: {host}", *outside, "", ""]
        assert (await client.ask("\r\n".join(connect), method="HEAD")).status == 200
        if scheme == "https":
            ca = door.state_dir / "ca" / "ca.pem"
            await client.start_tls(ssl.create_default_context(cafile=str(ca)), "localhost")
        return await client.ask(call("/v1/things", host, *inside))


async def by_gateway(door: Door, scheme: str, host: str, named: str) -> Got:
    who, fields = (PATH, []) if named == "path" else ("", NAMES[named])
    async with RawClient(door.port) as client:
        own = f"127.0.0.1:{door.port}"
        return await client.ask(call(f"{who}/via/{scheme}/{host}/v1/things", own, *fields))


Way = Callable[[Door, str, str, str], Awaitable[Got]]
WAYS: list[tuple[Way, str]] = [
    *((by_absolute, named) for named in NAMES),
    *((by_tunnel, named) for named in NAMES),
    *((by_gateway, named) for named in ("headers", "baggage", "path")),
]


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_every_way_and_every_name_is_the_same_operation(scheme: str, tmp_path: Path) -> None:
    async with world(tmp_path, scheme) as (server, door, host):
        answers = [await way(door, scheme, host, named) for way, named in WAYS]
        assert len(server.requests) == 1
        assert [answer.status for answer in answers] == [201] * len(WAYS)
        assert len({answer.body for answer in answers}) == 1
        assert [answer.all("onceproxy-operation") for answer in answers] == [[KEY]] * len(WAYS)
        assert [outcome(answer) for answer in answers] == ["sent"] + ["replayed"] * (len(WAYS) - 1)
        [arrived] = server.requests
        assert arrived.target == "/v1/things"
        assert arrived.body == BODY
        for name in ("proxy-authorization", "x-run-id", "x-step-id", "baggage"):
            assert arrived.all(name) == []


@pytest.mark.parametrize(("way", "named"), [(by_tunnel, "credential"), (by_gateway, "path")])
async def test_whichever_way_comes_first_names_it_alike(
    way: Way, named: str, tmp_path: Path
) -> None:
    async with world(tmp_path, "https") as (server, door, host):
        sent = await way(door, "https", host, named)
        again = await by_absolute(door, "https", host, "headers")
        assert len(server.requests) == 1
        assert sent.all("onceproxy-operation") == [KEY]
        assert (outcome(sent), outcome(again), again.body) == ("sent", "replayed", sent.body)
