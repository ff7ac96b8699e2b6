"""What reads text that others write, as functions that take any bytes and may fail in their own
words only: the errors that the code names. Anything else that comes out is a bug (S19).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from proxy import units
from proxy.core import egress
from proxy.core.fieldpath import form_steps, path_steps, path_text
from proxy.core.identity import BadIdentity, Sources, encode_part, identify, strip_baggage
from proxy.core.paths import PathError, answer_path, request_path
from proxy.core.templates import TemplateError, parse_template, parse_url
from proxy.net.clienthello import BadHello, first, hello
from proxy.net.egress import Egress
from proxy.net.headers import BadCredential, basic_credential, signed_names
from proxy.net.incoming import Refused
from proxy.net.sites import FixedSite, ProxySite, TunnelSite
from proxy.net.target import BadTarget
from proxy.rulefile import yamltext
from proxy.rulefile.patterns import PatternError, host_pattern, request_line
from proxy.rulefile.problems import Problems

Target = Callable[[bytes], None]

_SITES = (
    ProxySite(),
    TunnelSite("https", "api.test", 443, None),
    FixedSite("https://api.test/base"),
)
_EGRESS = Egress(allow=["10.0.0.0/8"])


def text_of(data: bytes) -> str:
    """As header fields and targets are decoded."""
    return data.decode("utf-8", "surrogateescape")


def target(data: bytes) -> None:
    """A request target and a Host field, at each way in."""
    line, _, host = text_of(data).partition("\n")
    for site in _SITES:
        try:
            place = site.place(line, host, ())
        except (BadTarget, Refused):
            continue
        assert place.scheme in ("http", "https")
        assert place.host == place.host.lower()
        assert not set(place.host) & set("/@ []\r\n\0"), place
        assert 1 <= place.port <= 65535
        assert place.target.startswith(("/", "?", "*")), place
        _EGRESS.literal(place.host, place.port)


def baggage(data: bytes) -> None:
    value = text_of(data)
    rest = strip_baggage(value)
    if rest is not None:
        assert len(rest) <= len(value)
        assert strip_baggage(rest) == rest
    try:
        found = identify(Sources(baggage=value))
    except BadIdentity:
        return
    for part in (found.run, found.step):
        if part is not None:
            assert encode_part(part).isascii()


def credential(data: bytes) -> None:
    value = text_of(data)
    signed_names(value)
    try:
        pair = basic_credential(value)
        found = identify(Sources(credential=pair, run=None))
    except (BadCredential, BadIdentity):
        return
    for part in (found.run, found.step):
        if part is not None:
            encoded = encode_part(part)
            assert encoded.isascii()
            assert encoded.isprintable()
            assert "/" not in encoded


def rule_text(data: bytes) -> None:
    problems = Problems("rules.yaml")
    yamltext.read(data.decode("utf-8", "replace"), problems)


def durations(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for read in (units.duration, units.size):
        try:
            value = read(text)
        except ValueError:
            continue
        assert value >= 0
        assert not math.isnan(value)


def templates(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for read in (parse_template, parse_url):
        try:
            read(text, ("id", "key"))
        except (TemplateError, PathError):
            pass
    for pattern in (host_pattern, request_line):
        try:
            pattern(text)
        except PatternError:
            pass


def field_paths(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for read in (request_path, answer_path):
        try:
            read(text)
        except PathError:
            pass
    assert path_text("body", form_steps(text)).startswith("body")


def written_paths(data: bytes) -> None:
    """A path that was made from steps is read as these steps again."""
    name, _, rest = data.decode("utf-8", "replace").partition("\0")
    steps = (name, 3, None, rest) if name and rest else (name or "a",)
    written = path_text("", steps)
    assert path_steps(written) == steps, (written, steps)


def client_hello(data: bytes) -> None:
    first(data)
    try:
        said = hello(data)
    except BadHello:
        return
    assert said is None or said.name == said.name.lower()


def egress_lines(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    try:
        line = egress.Line.parse(text)
    except ValueError:
        return
    assert egress.Line.parse(line.text) == line
    line.weight("api.test", None, 443)


TARGETS: dict[str, Target] = {
    "request-target": target,
    "baggage": baggage,
    "proxy-credential": credential,
    "yaml": rule_text,
    "durations": durations,
    "path-templates": templates,
    "fieldpaths": field_paths,
    "written-paths": written_paths,
    "client-hello": client_hello,
    "egress-lines": egress_lines,
}

SEEDS: dict[str, list[bytes]] = {
    "request-target": [
        b"http://api.test:8080/a%2Fb?c=d\nx",
        b"/as/run/step/via/https/api.test/v1\nlocalhost",
        b"https://[::1]:443/\n",
        b"/x\napi.test",
        b"http://xn--bcher-kva.test./\n",
    ],
    "baggage": [b"run.id=case-1,step.id=call%201;p=1, other=x", b"run.id=a,run.id=b"],
    "proxy-credential": [b"Basic cnVuOnN0ZXA=", b"Basic " + b"JTI1M0E6", b"AWS4-HMAC-SHA256 a"],
    "yaml": [
        b"a: {b: [1, x]}\n",
        b"a: &x {k: 1}\nb: *x\n",
        b"? a\n: !!python/object x\n",
        b"a: on\n",
    ],
    "durations": [b"20s", b"1h30m", b"0", b"10MiB", b"1.5 GB"],
    "path-templates": [
        b"{body.id|hex:40}",
        b"GET /v1/{x}/{y+}?a={b}",
        b"*.a.test:443",
        b"{sent_at minus 60s}",
    ],
    "fieldpaths": [b'body.a[0]."x.y"[]', b"metadata[case][]", b"header.X"],
    "written-paths": [b"a\0b", b'q"."\0[', b"\\\0\n"],
    "client-hello": [b"\x16\x03\x01\x00\x04\x01\x00\x00\x00", b"PRI * HTTP/2.0\r\n\r\n"],
    "egress-lines": [b"*.a.test", b"10.0.0.0/8", b"[::1]:9000", b"a.test:443", b"*"],
}
