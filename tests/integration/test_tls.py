"""Tunnels and the local authority: what is opened, what is left alone, what may be trusted."""

from __future__ import annotations

import asyncio
import ssl
import stat
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from proxy.net import tunnel
from proxy.net.clienthello import BadHello, First, first, hello
from proxy.net.frontend import FrontDoor
from proxy.net.tls import CACHE, CaError, CertificateAuthority
from tests.fakes.door import Echo, open_door, open_passing_door
from tests.fakes.rawclient import RawClient
from tests.fakes.rawserver import RawServer

DAY = 86_400.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority.open(tmp_path_factory.mktemp("state") / "ca")


@pytest.fixture
def trusting(authority: CertificateAuthority) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.pem.decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


@pytest.fixture
async def echo() -> Echo:
    return Echo()


@pytest.fixture
async def door(echo: Echo, authority: CertificateAuthority) -> AsyncIterator[FrontDoor]:
    async with open_door(echo, ca=authority) as door:
        yield door


async def connect(client: RawClient, target: str, *fields: str) -> int:
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}", *fields, "\r\n"]
    return (await client.ask("\r\n".join(lines), method="HEAD")).status


# Opened tunnels


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_tls_in_a_tunnel_is_opened_with_a_certificate_that_strict_clients_accept(
    door: FrontDoor, echo: Echo, trusting: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    trusting.minimum_version = trusting.maximum_version = version
    async with RawClient(door.port) as client:
        assert await connect(client, "api.test:443") == 200
        await client.start_tls(trusting, "api.test")
        for number in range(2):
            got = await client.ask(f"GET /{number}?q HTTP/1.1\r\nHost: api.test\r\n\r\n")
            assert got.status == 200
    assert [a.request.url for a in echo.arrivals] == [
        "https://api.test/0?q",
        "https://api.test/1?q",
    ]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_an_address_gets_a_certificate_for_an_address(
    door: FrontDoor, trusting: ssl.SSLContext, host: str
) -> None:
    shown = f"[{host}]" if ":" in host else host
    async with RawClient(door.port) as client:
        assert await connect(client, f"{shown}:8443") == 200
        await client.start_tls(trusting, host)
        got = await client.ask(f"GET / HTTP/1.1\r\nHost: {shown}:8443\r\n\r\n")
        assert got.status == 200


async def test_the_credential_of_a_tunnel_names_all_its_calls(
    door: FrontDoor, echo: Echo, trusting: ssl.SSLContext
) -> None:
    async with RawClient(door.port) as client:
        await connect(client, "api.test:443", "Proxy-Authorization: Basic cjpz")
        await client.start_tls(trusting, "api.test")
        await client.ask("GET / HTTP/1.1\r\nHost: api.test\r\nX-Step-Id: t\r\n\r\n")
        identity = echo.arrivals[0].identity
        assert identity is not None
        assert (identity.run, identity.step) == ("r", "t")
        assert echo.arrivals[0].request.headers == ()


async def test_a_call_with_another_credential_than_its_tunnel_is_refused(door: FrontDoor) -> None:
    async with RawClient(door.port) as client:
        await connect(client, "api.test:80", "Proxy-Authorization: Basic cjpz")
        call = "GET / HTTP/1.1\r\nHost: api.test\r\nProxy-Authorization: Basic {}\r\n\r\n"
        assert (await client.ask(call.format("cjpz"))).status == 200
        assert (await client.ask(call.format("cjp0"))).status == 400


@pytest.mark.duty("C-19")
async def test_plain_http_in_a_tunnel_is_served(door: FrontDoor, echo: Echo) -> None:
    async with RawClient(door.port) as client:
        # Both in one segment, as some clients do.
        await client.send(
            "CONNECT api.test:80 HTTP/1.1\r\nHost: api.test:80\r\n\r\n"
            "POST /x HTTP/1.1\r\nHost: api.test\r\nContent-Length: 2\r\n\r\nab"
        )
        assert (await client.answer(method="HEAD")).status == 200
        assert (await client.answer()).status == 200
    assert echo.arrivals[0].request.url == "http://api.test/x"
    assert echo.bodies == [b"ab"]


@pytest.mark.duty("A-9")
async def test_a_hello_that_comes_with_its_connect_is_not_lost(
    door: FrontDoor, trusting: ssl.SSLContext
) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trusting.wrap_bio(incoming, outgoing, server_hostname="api.test")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    async with RawClient(door.port) as client:
        await client.send(
            b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n" + outgoing.read()
        )
        assert (await client.answer(method="HEAD")).status == 200
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                incoming.write(await client.reader.read(65536))
        # The end of the handshake and the first request in one segment.
        tls.write(b"GET /early HTTP/1.1\r\nHost: api.test\r\n\r\n")
        await client.send(outgoing.read())
        data = b""
        while b"/early" not in data:
            incoming.write(await client.reader.read(65536))
            try:
                data += tls.read()
            except ssl.SSLWantReadError:
                continue


@pytest.mark.parametrize(
    "request_head",
    [
        "GET / HTTP/1.1\r\nHost: other.test\r\n\r\n",
        "GET http://other.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n",
        "GET https://other.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: api.test:99\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: \r\n\r\n",
        "CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n",
    ],
)
async def test_a_tunnel_leads_to_its_own_host_only(
    door: FrontDoor, echo: Echo, trusting: ssl.SSLContext, request_head: str
) -> None:
    async with RawClient(door.port) as client:
        await connect(client, "api.test:443")
        await client.start_tls(trusting, "api.test")
        got = await client.ask(request_head)
        assert got.status in (400, 421)
        assert echo.arrivals == []


async def test_another_server_name_than_the_tunnels_is_not_served(
    door: FrontDoor, trusting: ssl.SSLContext
) -> None:
    async with RawClient(door.port) as client:
        await connect(client, "api.test:443")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await client.start_tls(trusting, "other.test")


@pytest.mark.parametrize(
    ("target", "field", "status"),
    [
        ("api.test", "X: 1", 400),
        ("u@api.test:443", "X: 1", 400),
        ("api.test:0", "X: 1", 400),
        ("[api.test]:443", "X: 1", 400),
        ("api.test:443", "Content-Length: 3", 400),
        ("api.test:443", "Transfer-Encoding: chunked", 400),
    ],
)
async def test_a_bad_connect_is_refused_and_what_follows_is_not_served(
    door: FrontDoor, echo: Echo, target: str, field: str, status: int
) -> None:
    async with RawClient(door.port) as client:
        await client.send(
            f"CONNECT {target} HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n"
            "POST http://a.test/refund HTTP/1.1\r\nHost: a\r\n\r\n"
        )
        assert (await client.answer()).status == status
        assert await client.closed() == b""
    assert echo.arrivals == []


async def test_closed_tunnels_leave_no_handler_behind(
    door: FrontDoor, trusting: ssl.SSLContext
) -> None:
    for _ in range(5):
        async with RawClient(door.port) as client:
            await connect(client, "api.test:443")
            await client.start_tls(trusting, "api.test")
            await client.ask("GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
        async with RawClient(door.port) as client:
            await connect(client, "api.test:80")
            await client.ask("GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
    server = door._server
    assert server is not None
    async with asyncio.timeout(5):
        while server.connections:
            await asyncio.sleep(0.01)


async def test_idle_tunnels_do_not_delay_the_stop(
    echo: Echo, authority: CertificateAuthority, trusting: ssl.SSLContext
) -> None:
    door = FrontDoor(echo, ca=authority)
    await door.start("127.0.0.1", 0)
    async with RawClient(door.port) as opened, RawClient(door.port) as silent:
        await connect(opened, "api.test:443")
        await opened.start_tls(trusting, "api.test")
        await opened.ask("GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
        await connect(silent, "api.test:443")
        async with asyncio.timeout(2):
            await door.stop(60)


# Blind tunnels


class Tunnelled:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, host: str, reason: str) -> None:
        self.seen.append((host, reason))


async def test_a_host_left_alone_keeps_its_own_certificate(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    other = CertificateAuthority.open(tmp_path / "other")
    context = ssl.create_default_context(cadata=other.pem.decode())
    seen = Tunnelled()
    async with (
        RawServer(tls=other.context("localhost")) as server,
        open_passing_door(ca=authority, tunnel_hosts=["LOCALHOST"], on_tunnel=seen) as door,
        RawClient(door.port) as client,
    ):
        assert await connect(client, f"localhost:{server.port}") == 200
        await client.start_tls(context, "localhost")
        got = await client.ask("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert got.body == b"ok"
        assert seen.seen == [("localhost", "configured")]


async def test_a_host_left_alone_that_cannot_be_reached_is_said_before_the_200(
    authority: CertificateAuthority,
) -> None:
    async with RawServer() as server:
        pass
    async with (
        open_passing_door(ca=authority, tunnel_hosts=["127.0.0.1"]) as door,
        RawClient(door.port) as client,
    ):
        assert await connect(client, f"127.0.0.1:{server.port}") == 502


@pytest.mark.parametrize(
    ("intercept", "ruled", "opened"),
    [("all", False, True), ("rules", True, True), ("rules", False, False), ("none", True, False)],
)
async def test_which_tls_is_opened_is_configured(
    authority: CertificateAuthority,
    tmp_path: Path,
    intercept: str,
    ruled: bool,
    opened: bool,
) -> None:
    other = CertificateAuthority.open(tmp_path / "other")
    cadata = (authority if opened else other).pem.decode()
    context = ssl.create_default_context(cadata=cadata)
    seen = Tunnelled()
    async with (
        RawServer(tls=other.context("localhost")) as server,
        open_passing_door(
            upstream={"ca_file": tmp_path / "other" / "ca.pem"},
            ca=authority,
            intercept=intercept,
            knows_host=lambda host, port: ruled,
            on_tunnel=seen,
        ) as door,
        RawClient(door.port) as client,
    ):
        await connect(client, f"localhost:{server.port}")
        await client.start_tls(context, "localhost")
        got = await client.ask(f"GET / HTTP/1.1\r\nHost: localhost:{server.port}\r\n\r\n")
        assert got.body == b"ok"
        assert bool(server.requests[0].all("via")) is opened
        assert seen.seen == ([] if opened else [("localhost", "not-intercepted")])


@pytest.mark.duty("A-36")
async def test_a_client_that_speaks_only_http2_is_passed_on(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    other = CertificateAuthority.open(tmp_path / "other")
    server_context = other.context("localhost")
    server_context.set_alpn_protocols(["h2"])
    context = ssl.create_default_context(cadata=other.pem.decode())
    context.set_alpn_protocols(["h2"])
    seen = Tunnelled()
    async with (
        RawServer(tls=server_context) as server,
        open_passing_door(ca=authority, on_tunnel=seen) as door,
        RawClient(door.port) as client,
    ):
        await connect(client, f"localhost:{server.port}")
        await client.start_tls(context, "localhost")
        assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        assert seen.seen == [("localhost", "h2")]


@pytest.mark.duty("A-36")
async def test_a_client_that_offers_both_gets_http1(
    door: FrontDoor, trusting: ssl.SSLContext
) -> None:
    trusting.set_alpn_protocols(["h2", "http/1.1"])
    async with RawClient(door.port) as client:
        await connect(client, "api.test:443")
        await client.start_tls(trusting, "api.test")
        chosen = client.writer.get_extra_info("ssl_object").selected_alpn_protocol()
        assert chosen == "http/1.1"


@pytest.mark.parametrize(
    "hello_bytes", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00binary\r\n\r\n"]
)
async def test_other_protocols_in_a_tunnel_pass_unread(hello_bytes: bytes) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"got " + await reader.readexactly(len(hello_bytes)))
        await reader.read()  # the caller's end comes through
        writer.write(b" bye")
        writer.close()

    listener = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with open_passing_door() as door, RawClient(door.port) as client:
        await connect(client, f"127.0.0.1:{port}")
        await client.send(hello_bytes)
        expected = b"got " + hello_bytes
        assert await client.reader.readexactly(len(expected)) == expected
        client.writer.write_eof()
        assert await client.closed() == b" bye"
    listener.close()


async def test_a_service_that_speaks_first_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "SNIFF_TIMEOUT", 0.05)

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with open_passing_door() as door, RawClient(door.port) as client:
        await connect(client, f"127.0.0.1:{port}")
        assert await client.reader.readline() == b"220 hello\r\n"
    listener.close()


async def test_a_large_transfer_through_a_blind_tunnel_is_whole() -> None:
    data = bytes(range(256)) * 40_000

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(data)
        writer.write_eof()
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(pour, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with (
        open_passing_door(tunnel_hosts=["127.0.0.1"]) as door,
        RawClient(door.port) as client,
    ):
        await connect(client, f"127.0.0.1:{port}")
        await client.send(b"x")
        assert await client.closed() == data
    listener.close()


async def reject(door: FrontDoor, host: str, port: int) -> None:
    """One client that does not trust the local CA."""
    async with RawClient(door.port) as client:
        await connect(client, f"{host}:{port}")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await client.start_tls(ssl.create_default_context(), host)


async def test_a_client_that_rejects_the_ca_is_left_alone_on_hosts_without_rules(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    other = CertificateAuthority.open(tmp_path / "other")
    context = ssl.create_default_context(cadata=other.pem.decode())
    seen = Tunnelled()
    async with (
        RawServer(tls=other.context("localhost")) as server,
        open_passing_door(ca=authority, on_tunnel=seen) as door,
    ):
        await reject(door, "localhost", server.port)
        async with RawClient(door.port) as client:
            await connect(client, f"localhost:{server.port}")
            await client.start_tls(context, "localhost")
            assert (await client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n")).body == b"ok"
        assert seen.seen == [("localhost", "ca-not-trusted")]


async def test_a_rule_that_comes_later_ends_the_blind_tunnels_of_a_host(
    authority: CertificateAuthority, trusting: ssl.SSLContext
) -> None:
    ruled: list[bool] = []
    async with (
        RawServer() as server,
        open_passing_door(ca=authority, knows_host=lambda host, port: bool(ruled)) as door,
    ):
        await reject(door, "localhost", server.port)
        ruled.append(True)
        async with RawClient(door.port) as client:
            await connect(client, f"localhost:{server.port}")
            await client.start_tls(trusting, "localhost")  # our certificate, so it is opened
        assert server.connections == 0


@pytest.mark.duty("C-21")
async def test_a_client_that_rejects_the_ca_is_named_once_on_hosts_with_rules(
    authority: CertificateAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Tunnelled()
    async with open_passing_door(
        ca=authority, knows_host=lambda host, port: True, on_tunnel=seen
    ) as door:
        await reject(door, "api.test", 443)
        await reject(door, "api.test", 443)
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "api.test" in warnings[0]
    assert "SSL_CERT_FILE" in warnings[0]
    assert seen.seen == []


# The authority


def test_the_authority_is_made_once_and_only_its_owner_can_read_the_key(tmp_path: Path) -> None:
    made = CertificateAuthority.open(tmp_path / "ca")
    again = CertificateAuthority.open(tmp_path / "ca")
    assert made.pem == again.pem
    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "ca" / "ca-key.pem").stat().st_mode) == 0o600
    assert sorted(p.name for p in (tmp_path / "ca").iterdir()) == ["ca-key.pem", "ca.pem"]


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    CertificateAuthority.open(tmp_path / "ca")
    (tmp_path / "ca" / "ca-key.pem").chmod(0o640)
    with pytest.raises(CaError, match="chmod 600"):
        CertificateAuthority.open(tmp_path / "ca")


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        CertificateAuthority.open(tmp_path / name)
    with pytest.raises(CaError, match="belong together"):
        CertificateAuthority.load(tmp_path / "one" / "ca.pem", tmp_path / "two" / "ca-key.pem")
    with pytest.raises(CaError, match="PEM"):
        CertificateAuthority.load(tmp_path / "one" / "ca-key.pem", tmp_path / "one" / "ca-key.pem")
    with pytest.raises(CaError, match="cannot be read"):
        CertificateAuthority.load(tmp_path / "none.pem", tmp_path / "none.pem")


def test_an_authority_near_its_end_is_replaced(tmp_path: Path) -> None:
    made = CertificateAuthority.open(tmp_path / "ca")
    later = datetime.now(UTC).timestamp() + 340 * DAY
    assert CertificateAuthority.open(tmp_path / "ca", now=lambda: later).pem != made.pem


@pytest.mark.duty("C-9")
def test_leaves_are_short_have_their_own_key_and_name_their_issuer(
    authority: CertificateAuthority,
) -> None:
    now = datetime.now(UTC)
    leaf = authority.leaf("api.test", now.timestamp())
    assert leaf.not_valid_after_utc - leaf.not_valid_before_utc <= timedelta(days=30)
    assert leaf.not_valid_before_utc < now - timedelta(hours=12)
    assert leaf.public_key() != authority.certificate.public_key()
    issuer = leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    own = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    assert issuer.key_identifier == own.value.digest


def test_a_long_name_has_no_common_name_and_a_critical_alternative_name(
    authority: CertificateAuthority,
) -> None:
    leaf = authority.leaf("a" * 60 + ".test", datetime.now(UTC).timestamp())
    assert not list(leaf.subject)
    assert leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).critical


@pytest.mark.duty("C-10")
def test_contexts_are_kept_until_they_age_and_are_bounded(tmp_path: Path) -> None:
    moment = [datetime.now(UTC).timestamp()]
    authority = CertificateAuthority.open(tmp_path / "ca", now=lambda: moment[0])
    made = authority.context("api.test")
    assert authority.context("api.test") is made
    for number in range(CACHE):
        authority.context("api.test")  # used all the time, and so kept
        authority.context(f"{number}.test")
    assert authority.context("api.test") is made
    assert len(authority._contexts) == CACHE
    moment[0] += 31 * DAY
    assert authority.context("api.test") is not made


async def test_an_authority_for_some_names_is_not_believed_for_others(tmp_path: Path) -> None:
    names = ["stripe.test", "*.github.test"]
    authority = CertificateAuthority.open(tmp_path / "ca", names=names)
    assert CertificateAuthority.open(tmp_path / "ca", names=names).pem == authority.pem
    context = ssl.create_default_context(cadata=authority.pem.decode())
    async with open_door(Echo(), ca=authority) as door:
        for host, believed in (
            ("api.stripe.test", True),
            ("api.github.test", True),
            ("evil.test", False),
            ("127.0.0.1", False),
        ):
            async with RawClient(door.port) as client:
                await connect(client, f"{host}:443")
                if believed:
                    await client.start_tls(context, host)
                else:
                    with pytest.raises(ssl.SSLError, match="subtree violation"):
                        await client.start_tls(context, host)
    assert CertificateAuthority.open(tmp_path / "ca", names=["other.test"]).pem != authority.pem


# First bytes


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", First.MORE),
        (b"GE", First.MORE),
        (b"GET / HTTP/1.1", First.HTTP),
        (b"M-SEARCH /", First.HTTP),
        (b"PRI * HTTP/2.0\r\n", First.HTTP2),
        (b"\x16\x03", First.TLS),
        (b"SSH-2.0-x\r\n", First.OTHER),
        (b"get / ", First.OTHER),
        (b"X" * 64, First.OTHER),
    ],
)
def test_the_first_bytes_tell_the_protocol(data: bytes, kind: First) -> None:
    assert first(data) is kind


def client_hello() -> bytes:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="API.test")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def test_a_hello_is_read_whole_in_pieces_and_over_several_records() -> None:
    data = client_hello()
    for size in range(len(data)):
        assert hello(data[:size]) is None
    said = hello(data)
    assert said is not None
    assert (said.name, said.protocols) == ("api.test", ("h2", "http/1.1"))
    message = data[5:]
    parts = [message[:1], message[1:50], message[50:]]
    records = b"".join(data[:3] + len(part).to_bytes(2, "big") + part for part in parts)
    assert hello(records) == said


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x00\x04\x02\x00\x00\x00", b"\x17\x03\x01\x00\x00"])
def test_what_is_no_hello_is_said(data: bytes) -> None:
    with pytest.raises(BadHello):
        hello(data)


def test_a_hello_cut_anywhere_inside_never_breaks_the_reader() -> None:
    message = client_hello()[9:]
    for size in range(0, len(message), 3):
        body = message[:size]
        data = b"\x01" + len(body).to_bytes(3, "big") + body
        record = b"\x16\x03\x01" + len(data).to_bytes(2, "big") + data
        try:
            hello(record)
        except BadHello:
            pass
