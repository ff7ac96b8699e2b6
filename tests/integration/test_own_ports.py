"""The proxy's own ports, asked for through the proxy in every spelling (S2): proxy, control, probe
and gateway answer nobody that way, even where everything inner is allowed.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from proxy.core.model import Request
from proxy.net.egress import Egress
from proxy.net.upstream import Opened, Upstream
from tests import reliability
from tests.fakes.rawclient import RawClient
from tests.fakes.rawserver import RawServer
from tests.fakes.whole import ANY_PORT, whole

SPELLINGS = [
    "127.0.0.1",
    "127.0.0.1.",
    "127.1",
    "127.0.1",
    "127.8.9.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0x7F.0x0.0x0.0x1",
    "0177.0.0.1",
    "017700000001",
    "0",
    "0.0.0.0",
    "0.1.2.3",
    "localhost",
    "localhost.",
    "LocalHost",
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[0000::0001]",
    "[::127.0.0.1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::FFFF:7F00:0001]",
    "[::ffff:0:127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b:1::7f00:1]",
    "[2002:7f00:1::]",
    "[::1%25lo]",
    "127%2e0%2e0%2e1",
    "%6cocalhost",
    "１２７.0.0.1",
    "127。0。0。1",
    "user@127.0.0.1",
    "ip6-localhost",
]
WAYS = {
    "absolute": "GET http://{0}/healthz HTTP/1.1\r\nHost: {0}\r\n\r\n",
    "absolute https": "GET https://{0}/healthz HTTP/1.1\r\nHost: {0}\r\n\r\n",
    "gateway": "GET /via/http/{0}/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tunnel": "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n",
}
ALLOWED = ["0.0.0.0/0", "::/0", "localhost", "ip6-localhost", socket.gethostname().lower()]


def own_names() -> list[str]:
    """The host's own name, and the address others know it by."""
    found = [socket.gethostname()]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            found.append(probe.getsockname()[0])
        except OSError:
            pass
    return found


async def test_own_ports_answer_nobody_in_any_spelling(tmp_path: Path) -> None:
    assert len(SPELLINGS) >= 30
    free = socket.create_server(("127.0.0.1", 0))
    gateway = free.getsockname()[1]
    free.close()
    options = {
        "probe": ANY_PORT,
        "gateway": [{"listen": f"127.0.0.1:{gateway}", "to": "http://192.0.2.1"}],
        "egress": {"allow": ALLOWED},
        "upstream": {"connect_timeout": "1s"},
        "patience": "1s",
    }
    rules = (Path(__file__).parent.parent.parent / "rules" / "example.yaml").read_text()
    async with whole(tmp_path, rules, **options) as door:
        probe = door.probe
        assert len({door.port, door.control, probe, gateway}) == 4
        gate = asyncio.Semaphore(20)

        async def refused(way: str, spelling: str, port: int) -> None:
            async with gate, RawClient(door.port) as client:
                where = f"{spelling}:{port}"
                got = await client.ask(
                    WAYS[way].format(where), method="HEAD" if way == "tunnel" else "GET"
                )
                if way == "tunnel" and got.status == 200:  # what is inside goes out as a call
                    inside = f"GET /healthz HTTP/1.1\r\nHost: {where}\r\n\r\n"
                    got = await client.ask(inside)
                assert got.status in (400, 403, 421, 502), (way, where, got)
                if way != "tunnel":
                    assert b"urn:onceproxy:" in got.body, (way, where, got)

        spellings = [*SPELLINGS, *own_names()]
        tried = [
            (way, spelling, port)
            for way in WAYS
            for spelling in spellings
            for port in (door.port, door.control, probe, gateway)
        ]
        await asyncio.gather(*(refused(*each) for each in tried))
    reliability.figure(
        "S2",
        "own ports asked for through the proxy",
        part="Security",
        spellings=len(spellings),
        requests=len(tried),
        answered=0,
    )


@pytest.mark.parametrize("protected", [True, False])
async def test_the_spellings_do_lead_there_where_nothing_protects_the_port(
    protected: bool,
) -> None:
    """The control of the test above: without the protection several of them reach the port."""
    async with RawServer() as server:
        egress = Egress(allow=ALLOWED)
        if protected:
            egress.protect(server.port)
        upstream = Upstream(egress=egress, connect_timeout=1.0)
        await upstream.start()
        reached = []
        try:
            for spelling in ("127.0.0.1", "0.0.0.0", "localhost", "::ffff:127.0.0.1", "127.1"):
                result = await upstream.open(Request("GET", "http", spelling, server.port, "/", ()))
                if isinstance(result, Opened):
                    await result.read(100)
                    reached.append(spelling)
        finally:
            await upstream.close()
        assert server.connections == len(reached)
        assert (len(reached) >= 4) is not protected
        assert bool(reached) is not protected
    if not protected:
        reliability.control(
            "S2",
            "ports not protected",
            f"{len(reached)} of 5 spellings came through",
            part="Security",
        )
