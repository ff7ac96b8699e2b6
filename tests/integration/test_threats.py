"""The faults of other proxies, by the number under which they were published, and the threats to
this one. Where a test elsewhere holds one of them, the table at the end says which.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.config import Address, ControlConfig, Secret
from proxy.control.tokens import TokensUnusable, gather
from proxy.core.bodies import BodyMissing, parse_xml
from proxy.core.identity import encode_part
from proxy.core.model import Lost, NotSent, Request
from proxy.net import parsing
from proxy.net.upstream import Opened, Upstream
from tests import reliability
from tests.fakes.door import Echo, open_door, open_passing_door
from tests.fakes.rawclient import RawClient
from tests.fakes.rawserver import RawServer, answering
from tests.fakes.upstream import ToyApi
from tests.fakes.whole import assert_refused, outcome, toy_rules, whole

ROOT = Path(__file__).parent.parent.parent
PART = "Security"

# Requests that two parties may read in two ways: nothing of them, and nothing behind them, reaches
# anybody. What stands here follows the Host field; "!" is the second request, which a lenient
# reader takes for one of its own.
SMUGGLED = "POST http://a.test/refund HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"
SMUGGLING = {
    "CVE-2023-37276 a bare CR starts a field": "X: y\rContent-Length: 3\r\n\r\n!",
    "CVE-2023-47627 a length with a sign": "Content-Length: +3\r\n\r\n!",
    "CVE-2023-47641 length and chunks": f"Content-Length: 3\r\n{CHUNKED}\r\n0\r\n\r\n!",
    "CVE-2024-23829 a separator in a name": "Content(Length: 3\r\n\r\n!",
    "CVE-2024-52304 LF in a chunk's extension": f"{CHUNKED}\r\n3;a\nb\r\nabc\r\n0\r\n\r\n!",
    "CVE-2025-53643 a trailer that is none": f"{CHUNKED}\r\n0\r\nX : y\r\n\r\n!",
    "CVE-2025-69224 digits that are not ASCII": "Content-Length: ３\r\n\r\n!",
    "CVE-2026-34525 two Host fields": "Host: b\r\n\r\n!",
    "CVE-2020-15049 odd space in a length": "Content-Length:\x0b3\r\n\r\n!",
    "SQUID-2020:8 two lengths": "Content-Length: 0\r\nContent-Length: 77\r\n\r\n!",
    "SQUID-2020:10 a length with a comma": "Content-Length: 0, 77\r\n\r\n!",
    "SQUID-2023:1 space before the colon": "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n!",
    "tinyproxy#604 two codings": f"{CHUNKED}Transfer-Encoding: identity\r\n\r\n0\r\n\r\n!",
    "CVE-2026-54387 chunked with a comma": "Transfer-Encoding: chunked,\r\n\r\n0\r\n\r\n!",
    "CVE-2026-54388 another coding": "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n!",
    "CVE-2022-24766 a folded field": "X: y\r\n Content-Length: 3\r\n\r\n!",
    "GHSA-vqfr-h8mv-ghfj a chunk's end": f"{CHUNKED}\r\n3\r\nabcXX0\r\n\r\n!",
    "CVE-2023-49606 Connection names itself": "Connection: Connection, Host\r\n\r\n!",
}
WHOLE = {  # with a first line of their own; "@" is the service
    "CVE-2023-49081 CRLF through the version": "POST @ HTTP/1.1\nX: y\r\nHost: a\r\n\r\n!",
    "CVE-2023-49082 CRLF through the method": "POST\r\nX @ HTTP/1.1\r\nHost: a\r\n\r\n!",
    "CVE-2021-39214 chunks in HTTP/1.0": f"POST @ HTTP/1.0\r\nHost: a\r\n{CHUNKED}\r\n0\r\n\r\n!",
    "CVE-2022-29188 a name in brackets": "POST http://[a.test]/ HTTP/1.1\r\nHost: a\r\n\r\n!",
}


@pytest.mark.parametrize("name", [*SMUGGLING, *WHOLE])
async def test_nothing_is_smuggled(name: str) -> None:
    async with (
        RawServer() as server,
        open_passing_door() as door,
        RawClient(door.port) as client,
    ):
        base = f"http://127.0.0.1:{server.port}/first"
        hidden = SMUGGLED.replace("http://a.test", f"http://127.0.0.1:{server.port}")
        text = WHOLE.get(name) or f"POST @ HTTP/1.1\r\nHost: a\r\n{SMUGGLING[name]}"
        text = text.replace("@", base).replace("!", hidden)
        got = await client.ask(text.encode())
        assert got.status in (400, 501, 505), name
        assert await client.closed() == b""
        assert [r for r in server.requests if "refund" in r.line] == []
        assert server.requests == []
    reliability.figure("D-1", "published smuggling faults", part=PART, requests=1, reached=0)


async def test_the_hidden_request_does_reach_a_service_where_it_is_not_hidden() -> None:
    """The control: the same bytes behind a clean request are two requests."""
    async with RawServer() as server, open_passing_door() as door, RawClient(door.port) as client:
        hidden = SMUGGLED.replace("a.test", f"127.0.0.1:{server.port}")
        await client.ask(hidden.replace("refund", "first") + hidden)
        await client.answer()
        assert [r.target for r in server.requests] == ["/first", "/refund"]


def test_the_parser_is_the_c_one_and_new_enough() -> None:
    """CVE-2026-69243, CVE-2026-69244, CVE-2025-69227 and the sets before them: the floor is in the
    requirements, and a start without the C parser is refused."""
    parsing.check()
    text = (ROOT / "requirements" / "runtime.txt").read_text()
    found = re.search(r"^aiohttp==(\d+)\.(\d+)\.(\d+)", text, re.M)
    assert found is not None
    assert tuple(map(int, found.groups())) >= (3, 14, 3)


FORBIDDEN = ("ClientSession", "CookieJar", "multipart", "post", "request", "ws_connect")


def test_what_makes_faults_of_aiohttp_ours_is_not_used() -> None:
    """CVE-2024-30251, CVE-2025-69228 and CVE-2026-34516 (``post()`` and multipart),
    CVE-2025-69223 (decompression), CVE-2026-34518 (redirects that carry credentials),
    CVE-2026-59881 (the WebSocket client), host-only cookies: nothing here calls the parts they are
    in."""
    for file in (ROOT / "proxy" / "net").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                assert node.func.attr not in FORBIDDEN, (file, node.lineno)


async def test_httpoxy_a_proxy_field_goes_no_further() -> None:
    """CVE-2016-5385."""
    async with RawServer() as server, open_passing_door() as door, RawClient(door.port) as client:
        await client.ask(
            f"GET http://127.0.0.1:{server.port}/ HTTP/1.1\r\nHost: a\r\nProxy: http://evil\r\n\r\n"
        )
        assert server.requests[0].all("proxy") == []


async def test_the_proxys_credential_rides_no_redirect_and_reaches_no_service() -> None:
    """CVE-2023-32681."""
    async with RawServer() as other:
        to = f"http://127.0.0.1:{other.port}/"
        moved = f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"
        async with (
            RawServer(answering(moved.encode())) as server,
            open_passing_door() as door,
            RawClient(door.port) as client,
        ):
            got = await client.ask(
                f"GET http://127.0.0.1:{server.port}/ HTTP/1.1\r\nHost: a\r\n"
                "Proxy-Authorization: Basic cjpz\r\nAuthorization: Bearer x\r\n\r\n"
            )
            assert got.status == 302
            assert server.requests[0].all("proxy-authorization") == []
        assert other.connections == 0


async def test_an_error_page_never_repeats_the_request() -> None:
    """CVE-2025-62168 (S18): not even markup, and never as a page."""
    marks = "<script>alert(1)</script>"
    async with open_door(Echo()) as door:
        for text in (
            f"GET http://{marks}/ HTTP/1.1\r\nHost: a\r\n\r\n",
            f"GET /{marks} HTTP/1.1\r\nHost: {marks}\r\n\r\n",
            f"GET http://a.test/ HTTP/1.1\r\nHost: a\r\nA: {marks}\r\nX-Run-Id: %ff\r\n\r\n",
            f"{marks} http://a.test/ HTTP/1.1\r\nHost: a\r\n\r\n",
            f"GET http://a.test/ HTTP/1.1\r\nHost: a\r\n{marks}\r\n\r\n",
            f"CONNECT {marks}:443 HTTP/1.1\r\nHost: a\r\n\r\n",
        ):
            async with RawClient(door.port) as client:
                got = await client.ask(text)
                assert got.status >= 400
                assert got.all("content-type") == ["application/problem+json"]
                assert b"<" not in got.body
                assert b"alert" not in got.body
                assert "<" not in got.reason
                json.loads(got.body)


async def test_a_service_cannot_split_an_answer() -> None:
    """CVE-2026-34519: a reason phrase or field with a line break in it."""
    for answer in (
        b"HTTP/1.1 200 O\rSet-Cookie: x=1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: x=1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 \xe9\xff\r\nContent-Length: 0\r\n\r\n",
    ):
        async with (
            RawServer(answering(answer)) as server,
            open_passing_door() as door,
            RawClient(door.port) as client,
        ):
            got = await client.ask(
                f"GET http://127.0.0.1:{server.port}/ HTTP/1.1\r\nHost: a\r\n\r\n"
            )
            assert got.all("set-cookie") == []
            assert "\r" not in got.reason


# A service that means ill


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("a flood of interim answers", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 20_000),
        ("a head without end", b"HTTP/1.1 200 OK\r\n" + b"X-A: " + b"y" * 2_000_000),
        ("fields without end", b"HTTP/1.1 200 OK\r\n" + b"X-A: y\r\n" * 400_000),
        ("a status line without end", b"HTTP/1.1 200 " + b"y" * 2_000_000),
    ],
)
async def test_a_head_that_does_not_end_is_given_up(name: str, answer: bytes) -> None:
    async with RawServer(answering(answer)) as server:
        upstream = Upstream(answer_timeout=3.0)
        await upstream.start()
        try:
            async with asyncio.timeout(20):
                result = await upstream.open(
                    Request("GET", "http", "127.0.0.1", server.port, "/", ())
                )
            assert isinstance(result, Lost), name
            assert not isinstance(result, NotSent | Opened)
        finally:
            await upstream.close()


async def test_a_compressed_bomb_is_passed_on_as_it_is() -> None:
    """CVE-2025-69223: nothing of ours unpacks it."""
    import zlib

    bomb = zlib.compress(b"\0" * 50_000_000, 9, wbits=31)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    async with (
        RawServer(answering(head + bomb)) as server,
        open_passing_door() as door,
        RawClient(door.port) as client,
    ):
        got = await client.ask(f"GET http://127.0.0.1:{server.port}/ HTTP/1.1\r\nHost: a\r\n\r\n")
        assert got.body == bomb
        assert got.all("content-encoding") == ["gzip"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be"])
def test_an_xml_bomb_is_not_read(encoding: str) -> None:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 9))
    bomb = f'<!DOCTYPE b [<!ENTITY e0 "x">{entities}]><b>&e8;</b>'
    with pytest.raises(BodyMissing):
        parse_xml(bomb.encode(encoding))
    assert parse_xml(b"<b>x</b>") == {"b": "x"}


# Who may do what


@pytest.mark.parametrize("name", ["a.test", "A.TEST", "a.test.", "a.test:80", "%61.test"])
async def test_one_host_has_one_name(name: str) -> None:
    """CVE-2022-24825: a trailing dot, a letter's case or an escape leads past no list."""
    async with open_door(Echo()) as door, RawClient(door.port) as client:
        got = await client.ask(f"GET http://{name}/x HTTP/1.1\r\nHost: a\r\n\r\n")
        assert got.status == 400 or json.loads(got.body)["url"] == "http://a.test/x"


