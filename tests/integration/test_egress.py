"""Which addresses may be called: judged on what is dialled, whatever the name or its spelling."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from proxy.core.egress import lines
from proxy.core.model import Denied, NotSent, Request
from proxy.net.egress import Egress, EgressDenied, GuardedResolver
from proxy.net.upstream import Opened, Upstream
from tests import reliability
from tests.fakes.door import open_passing_door
from tests.fakes.rawclient import RawClient
from tests.fakes.rawserver import RawServer


@pytest.mark.duty("A-37")
@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.9.1",
        "::1",
        "0.0.0.0",
        "0.1.2.3",
        "::",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "fc00::1",
        "fd12::1",
        "fec0::1",
        "169.254.1.1",
        "fe80::1",
        "fe80::1%eth0",
        "100.64.0.1",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
        "240.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2002:a00:1::",
        "64:ff9b:1::a00:1",
        "::ffff:0:10.0.0.1",
        "2001:0:4136:e378:8000:63bf:f5ff:fffe",  # Teredo of 10.0.0.1
        "198.18.0.1",
        "192.0.0.8",
        "2001:db8::1",
        "::ffff:100.64.0.1",
        "::ffff:0.0.0.0",
    ],
)
def test_inner_addresses_are_closed(address: str) -> None:
    assert Egress().objection("name.test", address, 80) is not None


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "::ffff:1.1.1.1"])
def test_public_addresses_are_open(address: str) -> None:
    assert Egress().objection("name.test", address, 443) is None


METADATA = [
    "169.254.169.254",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::",
    "fd00:ec2::254",
    "169.254.170.2",
    "100.100.100.200",
    "168.63.129.16",
    "64:ff9b:1::a9fe:a9fe",
    "::ffff:0:169.254.169.254",
    "fd20:ce::254",
    "fe80::a9fe:a9fe%eth0",
    "fd00:c1::a9fe:a9fe",
    "169.254.42.42",
    "169.254.0.23",
]


@pytest.mark.parametrize("address", METADATA)
def test_metadata_services_are_closed_to_everybody(address: str) -> None:
    egress = Egress(
        allow=["0.0.0.0/0", "::/0", "name.test", address], named=lambda host, port: True
    )
    assert egress.objection("name.test", address, 80) is not None
    assert egress.literal(address, 80) is not None


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.0.0.9", "0.0.0.0", "::1", "::ffff:127.0.0.1"]
)
def test_own_ports_are_closed_to_everybody(address: str) -> None:
    egress = Egress(allow=["name.test", "127.0.0.0/8"], named=lambda host, port: True)
    egress.protect(8902)
    assert egress.objection("name.test", address, 8902) is not None
    assert egress.objection("name.test", address, 8903) is None


def test_own_ports_are_closed_on_every_address_of_this_machine() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            address = probe.getsockname()[0]
        except OSError:
            pytest.skip("this machine has no other address")
    egress = Egress(allow=["name.test"], own_ports=[8902])
    assert "proxy itself" in str(egress.objection("name.test", address, 8902))
    assert Egress(own_ports=[443]).objection("name.test", "1.1.1.1", 443) is None


@pytest.mark.duty("A-39", "C-23")
@pytest.mark.parametrize(
    ("allow", "deny", "host", "address", "port", "open_"),
    [
        (["name.test"], [], "name.test", "127.0.0.1", 80, True),
        (["NAME.test."], [], "name.test", "127.0.0.1", 80, True),
        (["name.test"], [], "other.test", "127.0.0.1", 80, False),
        (["name.test:80"], [], "name.test", "127.0.0.1", 80, True),
        (["name.test:80"], [], "name.test", "127.0.0.1", 81, False),
        (["*.test"], [], "name.test", "127.0.0.1", 80, True),
        (["*.test"], [], "nametest", "127.0.0.1", 80, False),
        (["127.0.0.1"], [], "name.test", "127.0.0.1", 80, True),
        (["127.0.0.1:9000"], [], "name.test", "127.0.0.1", 9000, True),
        (["127.0.0.1:9000"], [], "name.test", "127.0.0.1", 9001, False),
        (["[::1]:9000"], [], "name.test", "::1", 9000, True),
        (["192.168.0.0/16"], ["192.168.1.5"], "name.test", "192.168.1.5", 80, False),
        (["192.168.0.0/16"], ["192.168.1.5"], "name.test", "192.168.1.6", 80, True),
        (["192.168.1.5"], ["192.168.0.0/16"], "name.test", "192.168.1.5", 80, True),
        (["name.test"], ["name.test"], "name.test", "1.1.1.1", 80, False),
        ([], ["*.evil.test"], "a.evil.test", "1.1.1.1", 80, False),
        (["ok.evil.test"], ["*.evil.test"], "ok.evil.test", "1.1.1.1", 80, True),
        (["ok.test"], ["*"], "ok.test", "1.1.1.1", 80, True),
        (["ok.test"], ["*"], "other.test", "1.1.1.1", 80, False),
        (["10.0.0.0/8"], ["*"], "other.test", "10.0.0.1", 80, True),
        ([], ["1.1.1.0/24"], "name.test", "::ffff:1.1.1.1", 80, False),
    ],
)
def test_the_more_exact_line_wins_and_deny_on_a_tie(
    allow: list[str], deny: list[str], host: str, address: str, port: int, open_: bool
) -> None:
    egress = Egress(allow=allow, deny=deny)
    assert (egress.objection(host, address, port) is None) is open_


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*",
        "http://a.test",
        "a.test:x",
        "a.test:0",
        "a.test:70000",
        "10.0.0.0/99",
        "a/b",
        "a.*",
        "b*.test",
        "a b",
    ],
)
def test_a_line_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        Egress(allow=[text])


def test_a_host_that_a_rule_names_is_open_and_the_objection_prints_the_line_to_add() -> None:
    egress = Egress(named=lambda host, port: (host, port) == ("billing.internal", 8080))
    assert egress.objection("billing.internal", "10.0.0.7", 8080) is None
    objection = egress.objection("billing.internal", "10.0.0.7", 9090)
    assert 'egress: {allow: ["billing.internal:9090"]}' in str(objection)
    assert (
        Egress(allow=["billing.internal:9090"]).objection("billing.internal", "10.0.0.7", 9090)
        is None
    )


@pytest.mark.duty("A-37")
@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "0x7f000001", "127.1", "0177.0.0.1"])
def test_other_spellings_of_addresses_are_closed(host: str) -> None:
    assert Egress().literal(host, 80) is not None


class Changing(AbstractResolver):
    """A name server that answers something else each time."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked += 1
        return [
            ResolveResult(hostname=host, host=a, port=port, family=family, proto=0, flags=0)
            for a in self._answers.pop(0)
        ]

    async def close(self) -> None: ...


