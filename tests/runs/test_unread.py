"""Connections that are passed on unread: who may open one, and that it ends with the authority."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy.core.authority import Line, Lists
from tests.fakes.rawclient import Got, RawClient
from tests.fakes.scripted import ruleset
from tests.fakes.whole import Door, whole

SHOP = """
service: shop
hosts: ["{host}"]
source: https://shop.test/docs
confidence: documented
key: none
endpoints:
  refunds.create: {{match: POST /refunds}}
  orders.read: {{match: GET /orders}}
"""


@dataclass
class Service:
    """Takes any bytes, and says them again."""

    port: int = 0
    got: bytes = b""
    connections: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    slowly: asyncio.Event | None = None  # when it answers

    @property
    def at(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while data := await reader.read(4096):
                self.got += data
                if self.slowly is not None:
                    await self.slowly.wait()
                if data.startswith(b"GET /chat"):
                    data = (
                        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                        b"Connection: Upgrade\r\n\r\n"
                    )
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.ended.set()
            writer.close()


@asynccontextmanager
async def service() -> AsyncIterator[Service]:
    made = Service()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


@asynccontextmanager
async def proxy(
    folder: Path, at: Service, rule: bool = False, **options: Any
) -> AsyncIterator[Door]:
    host = at.at if rule else "shop.invalid"
    options = {"egress": {"allow": [at.at]}, "tls": {"tunnel": ["127.0.0.1"]}, **options}
    async with whole(folder, SHOP.format(host=host), **options) as door:
        yield door


def connect(at: Service, who: str) -> str:
    credential = base64.b64encode(who.encode()).decode()
    named = f"Proxy-Authorization: Basic {credential}\r\n" if who else ""
    return f"CONNECT {at.at} HTTP/1.1\r\nHost: {at.at}\r\n{named}\r\n"


async def asked(door: Door, at: Service, who: str) -> Got:
    async with RawClient(door.port) as client:
        return await client.ask(connect(at, who), method="HEAD")


async def begun(door: Door, run: str, **more: Any) -> str:
    status, told = await door.ask("POST", "/v1/runs", {"run": run, **more})
    assert status == 200
    return str(told["token"])


async def test_a_tunnel_needs_an_open_run_and_its_own_token(tmp_path: Path) -> None:
    async with service() as at, proxy(tmp_path, at, identity={"tokens": "required"}) as door:
        token, other = await begun(door, "mine"), await begun(door, "other")
        for who, status in (
            ("", 400),
            ("mine:-", 400),
            (f"mine:-:{other}", 403),
            (f"nobody:-:{token}", 403),
            ("mine:-:once_" + "x" * 43, 403),
        ):
            assert (await asked(door, at, who)).status == status, who
        assert at.connections == 0
        assert (await asked(door, at, f"mine:-:{token}")).status == 200
        assert at.connections == 1
        await door.ask("POST", "/v1/runs/mine/revoke", {})
        await door.ask("POST", "/v1/runs/other/close", {})
        assert (await asked(door, at, f"mine:-:{token}")).status == 403
        assert (await asked(door, at, f"other:-:{other}")).status == 403
        assert at.connections == 1


async def test_a_tunnel_that_turns_out_to_be_unreadable_needs_the_same(tmp_path: Path) -> None:
    async with service() as at, proxy(tmp_path, at, tls={"tunnel": []}) as door:
        await begun(door, "gone")
        await door.ask("POST", "/v1/runs/gone/revoke", {})
        async with RawClient(door.port) as client:
            assert (await client.ask(connect(at, "gone:-"), method="HEAD")).status == 200
            await client.send(b"SSH-2.0-agent\r\n")
            assert await client.closed() == b""
        assert (at.connections, at.got) == (0, b"")
        async with RawClient(door.port) as client:
            assert (await client.ask(connect(at, "open:-"), method="HEAD")).status == 200
            await client.send(b"SSH-2.0-agent\r\n")
            assert await client.reader.readexactly(15) == b"SSH-2.0-agent\r\n"


@pytest.mark.parametrize(
    ("ruled", "lists", "opened"),
    [
        (False, {"deny": [{"run": "intern-*"}]}, False),
        (False, {"deny": [{"run": "other-*"}]}, True),
        (False, {"deny": [{"service": "unruled"}]}, False),
        (False, {"deny": [{"service": "shop"}]}, True),
        (False, {"deny": [{"method": "DELETE"}]}, False),  # nobody could see one in there
        (True, {"deny": [{"service": "shop", "endpoint": "refunds.*"}]}, False),
        (True, {"deny": [{"service": "shop", "endpoint": "payouts.*"}]}, True),
        (False, {"allow": [{"service": "unruled"}]}, True),
        (False, {"allow": [{"service": "shop"}]}, False),
        (True, {"allow": [{"service": "shop"}]}, True),
        (True, {"allow": [{"service": "shop", "endpoint": "orders.*"}]}, False),
        (True, {"allow": [{"service": "shop", "method": "GET"}]}, False),
        (True, {"allow": [{"run": "other-*"}]}, False),
    ],
)
def test_a_tunnel_may_be_any_call_to_its_host_so_lists_count_for_all_of_them(
    ruled: bool, lists: dict[str, Any], opened: bool
) -> None:
    rules = ruleset(SHOP.format(host="shop.test"))
    lines = {name: tuple(map(Line.parse, given)) for name, given in lists.items()}
    places = rules.places("shop.test" if ruled else "other.test", 443)
    assert (Lists(**lines).objection_unread("intern-1", places) is None) == opened


@pytest.mark.parametrize("run", ["intern-1", "other-1"])
async def test_lists_hold_for_tunnels(tmp_path: Path, run: str) -> None:
    lists = {"deny": [{"run": "intern-*", "endpoint": "refunds.*"}]}
    async with service() as at, proxy(tmp_path, at, True, authority=lists) as door:
        assert (await asked(door, at, f"{run}:-")).status == (403 if run == "intern-1" else 200)
        assert at.connections == (run == "other-1")


Taken = tuple[str, dict[str, Any]]


@pytest.mark.parametrize(
    "taken",
    [
        ("/v1/runs/child/revoke", {"reason": "stop"}),
        ("/v1/runs/child/close", {}),
        ("/v1/runs/top/revoke", {}),
        ("/v1/runs/top/close", {}),
        ("/v1/runs/child/revoke", {"token": "TOKEN"}),
    ],
    ids=["revoked", "closed", "parent revoked", "parent closed", "token revoked"],
)
@pytest.mark.parametrize("kind", ["tunnel", "websocket"])
async def test_it_is_cut_before_the_revocation_is_acknowledged(
    tmp_path: Path, taken: Taken, kind: str
) -> None:
    async with service() as at, proxy(tmp_path, at) as door:
        await begun(door, "top")
        token = await begun(door, "child", parent="top")
        path, body = taken
        body = {name: token if value == "TOKEN" else value for name, value in body.items()}
        async with RawClient(door.port) as client, RawClient(door.port) as bystander:
            await opened(client, at, f"child:-:{token}", kind)
            await opened(bystander, at, "bystander:-", kind)
            status, _ = await door.ask("POST", path, body)
            assert status == 200
            before = at.got
            with contextlib.suppress(ConnectionError):
                await client.send(b"after the word")
            assert await client.closed() == b""
            await bystander.send(b"still here")
            assert await bystander.reader.readexactly(10) == b"still here"
            assert at.got == before + b"still here"


async def opened(client: RawClient, at: Service, who: str, kind: str) -> None:
    if kind == "tunnel":
        assert (await client.ask(connect(at, who), method="HEAD")).status == 200
    else:
        credential = base64.b64encode(who.encode()).decode()
        got = await client.ask(
            f"GET http://{at.at}/chat HTTP/1.1\r\nHost: {at.at}\r\nConnection: Upgrade\r\n"
            f"Upgrade: websocket\r\nProxy-Authorization: Basic {credential}\r\n\r\n"
        )
        assert got.status == 101
    await client.send(b"ping")
    assert await client.reader.readexactly(4) == b"ping"


async def test_one_that_has_ended_is_watched_no_more(tmp_path: Path) -> None:
    async with service() as at, proxy(tmp_path, at) as door:
        for _ in range(3):
            async with RawClient(door.port) as client:
                await opened(client, at, "run:-", "tunnel")
        await asyncio.wait_for(at.ended.wait(), 5)
        status, _ = await door.ask("POST", "/v1/runs/run/revoke", {})
        assert status == 200


async def test_a_websocket_that_is_taken_up_after_the_revocation_is_cut_at_once(
    tmp_path: Path,
) -> None:
    async with service() as at, proxy(tmp_path, at) as door, RawClient(door.port) as client:
        at.slowly = asyncio.Event()
        credential = base64.b64encode(b"late:-").decode()
        await client.send(
            f"GET http://{at.at}/chat HTTP/1.1\r\nHost: {at.at}\r\nConnection: Upgrade\r\n"
            f"Upgrade: websocket\r\nProxy-Authorization: Basic {credential}\r\n\r\n"
        )
        while not at.got:
            await asyncio.sleep(0.01)
        assert (await door.ask("POST", "/v1/runs/late/revoke", {}))[0] == 200
        before = at.got
        at.slowly.set()
        with contextlib.suppress(ConnectionError):
            await client.send(b"after the word")
        await client.closed()
        await asyncio.wait_for(at.ended.wait(), 5)
        assert at.got == before