async def test_a_recorded_answer_is_for_its_own_operation_only(tmp_path: Path) -> None:
    """SQUID-2020:7, SQUID-2023:2: what is stored is found by run, step and operation, and by
    nothing that another caller could steer there."""
    toy = ToyApi()
    await toy.start()
    try:
        async with whole(tmp_path, toy_rules(toy.url)) as door:
            body = {"reference": "r", "amount": 1}
            first = await door.call(toy.url + "/refunds", body, "a/b", "c")
            assert first.status == 201
            for run, step in (("a", "b/c"), ("a", "b%2Fc"), ("A/b", "c"), ("a/b", "C")):
                other = await door.call(toy.url + "/refunds", body, run, step)
                assert outcome(other) == "sent", (run, step)
            again = await door.call(toy.url + "/refunds", body, "a/b", "c")
            assert outcome(again) == "replayed"
            # S8: the same name for something else.
            assert_refused(
                await door.call(toy.url + "/refunds", body | {"amount": 2}, "a/b", "c"),
                422,
                "operation-mismatch",
            )
    finally:
        await toy.close()


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=30)


def assert_injective(examples: int) -> None:
    """S7: two identities never share a key, whatever is in their names."""

    @settings(max_examples=examples, deadline=None, database=None)
    @given(NAMES, NAMES, NAMES, NAMES)
    def check(run: str, step: str, other_run: str, other_step: str) -> None:
        one = f"{encode_part(run)}/{encode_part(step)}/x"
        for pair in ((other_run, other_step), (run + "/" + step, "x"), (run, step + "/x")):
            other = f"{encode_part(pair[0])}/{encode_part(pair[1])}/x"
            assert (one == other) is ((run, step) == pair)

    check()