@pytest.mark.duty("A-38")
async def test_only_addresses_that_passed_are_handed_on() -> None:
    resolver = GuardedResolver(Egress(), Changing(["10.0.0.1", "1.1.1.1", "::1"]))
    assert [r["host"] for r in await resolver.resolve("name.test", 80)] == ["1.1.1.1"]


async def test_a_name_with_inner_addresses_only_is_denied() -> None:
    resolver = GuardedResolver(Egress(), Changing(["10.0.0.1", "169.254.169.254"]))
    with pytest.raises(EgressDenied):
        await resolver.resolve("name.test", 80)


# By run


def test_a_line_can_be_for_some_runs_only() -> None:
    egress = Egress(
        allow=lines([{"run": "support-*", "to": ["crm.test", "10.1.0.0/16"]}, "all.test"]),
        deny=lines([{"run": "intern-*", "to": "*"}, {"run": "intern-7", "to": "all.test"}]),
    )

    def open_(run: str, host: str, address: str) -> bool:
        return egress.for_run(run).objection(host, address, 443) is None

    assert open_("support-1", "crm.test", "10.9.0.1")
    assert open_("support-1", "x.test", "10.1.0.1")
    assert not open_("support-1", "x.test", "10.2.0.1")
    assert not open_("other", "crm.test", "10.9.0.1")
    assert not open_("", "crm.test", "10.9.0.1")
    assert open_("other", "all.test", "10.9.0.1")
    assert open_("intern-1", "all.test", "10.9.0.1")
    assert not open_("intern-7", "all.test", "10.9.0.1")
    assert not open_("intern-1", "public.test", "1.1.1.1")
    assert open_("", "public.test", "1.1.1.1")
    assert egress.for_run("support-1") is egress.for_run("support-2")


