"""Through a parent proxy that is a process of its own: absolute form, CONNECT, credentials, and the
roots that a company's network asks for.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import pytest

from tests.clients.certificates import make
from tests.fakes.parent import parent
from tests.fakes.rawclient import RawClient
from tests.fakes.rawserver import Connection as ServerConnection
from tests.fakes.rawserver import RawServer, Received
from tests.fakes.whole import Door, post, whole

RULES = """
service: company
hosts: ["{host}:{port}"]
source: https://docs.test
confidence: documented
key: {{in: header, name: Idempotency-Key, valid_for: 24h, keeps: all}}
endpoints:
  things.create: {{match: POST /things, external_id: id}}
"""


async def created(received: Received, connection: ServerConnection) -> None:
    body = b'{"id": "t1"}'
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


async def call(door: Door, url: str, ca: Path | None) -> tuple[int, bytes]:
    """A POST in absolute form for http, inside a tunnel for https."""
    if ca is None:
        got = await door.call(url, {"a": 1})
        return got.status, got.body
    where = url.split("/")[2]
    async with RawClient(door.port) as client:
        got = await client.ask(f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n", method="HEAD")
        assert got.status == 200
        context = ssl.create_default_context(cafile=str(ca))
        await client.start_tls(context, where.partition(":")[0])
        got = await client.ask(post(url, {"a": 1}, target="/things"))
        return got.status, got.body


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("credential", ["", "user:p%40ss word"])
async def test_a_write_goes_once_through_the_parent(
    tmp_path: Path, scheme: str, credential: str
) -> None:
    ca_file, server_file = make(tmp_path)
    context = None
    if scheme == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(server_file)
    async with RawServer(created, tls=context) as server:
        host = "localhost"
        with parent(credential.replace("%40", "@")) as above:
            at = f"{credential.replace(' ', '%20')}@" if credential else ""
            upstream = {"proxy": f"http://{at}127.0.0.1:{above.port}", "ca_file": str(ca_file)}
            rules = RULES.format(host=host, port=server.port)
            async with whole(tmp_path, rules, upstream=upstream) as door:
                ca = door.state_dir / "ca" / "ca.pem" if scheme == "https" else None
                url = f"{scheme}://{host}:{server.port}/things"
                for _ in range(2):
                    assert await call(door, url, ca) == (200, b'{"id": "t1"}')
            asked = await asyncio.to_thread(above.requests)
        where = f"{host}:{server.port}"
        expected = f"CONNECT {where} 200" if scheme == "https" else f"POST {url} 200"
        assert asked == [expected]
        [received] = server.requests
        assert received.all("proxy-authorization") == []
        assert len(received.all("idempotency-key")) == 1


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_parent_that_wants_another_credential_means_not_sent(
    tmp_path: Path, scheme: str
) -> None:
    async with RawServer(created) as server:
        with parent("user:right") as above:
            upstream = {"proxy": f"http://user:wr0ng@127.0.0.1:{above.port}"}
            rules = RULES.format(host="localhost", port=server.port)
            async with whole(tmp_path, rules, upstream=upstream, patience="0s") as door:
                ca = door.state_dir / "ca" / "ca.pem" if scheme == "https" else None
                url = f"{scheme}://localhost:{server.port}/things"
                status, body = await call(door, url, ca)
            asked = await asyncio.to_thread(above.requests)
        assert server.connections == 0
        assert asked
        assert all(line.endswith(" 407") for line in asked)
        assert status == 502, body
        told = json.loads(body)
        assert told["type"] == "urn:onceproxy:upstream-not-reached"
        assert "407" in told["detail"]
        assert b"wr0ng" not in body


async def test_a_blind_tunnel_goes_through_the_parent_too(tmp_path: Path) -> None:
    ca_file, server_file = make(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server_file)
    async with RawServer(created, tls=context) as server:
        with parent("user:right") as above:
            options = {
                "upstream": {"proxy": f"http://user:right@127.0.0.1:{above.port}"},
                "tls": {"tunnel": ["pinned.test"]},
            }
            rules = RULES.format(host="other.test", port=1)
            async with whole(tmp_path, rules, **options) as door, RawClient(door.port) as client:
                where = f"pinned.test:{server.port}"
                ask = f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n"
                assert (await client.ask(ask, method="HEAD")).status == 200
                # The service's own certificate, not one of ours.
                await client.start_tls(ssl.create_default_context(cafile=str(ca_file)), "localhost")
                got = await client.ask("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert got.body == b'{"id": "t1"}'
            assert await asyncio.to_thread(above.requests) == [f"CONNECT {where} 200"]


async def test_without_the_companys_roots_nothing_is_sent(tmp_path: Path) -> None:
    """The control: it is ``upstream.ca_file`` that makes the calls above possible."""
    _, server_file = make(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server_file)
    async with RawServer(created, tls=context) as server:
        rules = RULES.format(host="localhost", port=server.port)
        async with whole(tmp_path, rules, patience="0s") as door:
            ca = door.state_dir / "ca" / "ca.pem"
            status, body = await call(door, f"https://localhost:{server.port}/things", ca)
        assert status == 502, body
        assert b"certificate was not accepted" in body
        assert server.requests == []