def test_no_two_identities_share_a_key() -> None:
    assert_injective(500)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_two_identities_share_a_key_in_a_hundred_thousand_pairs() -> None:
    assert_injective(34_000)  # three pairs each
    reliability.figure("S7", "pairs of identities", part=PART, pairs=102_000, shared_keys=0)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.internal"])
@pytest.mark.parametrize(
    ("token", "strong"),
    [("x" * 31, False), ("a" * 64, False), ("0123456789abcdef0123456789abcdef", True)],
)
def test_the_control_port_is_open_to_the_network_only_behind_strong_tokens(
    tmp_path: Path, host: str, token: str, strong: bool
) -> None:
    """S3."""
    for listen, accepted in ((Address(host, 8902), strong), (Address("127.0.0.1", 8902), True)):
        config = ControlConfig(listen=listen, operator_token=Secret(token))
        if accepted:
            assert gather(config, tmp_path / "tokens.json").holder(token) is not None
        else:
            with pytest.raises(TokensUnusable, match="can be guessed"):
                gather(config, tmp_path / "tokens.json")


def test_a_weak_token_in_the_file_is_refused_there_too(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"agent": "a", "operator": "b"}))
    file.chmod(0o600)
    gather(ControlConfig(), file)
    with pytest.raises(TokensUnusable, match="can be guessed"):
        gather(ControlConfig(listen=Address("0.0.0.0", 8902)), file)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"Host": "evil.test"}, 403),
        ({"Host": "127.0.0.1.evil.test"}, 403),
        ({"Origin": "http://evil.test"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost"}, 403),
        ({"Host": "evil.test", "Origin": "http://evil.test"}, 403),
        ({"Authorization": "Bearer no"}, 401),
        ({"Authorization": "Basic no"}, 401),
        ({"Cookie": "token={operator}"}, 401),
        ({}, 200),
    ],
)
async def test_a_page_in_a_browser_gets_nothing_from_the_control_port(
    tmp_path: Path, fields: dict[str, str], status: int
) -> None:
    """S3: by name, by origin, by cookie; there is no CORS, and every answer is plain data."""
    async with whole(tmp_path, (ROOT / "rules" / "example.yaml").read_text()) as door:
        tokens = json.loads((door.state_dir / "tokens.json").read_text())
        head = {
            "Host": f"127.0.0.1:{door.control}",
            "Authorization": f"Bearer {tokens['operator']}",
        }
        if "Cookie" in fields:
            del head["Authorization"]
        head |= {name: value.format(**tokens) for name, value in fields.items()}
        lines = "\r\n".join(f"{name}: {value}" for name, value in head.items())
        async with RawClient(door.control) as client:
            got = await client.ask(f"GET /v1/operations HTTP/1.1\r\n{lines}\r\n\r\n")
        assert got.status == status
        assert got.all("access-control-allow-origin") == []
        assert got.all("x-content-type-options") == ["nosniff"]
        assert got.all("content-security-policy")[0].startswith("default-src 'none'")