def test_own_ports_are_closed_to_every_run() -> None:
    egress = Egress(allow=lines([{"run": "a", "to": "localhost"}]))
    before = egress.for_run("a")
    egress.protect(8902)
    for run in ("a", "b", ""):
        assert "proxy itself" in str(egress.for_run(run).objection("localhost", "127.0.0.1", 8902))
    assert egress.for_run("a") is before


# With real sockets


async def opened(egress: Egress, host: str, port: int, **options: Any) -> Any:
    upstream = Upstream(egress=egress, **options)
    await upstream.start()
    try:
        result = await upstream.open(Request("GET", "http", host, port, "/", ()))
        if isinstance(result, Opened):
            await result.read(100)
        return result
    finally:
        await upstream.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "::ffff:127.0.0.1", "127.1"])
async def test_a_denied_address_is_not_even_connected_to(host: str) -> None:
    async with RawServer() as server:
        result = await opened(Egress(), host, server.port)
        assert isinstance(result, Denied)
        assert isinstance(result, NotSent)
        assert server.connections == 0


@pytest.mark.duty("C-24")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_an_allowed_inner_address_is_called(host: str) -> None:
    async with RawServer() as server:
        result = await opened(Egress(allow=[f"{host}:{server.port}"]), host, server.port)
        assert isinstance(result, Opened)


async def test_a_connection_of_one_run_is_not_for_another() -> None:
    async with RawServer() as server:
        where = f"localhost:{server.port}"
        upstream = Upstream(egress=Egress(allow=lines([{"run": "a-*", "to": where}])))
        await upstream.start()
        try:
            for run, sent in (("a-1", True), ("b-1", False), ("", False), ("a-2", True)):
                call = Request("GET", "http", "localhost", server.port, "/", ())
                result = await upstream.open(call, run=run)
                assert isinstance(result, Opened) is sent, run
                if isinstance(result, Opened):
                    await result.read(100)
                else:
                    assert isinstance(result, Denied)
                tunnel = await upstream.tunnel("localhost", server.port, run)
                assert isinstance(tunnel, Denied) is not sent
                if not isinstance(tunnel, NotSent):
                    tunnel.close()
        finally:
            await upstream.close()
        assert len(server.requests) == 2


async def test_what_a_rule_no_longer_names_is_closed_at_once() -> None:
    named = {"127.0.0.1", "localhost"}
    async with RawServer() as server:
        upstream = Upstream(egress=Egress(named=lambda host, port: host in named))
        await upstream.start()
        try:
            for expected in (Opened, Denied):
                for host in ("127.0.0.1", "localhost"):
                    result = await upstream.open(Request("GET", "http", host, server.port, "/", ()))
                    assert isinstance(result, expected)
                    if isinstance(result, Opened):
                        await result.read(100)
                named.clear()
                upstream.forget()
        finally:
            await upstream.close()
        assert len(server.requests) == 2


# A name server that changes its mind (S2, S13)


async def test_the_address_that_was_judged_is_the_one_that_is_dialled() -> None:
    """The first answer passes; a second one, asked for the dialling, would not."""
    async with RawServer() as open_, RawServer(host="127.0.0.2", at=open_.port) as closed:
        names = Changing(["127.0.0.1"], *[["127.0.0.2"]] * 4)
        upstream = Upstream(egress=Egress(allow=["127.0.0.1"]), resolver=names)
        await upstream.start()
        call = Request("GET", "http", "rebinding.test", open_.port, "/", ())
        try:
            first = await upstream.open(call, fresh=True)
            assert isinstance(first, Opened)
            await first.read(100)
            assert names.asked == 1
            upstream.forget()  # as when what was resolved has aged
            assert isinstance(await upstream.open(call, fresh=True), Denied)
            assert isinstance(await upstream.tunnel("rebinding.test", open_.port), Denied)
        finally:
            await upstream.close()
        assert (len(open_.requests), closed.connections) == (1, 0)
    reliability.figure(
        "S13", "a name that resolves differently after its check", part="Security", dialled=0
    )


