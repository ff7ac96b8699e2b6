"""One proxy for the tests of the edges of HTTP, the ways into it, and a recording service.

The proxy is the whole one with a real ledger. A request is written once, as raw bytes, and goes in
by every way: ``{/path}`` in it becomes the target as that way writes it, ``{host}`` its Host.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.certificates import make
from tests.fakes.rawclient import Got, RawClient
from tests.fakes.rawserver import RawServer, Received, Script, answer_ok, answering
from tests.fakes.whole import Door, whole

PROXY, TUNNEL, GATEWAY = "proxy", "tunnel", "gateway"
WAYS = (PROXY, TUNNEL, GATEWAY)

RULES = """\
service: things
hosts: ["localhost:{plain}", "localhost:{secure}"]
source: tests/http/world.py
confidence: documented
key: {in: header, name: Idempotency-Key, valid_for: 24h, keeps: all}
endpoints:
  keyed:
    match: POST /v1/keyed/{thing}
    external_id: id
  bare:
    match: POST /v1/bare/{thing}
    key: none
  signed:
    match: POST /v1/signed/{thing}
    signed: sigv4
"""
WAIT = 5.0  # seconds until something that should happen at once is taken never to happen


@dataclass
class World:
    door: Door
    plain: RawServer  # behind the proxy port and the gateway
    secure: RawServer  # behind opened tunnels
    trust: ssl.SSLContext  # the local CA

    def server(self, way: str) -> RawServer:
        return self.secure if way == TUNNEL else self.plain

    def host(self, way: str) -> str:
        return f"localhost:{self.server(way).port}"

    def fill(self, way: str, raw: bytes | str) -> bytes:
        """A request as this way writes it."""
        data = raw.encode("utf-8", "surrogateescape") if isinstance(raw, str) else raw
        host = self.host(way).encode()
        before = {
            PROXY: b"http://" + host,
            TUNNEL: b"",
            GATEWAY: b"/via/http/" + host,
        }[way]
        named = f"127.0.0.1:{self.door.port}".encode() if way == GATEWAY else host
        data = re.sub(rb"\{(/[^}]*)\}", lambda found: before + found[1], data)
        data = data.replace(b"{own}", b"%d" % self.door.port)
        return data.replace(b"{host}", named)

    @asynccontextmanager
    async def client(self, way: str, *fields: str, host: str = "") -> AsyncIterator[RawClient]:
        """A connection on which requests of that way can be sent; ``fields`` go to CONNECT."""
        async with RawClient(self.door.port) as client:
            if way == TUNNEL:
                host = host or self.host(way)
                lines = [f"CONNECT {host} HTTP/1.1", f"Host: {host}", *fields, "", ""]
                got = await client.ask("\r\n".join(lines), method="HEAD")
                assert got.status == 200
                await client.start_tls(self.trust, host.rpartition(":")[0])
            yield client

    async def ask(self, way: str, raw: bytes | str, method: str = "GET") -> Got:
        async with self.client(way) as client, asyncio.timeout(WAIT):
            return await client.ask(self.fill(way, raw), method=method)

    def answers(self, script: Script | bytes) -> None:
        self.plain.script = self.secure.script = (
            answering(script) if isinstance(script, bytes) else script
        )

    def reset(self) -> None:
        for server in (self.plain, self.secure):
            server.requests.clear()
        self.answers(answer_ok)

    @property
    def arrived(self) -> list[Received]:
        """What the service was asked, by whatever way."""
        return [*self.plain.requests, *self.secure.requests]


@asynccontextmanager
async def world(folder: Path, **options: Any) -> AsyncIterator[World]:
    ca_file, certificate = make(folder)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    async with RawServer() as plain, RawServer(tls=tls) as secure:
        rules = RULES.replace("{plain}", str(plain.port)).replace("{secure}", str(secure.port))
        given = {
            "upstream": {"ca_file": str(ca_file), "timeout": "3s", "idle_timeout": "2s"},
            **options,
        }
        async with whole(folder, rules, **given) as door:
            ca = door.state_dir / "ca" / "ca.pem"
            trust = ssl.create_default_context(cafile=str(ca))
            yield World(door, plain, secure, trust)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT):
        while not true():
            await asyncio.sleep(0.005)