# S16: what rule files and callers write is never run


def test_no_pattern_of_a_user_is_a_regular_expression() -> None:
    """Every expression is a literal of the code. A pattern with a part that is not is one that a
    rule, a configuration or a caller may have written. The one in a vendor's model, which `rules
    generate` holds against samples of its own, is read by hand and never by the proxy."""
    found = []
    by_hand = ROOT / "proxy/rulefile/generate/text.py"
    for file in (ROOT / "proxy").rglob("*.py"):
        if file == by_hand:
            continue
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            module = node.func.value
            if not (isinstance(module, ast.Name) and module.id in ("re", "regex", "jmespath")):
                continue
            if node.func.attr in ("escape", "purge") or (module.id == "jmespath"):
                continue
            pattern = node.args[0]
            if not isinstance(pattern, ast.Constant) and not _made_of_constants(pattern):
                found.append(f"{file.relative_to(ROOT)}:{node.lineno}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile", "__import__"), file
    assert found == []


def _made_of_constants(pattern: ast.expr) -> bool:
    """An f-string of the code's own numbers and names in capitals."""
    return isinstance(pattern, ast.JoinedStr) and all(
        isinstance(part, ast.Constant)
        or (
            isinstance(part, ast.FormattedValue)
            and all(
                not isinstance(name, ast.Name) or name.id.isupper() for name in ast.walk(part.value)
            )
        )
        for part in pattern.values
    )