@pytest.mark.parametrize(
    "answers",
    [["10.0.0.1", "127.0.0.1"], ["::ffff:127.0.0.1"], ["64:ff9b::7f00:1"], ["2002:7f00:1::"]],
)
async def test_a_name_that_leads_to_an_own_port_is_closed_whatever_is_allowed(
    answers: list[str],
) -> None:
    async with RawServer() as server:
        egress = Egress(allow=["friend.test"], named=lambda host, port: True)
        egress.protect(server.port)
        upstream = Upstream(egress=egress, resolver=Changing(*[answers] * 3), connect_timeout=0.2)
        await upstream.start()
        try:
            await upstream.open(Request("GET", "http", "friend.test", server.port, "/", ()))
            await upstream.tunnel("friend.test", server.port)
        finally:
            await upstream.close()
        assert server.connections == 0


# Through a parent proxy


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("metadata.google.internal", 80),
        ("evil.test", 80),
        ("a.evil.test", 443),
        ("localhost", 9000),
        ("db.localhost", 9000),
        ("169.254.169.254", 80),
    ],
)
async def test_a_parent_proxy_is_not_asked_for_what_is_closed(host: str, port: int) -> None:
    async with RawServer() as parent:
        egress = Egress(deny=["evil.test", "*.evil.test"])
        upstream = Upstream(egress=egress, proxy=f"http://127.0.0.1:{parent.port}")
        await upstream.start()
        try:
            scheme = "https" if port == 443 else "http"
            assert isinstance(
                await upstream.open(Request("GET", scheme, host, port, "/", ())), Denied
            )
            assert isinstance(await upstream.tunnel(host, port), Denied)
        finally:
            await upstream.close()
        assert parent.connections == 0


@pytest.mark.duty("A-40", "C-22")
async def test_a_parent_proxy_on_an_inner_address_is_used_and_literals_are_still_judged() -> None:
    async with RawServer() as parent:
        proxy = f"http://127.0.0.1:{parent.port}"
        result = await opened(Egress(), "service.test", 80, proxy=proxy)
        assert isinstance(result, Opened)
        denied = await opened(Egress(), "169.254.169.254", 80, proxy=proxy)
        assert isinstance(denied, Denied)
        assert len(parent.requests) == 1


@pytest.mark.parametrize("way", ["absolute", "gateway", "tunnel"])
async def test_the_caller_gets_a_403_with_the_line_to_add(way: str) -> None:
    async with RawServer() as server:
        egress = Egress()
        async with (
            open_passing_door(upstream={"egress": egress}, tunnel_hosts=["localhost"]) as door,
            RawClient(door.port) as client,
        ):
            egress.protect(door.port)
            where = f"localhost:{server.port}"
            lines = {
                "absolute": f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\n\r\n",
                "gateway": f"GET /via/http/{where}/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
                "tunnel": f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n",
            }
            got = await client.ask(lines[way])
            document = json.loads(got.body)
            assert (got.status, document["type"]) == (403, "urn:onceproxy:egress-denied")
            assert f'egress: {{allow: ["{where}"]}}' in document["detail"]
            assert got.all("x-should-retry") == ["false"]
        assert server.connections == 0


@pytest.mark.duty("A-11")
async def test_the_proxy_does_not_call_itself_even_where_loopback_is_open() -> None:
    egress = Egress(allow=["127.0.0.0/8", "localhost"])
    async with (
        open_passing_door(upstream={"egress": egress}, pseudonym=None) as door,
        RawClient(door.port) as client,
    ):
        egress.protect(door.port)
        got = await client.ask(f"GET http://localhost:{door.port}/ HTTP/1.1\r\nHost: a\r\n\r\n")
        assert got.status == 403
