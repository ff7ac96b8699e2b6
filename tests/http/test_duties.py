"""What a forward proxy must do, as raw bytes in and behaviour out, by every way into the proxy.

Each case is a duty by its number. It says what is sent, what the service must have received (fields
named in ``has`` exactly, in order, and nothing where it is refused), and what the caller is told.
After an answer that ends well the same connection must serve another call. What takes more than one
message is in ``test_exchanges.py``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from tests.fakes.rawclient import RawClient
from tests.fakes.rawserver import OK
from tests.http.world import GATEWAY, PROXY, TUNNEL, WAIT, WAYS, World

pytestmark = pytest.mark.asyncio(loop_scope="module")

Values = Mapping[str, list[str]]


@dataclass(frozen=True)
class Case:
    duty: str
    name: str
    raw: str  # UTF-8; bytes that are none stand as surrogates
    status: int = 200
    ways: tuple[str, ...] = WAYS
    method: str = "GET"  # as far as the answer's framing goes
    answer: bytes = OK
    arrived: int | None = None  # requests at the service; None: one, or none where it is refused
    line: str | None = None  # the first line that the service got
    has: Values = field(default_factory=dict)  # fields at the service; [] is none
    body: bytes | None = None  # at the service
    told: Values = field(default_factory=dict)  # fields of the answer
    got: bytes | None = None  # its body
    code: str | None = None  # of the problem document
    closes: bool | None = None  # the connection ends; None: where it is refused


def get(*fields: str, path: str = "/x", method: str = "GET", version: str = "1.1") -> str:
    return "\r\n".join([f"{method} {{{path}}} HTTP/{version}", "Host: {host}", *fields, "", ""])


def post(*fields: str, path: str = "/x", body: str = "") -> str:
    return get(*fields, path=path, method="POST") + body


def governed(thing: str, *fields: str, body: str = "{}", kind: str = "keyed") -> str:
    """A write that is recorded: under a run and a step of its own."""
    own = ("X-Run-Id: duties", f"X-Step-Id: {thing}", "Content-Type: application/json")
    size = () if any(f.lower().startswith("transfer-") for f in fields) else (_size(body),)
    return post(*own, *size, *fields, path=f"/v1/{kind}/{thing}", body=body)


def _size(body: str) -> str:
    return f"Content-Length: {len(body.encode('utf-8', 'surrogateescape'))}"


def answer(*fields: str, status: str = "200 OK", body: bytes = b"") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *fields, "", ""]).encode() + body


CHUNKED = "Transfer-Encoding: chunked"
TWO = "2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"  # "abcde" in chunks
SIZED = "Content-Length: 2"
MINTED = "9b3f8a90-7f0f-4d8e-9df3-5f0c2b6f2a11"
SIGNED = "Authorization: AWS4-HMAC-SHA256 Credential=c/s, SignedHeaders={}, Signature=s"
NO_FIELDS = answer("Content-Length: 0")

HOP = [
    *("Connection: keep-alive, X-Foo", "X-Foo: 1", "Keep-Alive: 5", "Proxy-Connection: keep-alive"),
    *("TE: trailers", "Trailer: X-T", "Upgrade: h2c", "HTTP2-Settings: x", "Proxy: http://evil"),
    *("Proxy-Authorization: Basic ZHV0aWVzOmE=", "Proxy-Authenticate: x"),
]
GONE = {
    name: []
    for name in (
        *("connection", "x-foo", "keep-alive", "proxy-connection", "te", "trailer", "upgrade"),
        *("http2-settings", "proxy", "proxy-authorization", "proxy-authenticate"),
        *("x-run-id", "x-step-id", "onceproxy-operation"),
    )
}
HOP_BACK = answer(
    *(
        "Connection: X-Bar, keep-alive, Upgrade",
        "X-Bar: 1",
        "Keep-Alive: timeout=5",
        "Upgrade: h2c",
    ),
    *("Proxy-Authenticate: Basic", "Proxy-Connection: close", "Trailer: X", "X-Own: 1"),
    *("Onceproxy-Outcome: sent", "Onceproxy-Operation: a/b/c/v1", "Content-Length: 0"),
)
BACK = {
    name: []
    for name in (
        *("x-bar", "keep-alive", "upgrade", "proxy-authenticate", "proxy-connection", "trailer"),
        *("transfer-encoding", "connection", "onceproxy-outcome", "onceproxy-operation"),
    )
}

PROTECTED = [
    *("Idempotency-Key", "Host", "Content-Length", "Authorization", "Content-Type", "Cookie"),
    *("X-Run-Id", "X-Step-Id", "X-Operation-Id", "baggage", "Transfer-Encoding, Expect"),
    *("Paypal-Request-Id", "X-Idempotency-Key", "If-Match", "content-encoding", "X-Amz-Date"),
]

PATH = "/%7Ea/%2F..b%2fc/.x/;p=%C3%A9?q=a+b%20c&z=%e2%9c%93&&=&k"

SMUGGLING = {
    "length-and-chunked": (("Content-Length: 3", CHUNKED), "0\r\n\r\n", 400),
    "chunked-and-length": ((CHUNKED, "Content-Length: 3"), "0\r\n\r\n", 400),
    "two-lengths": ((SIZED, "Content-Length: 3"), "ab", 400),
    "two-equal-lengths": ((SIZED, SIZED), "ab", 400),
    "listed-lengths": (("Content-Length: 2, 2",), "ab", 400),
    "plus-length": (("Content-Length: +2",), "ab", 400),
    "minus-length": (("Content-Length: -2",), "ab", 400),
    "hex-length": (("Content-Length: 0x2",), "ab", 400),
    "huge-length": (("Content-Length: 99999999999999999999999",), "ab", 400),
    "empty-length": (("Content-Length:",), "ab", 400),
    "underscored-length": (("Content-Length: 1_0",), "ab", 400),
    "spaced-length": (("Content-Length : 2",), "ab", 400),
    "xchunked": (("Transfer-Encoding: xchunked",), "0\r\n\r\n", 400),
    "chunked-twice": ((CHUNKED, CHUNKED), "0\r\n\r\n", 400),
    "chunked-then-gzip": (("Transfer-Encoding: chunked, gzip",), "0\r\n\r\n", 400),
    "gzip-then-chunked": (("Transfer-Encoding: gzip, chunked",), "0\r\n\r\n", 501),
    "chunked-comma": (("Transfer-Encoding: chunked,",), "0\r\n\r\n", 400),
    "comma-chunked": (("Transfer-Encoding: ,chunked",), "0\r\n\r\n", 501),
    "chunked-tab": (("Transfer-Encoding: chunked\t",), "0\r\n\r\n", 400),
    "chunked-vertical-tab": (("Transfer-Encoding: \x0bchunked",), "0\r\n\r\n", 400),
    "chunked-quoted": (('Transfer-Encoding: "chunked"',), "0\r\n\r\n", 400),
    "identity": (("Transfer-Encoding: identity",), "", 400),
    "spaced-encoding": (("Transfer-Encoding : chunked",), "0\r\n\r\n", 400),
    "folded-encoding": (("Transfer-Encoding:\r\n chunked",), "0\r\n\r\n", 400),
}
SYNTAX = {
    "folded": ("X-A: 1\r\n folded",),
    "bare-line-feed": ("X-A: 1\nX-B: 2",),
    "bare-carriage-return": ("X-A: a\rb",),
    "nul": ("X-A: a\0b",),
    "space-before-colon": ("X-A : 1",),
    "space-in-name": ("X A: 1",),
    "no-name": (": 1",),
    "no-colon": ("X-A",),
    "second-host": ("Host: b.test",),
    "bracket-in-name": ("X[a]: 1",),
}
CHUNKS = {
    "too-short": "5\r\nab\r\n0\r\n\r\n",
    "bad-terminator": "2\r\nabXX0\r\n\r\n",
    "no-hex": "zz\r\n",
    "prefixed": "0x2\r\nab\r\n0\r\n\r\n",
    "negative": "-2\r\nab\r\n0\r\n\r\n",
    "spaced": " 2\r\nab\r\n0\r\n\r\n",
    "line-feed-in-extension": "2;\nx\r\nab\r\n0\r\n\r\n",
    "bare-line-feed": "2\nab\n0\n\n",
    "huge": "fffffffffffffffff\r\nab\r\n0\r\n\r\n",
    "folded-trailer": "0\r\nX: 1\r\n y\r\n\r\n",
}
MALFORMED = {  # answers that can be read in two ways
    "length-and-chunked": answer(SIZED, CHUNKED, body=b"0\r\n\r\n"),
    "two-lengths": answer(SIZED, "Content-Length: 3", body=b"abc"),
    "no-status": b"HTTP/1.1 OK\r\n\r\n",
    "no-http": b"220 mail.test ESMTP\r\n",
    "two-heads": answer(SIZED, body=b"").replace(b"\r\n\r\n", b"\r\nHTTP/1.1 200 OK\r\n\r\n"),
    "unasked-101": answer("Upgrade: x", "Connection: Upgrade", status="101 Switching Protocols"),
}


def cases() -> Iterator[Case]:
    yield Case("A-1", "read", get(*HOP, "Onceproxy-Operation: x"), has={**GONE, "x-run-id": []})
    yield Case("A-1", "governed-write", governed("hop-1", *HOP[:-2]), has=GONE)
    yield Case("A-1", "answer", get(), answer=HOP_BACK, told={**BACK, "x-own": ["1"]})
    for name in PROTECTED:
        signed = [SIGNED.format("host;x-amz-date"), "X-Amz-Date: d"] if "Amz" in name else []
        raw = post(f"Connection: close, {name}", f"{name.split(',')[0]}: 1", *signed)
        if name not in ("Host", "Content-Length", "Transfer-Encoding, Expect"):
            yield Case("A-2", name, raw, 400, code="bad-request")
        else:
            yield Case("A-2", name, post(f"Connection: {name}"), 400, code="bad-request")

    evil = "GET {/x} HTTP/1.1\r\nHost: evil.test\r\n\r\n"
    yield Case("A-3", "host-is-ignored", evil, ways=(PROXY,), line="GET /x HTTP/1.1")
    yield Case("A-3", "host-in-tunnel", evil, 421, ways=(TUNNEL,))
    yield Case("A-3", "host-at-gateway", evil, 403, ways=(GATEWAY,))
    yield Case("A-3", "empty-host", "GET {/x} HTTP/1.1\r\nHost:\r\n\r\n", ways=(PROXY,))
    for target in ("/metrics", "/", "*", "/via", "/via/", "/via/ftp/a.test/", "/as/r/s/", "//a/"):
        method = "OPTIONS" if target == "*" else "GET"
        raw = f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        yield Case("A-4", target.strip("/*") or repr(target), raw, 400, ways=(PROXY,))
    userinfo = "GET http://u:p@localhost/x HTTP/1.1\r\nHost: localhost\r\n\r\n"
    yield Case("A-5", "user-in-target", userinfo, 400, ways=(PROXY, TUNNEL))
    userinfo = "GET /via/http/u:p@localhost/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    yield Case("A-5", "user-at-gateway", userinfo, 400, ways=(GATEWAY,))
    connects = {
        "no-port": ("a.test", 400, ()),
        "user": ("u@a.test:443", 400, ()),
        "length": ("a.test:443", 400, ("Content-Length: 3",)),
        "chunked": ("a.test:443", 400, (CHUNKED,)),
        "port-0": ("a.test:0", 400, ()),
        "port-99999": ("a.test:99999", 400, ()),
        "absolute": ("http://a.test/", 400, ()),
        "brackets": ("[a.test]:443", 400, ()),
        "zone": ("[fe80::1%25eth0]:443", 400, ()),
        "path": ("/x", 400, ()),
        "mail": ("localhost:25", 403, ()),
        "submission": ("localhost:587", 403, ()),
    }
    for name, (target, status, fields) in connects.items():
        lines = [f"CONNECT {target} HTTP/1.1", "Host: a.test", *fields, "", ""]
        follows = "POST http://localhost/refund HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
        raw = "\r\n".join(lines) + follows
        duty = "A-7" if status == 403 else "A-6"
        yield Case(duty, name, raw, status, ways=(PROXY,))
    yield Case("A-6", "in-a-tunnel", "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400, ways=(TUNNEL,))

    yield Case("A-10", "via", get(), has={"via": ["1.1 onceproxy"], "x-forwarded-for": []})
    yield Case("A-10", "others", get("Via: 1.0 a"), has={"via": ["1.0 a", "1.1 onceproxy"]})
    yield Case("A-10", "loop", get("Via: 1.0 a, 1.1 onceproxy"), 508)
    yield Case(
        "A-10", "signed", get(SIGNED.format("host;via"), "Via: 1.0 a"), has={"via": ["1.0 a"]}
    )
    yield Case(
        "A-11",
        "itself",
        get(path="/x").replace("{/x}", "http://127.0.0.1:{own}/x"),
        403,
        ways=(PROXY,),
        code="egress-denied",
        closes=False,
    )
    yield Case("A-12", "unknown", post("Expect: wonders", SIZED, body="ab"), 417)
    yield Case(
        "A-13", "passing", post(CHUNKED, body=TWO), has={"content-length": []}, body=b"abcde"
    )
    yield Case(
        "A-13",
        "governed",
        governed("chunks", CHUNKED, body="2\r\n{}\r\n0\r\n\r\n"),
        has={"transfer-encoding": [], "content-length": ["2"]},
        body=b"{}",
    )
    capital = governed("capital", "Transfer-Encoding: Chunked", body="2\r\n{}\r\n0\r\n\r\n")
    yield Case("A-13", "capital", capital, body=b"{}")
    trailer = "2\r\nab\r\n0\r\nX-T: 1\r\n\r\n"
    framing = "2\r\nab\r\n0\r\nContent-Length: 9\r\n\r\n"
    yield Case("A-14", "framing-in-trailer", governed("trail-2", CHUNKED, body=framing), 400)
    gone = {"trailer": [], "x-t": [], "content-length": []}
    yield Case("A-14", "passing", post(CHUNKED, "Trailer: X-T", body=trailer), has=gone, body=b"ab")
    yield Case(
        "A-14",
        "governed",
        governed("trail", CHUNKED, body="2\r\n{}\r\n0\r\nX-T: 1\r\n\r\n"),
        has={"x-t": []},
        body=b"{}",
    )
    yield Case(
        "A-14",
        "answer",
        get(),
        answer=answer(CHUNKED, body=b"1\r\na\r\n0\r\nX-T: 1\r\n\r\n"),
        told={"x-t": []},
        got=b"a",
    )

    head = answer("Content-Length: 10")
    yield Case(
        "A-15",
        "head",
        get(method="HEAD"),
        method="HEAD",
        answer=head,
        told={"content-length": ["10"], "transfer-encoding": []},
    )
    yield Case(
        "A-15",
        "head-chunked",
        get(method="HEAD"),
        method="HEAD",
        answer=answer(CHUNKED),
        told={"content-length": []},
    )
    for status in ("204 No Content", "304 Not Modified"):
        yield Case(
            "A-15",
            status[:3],
            get(),
            int(status[:3]),
            answer=answer(status=status),
            told={"content-length": [], "transfer-encoding": []},
        )
        yield Case(
            "A-15",
            f"{status[:3]}-governed",
            governed(f"no-body-{status[:3]}", kind="bare"),
            204 if "204" in status else 424,
            answer=answer(status=status),
            arrived=1,
            closes=False,
            told={"transfer-encoding": []},
        )
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    yield Case("A-17", "103-is-not-final", get(), answer=early + OK, got=b"ok", told={"link": []})
    yield Case("A-17", "103-governed", governed("early"), answer=early * 2 + OK, got=b"ok")
    yield Case(
        "A-18",
        "close-of-the-service",
        get(),
        answer=answer("Connection: close", SIZED, body=b"ab"),
        told={"connection": []},
        got=b"ab",
    )
    yield Case(
        "A-18",
        "close-of-the-caller",
        get("Connection: close"),
        told={"connection": ["close"]},
        closes=True,
        has={"connection": []},
    )
    yield Case("A-18", "http-1.0", get(version="1.0"), line="GET /x HTTP/1.1", closes=True)
    yield Case(
        "A-18",
        "http-1.0-goes-on",
        get("Connection: keep-alive", version="1.0"),
        told={"connection": ["keep-alive"]},
    )
    yield Case(
        "A-21",
        "h2c",
        get("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: x"),
        has={"upgrade": [], "http2-settings": [], "connection": []},
    )
    zipped = answer("Content-Encoding: gzip", "Content-Length: 3", body=b"\x1f\x8b\x08")
    kept = {"content-encoding": ["gzip"], "content-length": ["3"]}
    yield Case("A-22", "passing", get(), answer=zipped, got=b"\x1f\x8b\x08", told=kept)
    yield Case("A-22", "governed", governed("zip"), answer=zipped, got=b"\x1f\x8b\x08", told=kept)
    yield Case(
        "A-22", "not-asked-for", get(), has={"accept-encoding": [], "accept": [], "user-agent": []}
    )
    mixed = get("X-A: 1", "x-a: 2", "Accept: */*", "X-A: 3", "x-mIxEd: caf\udce9", "X-Empty:")
    yield Case("A-23", "request", mixed, has={"x-a": ["1", "2", "3"], "x-mixed": ["caf\udce9"]})
    cookies = answer(
        "Set-Cookie: a=1; Path=/", "X-B: 1", "set-cookie: b=2", "X-b: 2", "Content-Length: 0"
    )
    yield Case(
        "A-23",
        "answer",
        get(),
        answer=cookies,
        told={"set-cookie": ["a=1; Path=/", "b=2"], "x-b": ["1", "2"]},
    )
    yield Case("A-23", "governed", governed("two"), answer=cookies, told={"x-b": ["1", "2"]})
    yield Case("A-24", "passing", get(path=PATH), line=f"GET {PATH} HTTP/1.1")
    bare = post("X-Run-Id: d", "X-Step-Id: path", "Content-Length: 0", path=f"/v1{PATH}")
    yield Case("A-24", "governed", bare, line=f"POST /v1{PATH} HTTP/1.1")
    yield Case("A-24", "question-mark", get(path="/x?"), line="GET /x? HTTP/1.1")
    yield Case("A-24", "slashes", get(path="//a//b/"), line="GET //a//b/ HTTP/1.1")
    for name, target in {
        "space": "/a b",
        "utf-8": "/caf\u00e9",
        "fragment": "/a#b",
        "tab": "/a\tb",
    }.items():
        yield Case("A-24", name, get(path=target), 400)

    escaped = governed("escaped").replace("/v1/keyed/", "/v1/%6Beyed/")
    key = {"idempotency-key": ["duties/{way}-escaped/things.keyed/v1"]}
    line = "POST /v1/%6Beyed/escaped HTTP/1.1"
    yield Case("A-24", "rule-reads-it-decoded", escaped, line=line, has=key)
    for name, path in {"dots": "..", "escaped-dots": "%2e%2E", "backslash": "%5c..%5c"}.items():
        raw = governed(name).replace("/v1/keyed/", f"/v1/{path}/")
        yield Case("A-24", name, raw, 400, closes=False)
    date = "X-Amz-Date: 20261130T000000Z"
    yield Case(
        "A-25",
        "passing",
        post(SIGNED.format("host;x-amz-date;x-run-id"), date, "X-Run-Id: r", SIZED, body="ab"),
        has={"x-run-id": ["r"], "x-amz-date": ["20261130T000000Z"]},
        body=b"ab",
    )
    yield Case(
        "A-25",
        "governed",
        governed("sigv4", SIGNED.format("content-type;host;x-amz-date"), date, kind="signed"),
        has={"idempotency-key": [], "x-amz-date": ["20261130T000000Z"]},
        body=b"{}",
    )
    yield Case(
        "A-25",
        "rule-does-not-say-so",
        governed("sig-add", SIGNED.format("host;x-amz-date"), date),
        has={"x-amz-date": ["20261130T000000Z"], "idempotency-key": []},
    )
    yield Case(
        "A-25",
        "signed-hop-by-hop",
        get(SIGNED.format("host;connection"), "Connection: keep-alive"),
        400,
    )
    yield Case(
        "A-25", "signed-te", post(SIGNED.format("host;transfer-encoding"), CHUNKED, body=TWO), 400
    )
    yield Case(
        "A-25",
        "signed-key",
        governed(
            "sig-key",
            SIGNED.format("host;idempotency-key"),
            "Idempotency-Key: 9b3f8a90-7f0f-4d8e-9df3-5f0c2b6f2a11",
        ),
        has={"idempotency-key": [MINTED]},
    )

    for name, (fields, rest, status) in SMUGGLING.items():
        yield Case("A-26", name, post(*fields, body=rest), status)
        yield Case("A-26", f"{name}-governed", _unsized(governed(name), *fields, body=rest), status)
    yield Case("A-26", "http-1.0-chunked", post(CHUNKED, body=TWO).replace("/1.1", "/1.0", 1), 400)
    for name, fields in SYNTAX.items():
        yield Case("A-27", name, post(*fields), 400)
    yield Case("A-27", "no-host", "GET {/x} HTTP/1.1\r\n\r\n", 400)
    yield Case("A-27", "leading-space", "GET {/x} HTTP/1.1\r\n X-A: 1\r\nHost: {host}\r\n\r\n", 400)
    for name, chunks in CHUNKS.items():
        raw = governed(f"chunk-{name}", CHUNKED, body=chunks)
        yield Case("A-27", f"chunk-{name}", raw, 400)
    for name, data in MALFORMED.items():
        yield Case(
            "A-28", name, get(), 502, answer=data, arrived=1, code="upstream-lost", closes=False
        )
        yield Case(
            "A-28",
            f"{name}-governed",
            governed(f"mal-{name}", kind="bare"),
            424,
            answer=data,
            arrived=1,
            code="outcome-unresolved",
            closes=False,
        )
    lenient = answer("X-A: 1", " folded", "Content-Length : 2", body=b"ab").replace(
        b"OK\r\n", b"OK\n"
    )
    yield Case(
        "A-28",
        "lenient-is-made-strict",
        get(),
        answer=lenient,
        got=b"ab",
        told={"content-length": ["2"]},
    )

    yield Case(
        "A-34", "zone", get().replace("{/x}", "http://[fe80::1%25eth0]/x"), 400, ways=(PROXY,)
    )
    yield Case(
        "A-34", "brackets", get().replace("{/x}", "http://[localhost]/x"), 400, ways=(PROXY,)
    )
    yield Case(
        "A-35", "utf-8", get().replace("{/x}", "http://b\u00fccher.test/x"), 400, ways=(PROXY,)
    )
    yield Case("A-35", "dot-and-case", get().replace("http", "HTTP").replace("{/x}", "{/x}"))
    yield Case("A-43", "line", get(path="/" + "x" * 70_000), 414)
    yield Case("A-43", "field", get("X-A: " + "x" * 70_000), 431)
    yield Case("A-43", "fields", get(*["X-A: 1"] * 300), 431)
    yield Case("A-43", "head", get(*[f"X-A: {'x' * 6000}"] * 40), 431)
    yield Case(
        "A-43", "long-is-fine", get(path="/" + "x" * 30_000), line=f"GET /{'x' * 30_000} HTTP/1.1"
    )
    for version in ("2.0", "0.9", "1.2", "3"):
        yield Case("A-44", version, get(version=version), 400 if version in ("1.2", "3") else 505)
    for method in ("QUERY", "PROPFIND", "M-SEARCH", "PATCH", "DELETE", "OPTIONS"):
        yield Case("A-45", method, get(method=method), line=f"{method} /x HTTP/1.1")
        raw = get(CHUNKED, method=method) + TWO
        yield Case("A-45", f"{method}-with-chunks", raw, body=b"abcde")
    for method in ("FROB", "get", "G\u00cbT"):
        yield Case("A-45", method, get(method=method), 400)
    secret = post("Authorization: Bearer canary-1", "X-A : canary-2", path="/canary-3")
    yield Case("A-46", "no-echo", secret, 400, code="bad-request")
    moved = answer("Location: http://localhost/elsewhere", "Content-Length: 0", status="302 Found")
    yield Case(
        "A-47", "302", get(), 302, answer=moved, told={"location": ["http://localhost/elsewhere"]}
    )
    yield Case("A-47", "307", post(SIZED, body="ab"), 307, answer=moved.replace(b"302", b"307"))
    yield Case(
        "A-48",
        "cookie",
        get(),
        answer=answer("Set-Cookie: a=1", "Content-Length: 0"),
        has={"cookie": []},
    )
    yield Case(
        "A-49",
        "nothing-invented",
        get(),
        answer=NO_FIELDS,
        told={"date": [], "server": [], "content-type": [], "via": [], "connection": []},
    )


def _unsized(raw: str, *fields: str, body: str) -> str:
    """A request with other framing fields."""
    head, _, _ = raw.partition("\r\n\r\n")
    lines = [line for line in head.split("\r\n") if not line.startswith("Content-Length")]
    return "\r\n".join([*lines, *fields, "", ""]) + body


CASES = list(cases())
COMPLAINTS = {  # about other proxies, that one of the duties answers
    "C-6": ("A-15", "head-chunked"),
    "C-8": ("A-28", "lenient-is-made-strict"),
    "C-13": ("A-24", "passing"),
    "C-16": ("A-15", "204"),
    "C-30": ("A-25", "rule-does-not-say-so"),
    "C-31": ("A-24", "governed"),
    "C-32": ("A-45", "OPTIONS-with-chunks"),
    "C-33": ("A-26", "chunked-comma"),
    "C-35": ("A-24", "rule-reads-it-decoded"),
}
NAMED = {duty: complaint for complaint, duty in COMPLAINTS.items()}


def ids(case: Case) -> list[str]:
    named = NAMED.get((case.duty, case.name))
    return [case.duty, named] if named else [case.duty]


RUNS = [
    pytest.param(case, way, id="-".join([*ids(case), case.name, way])[:80])
    for case in CASES
    for way in case.ways
]


@pytest.mark.parametrize(("case", "way"), RUNS)
async def test_duty(w: World, case: Case, way: str) -> None:
    w.answers(case.answer)
    raw = case.raw.replace("Step-Id: ", f"Step-Id: {way}-")
    refused = case.status >= 400 if case.closes is None else case.closes
    async with w.client(way) as client, asyncio.timeout(WAIT):
        # What hides behind a request that is refused must not be served either.
        hidden = w.fill(way, get(path="/hidden")) if refused else b""
        await client.send(w.fill(way, raw) + hidden)
        got = await client.answer(method=case.method)
        if refused:
            assert await client.closed() == b""
        else:
            await assert_in_step(w, way, client)
    arrived_here = [received for received in w.arrived if "/in-step" not in received.target]
    expected = case.arrived if case.arrived is not None else int(got.status < 400)
    assert (got.status, len(arrived_here)) == (case.status, expected), got.body
    if arrived_here:
        [arrived] = arrived_here
        if case.line is not None:
            assert arrived.line == case.line
        for name, values in case.has.items():
            assert arrived.all(name) == [value.replace("{way}", way) for value in values], name
        if case.body is not None:
            assert arrived.body == case.body
    for name, values in case.told.items():
        assert got.all(name) == values, name
    if case.got is not None:
        assert got.body == case.got
    if case.code is not None:
        assert json.loads(got.body)["type"] == f"urn:onceproxy:{case.code}"
    if case.status >= 400:
        assert got.all("content-type") == ["application/problem+json"]
        assert b"canary" not in got.body
        assert b"xxxx" not in got.body


async def assert_in_step(w: World, way: str, client: RawClient) -> None:
    """Another call on the same connection gets its own answer."""
    mine = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nin step"
    w.answers(mine)
    got = await client.ask(w.fill(way, get(path="/in-step")))
    assert (got.status, got.body) == (200, b"in step")