def test_a_pattern_that_hurts_regular_expressions_hurts_nothing_here() -> None:
    """Two hundred of them as paths, hosts and values of rules, none longer than 50 ms."""
    import time

    from tests.fuzz.targets import TARGETS

    bad = [
        f"{start * count}{end}"
        for start in ("(a+)+", "(a|a)*", "(.*a){20}", "([a-z]+)*", "{x}", "/{x+}", "a.b[", '"', "%")
        for count in (1, 5, 25, 100, 400)
        for end in ("$", "!", "", "]", "}")
    ]
    assert len(bad) > 200
    for text in bad:
        for name in ("path-templates", "fieldpaths", "yaml", "request-target"):
            began = time.process_time()
            TARGETS[name](text.encode())
            assert time.process_time() - began < 0.05, (name, text)
    reliability.figure(
        "S16", "patterns that hurt", part=PART, patterns=len(bad), slower_than_50_ms=0
    )


# Where the others are


def test_every_other_number_is_held_by_a_test_that_exists() -> None:
    lines = (Path(__file__).parent / "threats.txt").read_text().splitlines()
    wanted = dict(line.split(" | ") for line in lines if line and line[0] != "#")
    assert len(wanted) > 20
    files = {file.stem: file.read_text() for file in (ROOT / "tests").rglob("test_*.py")}
    for threat, where in wanted.items():
        module, _, test = where.partition(":")
        assert module in files, threat
        assert f"def {test}(" in files[module] if test else "def test_" in files[module], threat


def test_the_image_runs_as_nobody_in_particular() -> None:
    """S22: a user of its own, locked packages, and no build tools in the stage that runs."""
    text = (ROOT / "Dockerfile").read_text()
    last = text.rpartition("\nFROM ")[2]
    user = re.search(r"^USER (\S+)$", last, re.M)
    assert user is not None
    assert user[1] not in ("root", "0")
    assert re.search(rf"useradd .*\b{user[1]}\b", last.partition("USER ")[0])
    assert "--require-hashes" in text
    assert last.index("USER ") < last.index("ENTRYPOINT")
