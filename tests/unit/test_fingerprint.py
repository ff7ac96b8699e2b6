"""What counts in a request and what does not."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.credentials import split
from proxy.core.fieldpath import form_steps, path_steps, path_text
from proxy.core.fingerprint import (
    DuplicateMember,
    canonical,
    content_digest,
    differences,
)
from proxy.core.model import Body, Request

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


def request(
    body: bytes | str = b"",
    kind: str | None = JSON,
    *,
    target: str = "/v1/refunds",
    method: str = "POST",
    host: str = "api.example.com",
    headers: tuple[tuple[str, str], ...] = (),
) -> Request:
    data = body.encode() if isinstance(body, str) else body
    typed = () if kind is None else (("Content-Type", kind),)
    return Request(method, "https", host, 443, target, typed + headers, Body.of(data))


def digest(*args: Any, **options: Any) -> str:
    return canonical(request(*args, **options)).digest()


def drift(a: str, b: str, kind: str = JSON) -> tuple[str, ...]:
    return differences(canonical(request(a, kind)), canonical(request(b, kind)))


# --- JSON -----------------------------------------------------------------------------------------

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)


def shuffled(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        members = list(value.items())
        rng.shuffle(members)
        return {name: shuffled(member, rng) for name, member in members}
    return [shuffled(item, rng) for item in value] if isinstance(value, list) else value


def sites(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at]
    if isinstance(value, dict):
        for name, member in value.items():
            found += sites(member, (*at, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += sites(item, (*at, index))
    return found


def replaced(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = replaced(value[at[0]], at[1:], new)
    return copy


@given(values, st.randoms(use_true_random=False), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_json_member_order_white_space_and_escapes_do_not_count(
    value: Any, rng: random.Random, indent: Any, escaped: bool
) -> None:
    other = json.dumps(shuffled(value, rng), indent=indent, ensure_ascii=escaped)
    a, b = canonical(request(json.dumps(value))), canonical(request(f" {other}\r\n"))
    assert a.digest() == b.digest()
    assert differences(a, b) == ()


@given(values, scalars, st.data())
def test_any_changed_json_value_counts_and_is_named(value: Any, new: Any, data: Any) -> None:
    at = data.draw(st.sampled_from(sites(value)))
    other = replaced(value, at, new)
    a, b = canonical(request(json.dumps(value))), canonical(request(json.dumps(other)))
    same = json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (a.digest() == b.digest()) == same
    assert (differences(a, b) == ()) == same


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("1", "1.0"),
        ("1.0", "1.00"),
        ("9223372036854775809", "9223372036854775808"),
        ("18446744073709551617", "18446744073709551616"),
        ("0.1", "0.10000000000000001"),
        ("1e400", "1e401"),
        ('"1"', "1"),
        ("null", '"null"'),
        ("true", "1"),
        ("0", "-0"),
        ("[]", "{}"),
        ("[1,2]", "[2,1]"),
        ("NaN", '"NaN"'),
        ('"\\ud83d"', '"\\ud83e"'),
        ('"\\ud83d"', '"\\\\ud83d"'),
        ("9" * 5000, "9" * 4999 + "8"),
        ("1e9999999999999999999999", "1e9999999999999999999998"),
    ],
)
def test_numbers_and_types_are_told_apart(a: str, b: str) -> None:
    assert digest(f'{{"x": {a}}}') != digest(f'{{"x": {b}}}')
    assert drift(f'{{"x": {a}}}', f'{{"x": {b}}}')[0].startswith("body.x")


def test_null_is_not_absent() -> None:
    assert digest('{"a": 1, "b": null}') != digest('{"a": 1}')
    assert drift('{"a": 1, "b": null}', '{"a": 1}') == ("body.b",)


def test_one_number_in_two_spellings_is_one_number() -> None:
    assert digest("[1e2, 1.5E-7]") == digest("[1E+2, 1.5e-07]")


def test_a_duplicate_member_in_a_very_deep_body_is_refused_too() -> None:
    with pytest.raises(DuplicateMember):
        canonical(request("[" * 900 + '{"a":1,"a":1}' + "]" * 900))


def test_half_a_surrogate_pair_is_a_value_like_any_other() -> None:
    assert digest('{"a":"\\ud83d","b":1.50}') == digest('{ "b":1.50, "a":"\\uD83D"}')
    assert drift('{"a":"\\ud83d","b":1}', '{"a":"\\ud83d","b":2}') == ("body.b",)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ('{"a":1,"a":1}', "body.a"),
        ('{"m":{"x":[1,{"y":1,"z":2,"y":3}]}}', "body.m.x[1].y"),
        ('[{"a.b":1,"a.b":2}]', 'body[0]."a.b"'),
        ('{"\\u0061":1,"a":2}', "body.a"),
        ('{"' + "m" * 500 + '":1,"' + "m" * 500 + '":1}', "body." + "m" * 112 + "..."),
    ],
)
def test_a_member_named_twice_is_refused_and_found(body: str, path: str) -> None:
    with pytest.raises(DuplicateMember) as caught:
        canonical(request(body))
    assert caught.value.path == path


@pytest.mark.parametrize(
    "body", ["{not json", '{"a":1} {"b":2}', "\ufeff{}", "[" * 100_000, "[" * 300 + "]" * 300]
)
def test_what_is_no_readable_json_counts_byte_by_byte(body: str) -> None:
    assert digest(body) == digest(body)
    assert digest(body) != digest(body + " ")
    assert drift(body, body + " ") == ("body",)


def test_json_without_a_type_is_read_as_json_but_may_repeat_members() -> None:
    assert digest('{"a":1,"b":2}', None) == digest('{"b":2,"a":1}')
    assert digest('{"a":1,"a":1}', None) != digest('{"a":1, "a":1}', None)
    assert digest('{"a":1}', "application/problem+json; charset=utf-8") == digest('{"a": 1}')
    assert digest('{"a":1}', "text/plain") != digest('{"a": 1}', "text/plain")


# --- forms ----------------------------------------------------------------------------------------


def test_form_pairs_have_no_order_except_among_equal_names() -> None:
    assert digest("a=1&b=2&a=3", FORM) == digest("b=2&a=1&a=3", FORM)
    assert digest("a=1&a=3", FORM) != digest("a=3&a=1", FORM)
    assert digest("a=x%20y&b=%7e", FORM) == digest("a=x+y&b=~", FORM)


@pytest.mark.parametrize(
    ("a", "b"), [("a=1", "a=2"), ("a=1&a=1", "a=1"), ("a=", "b="), ("a=%FF", "a=%FE"), ("a=", "")]
)
def test_any_changed_form_value_counts(a: str, b: str) -> None:
    assert digest(a, FORM) != digest(b, FORM)
    assert drift(a, b, FORM) != ()


def test_form_fields_are_named_like_json_fields() -> None:
    assert drift(
        "metadata[case]=1&lines[0][sku]=A&t[]=1", "metadata[case]=2&t[]=1&t[]=2", FORM
    ) == (
        "body.lines[0].sku",
        "body.metadata.case",
        "body.t[]",
    )


def test_a_form_is_not_the_json_of_the_same_values() -> None:
    a, b = canonical(request('{"a":"1"}')), canonical(request("a=1", FORM))
    assert a.digest() != b.digest()
    assert differences(a, b) == ("body",)


# --- multipart ------------------------------------------------------------------------------------


def multipart(boundary: str, *parts: tuple[str, bytes], subtype: str = "form-data") -> Request:
    body = b"".join(
        f"--{boundary}\r\n{head}\r\n\r\n".encode() + data + b"\r\n" for head, data in parts
    )
    return request(
        body + f"--{boundary}--\r\n".encode(), f"multipart/{subtype}; boundary={boundary}"
    )


def field(name: str) -> str:
    return f'Content-Disposition: form-data; name="{name}"'


FILE = 'Content-Disposition: form-data; name="file"; filename="a.png"\r\nContent-Type: image/png'


@given(
    st.binary(max_size=60), st.binary(max_size=60), st.text("abcXYZ019", min_size=8, max_size=20)
)
def test_the_boundary_does_not_count_and_the_parts_do(a: bytes, b: bytes, boundary: str) -> None:
    one = canonical(multipart("=_first", (field("note"), a), (FILE, b)))
    same = canonical(multipart(boundary, (field("note"), a), (FILE, b)))
    other = canonical(multipart(boundary, (field("note"), a + b"x"), (FILE, b)))
    assert one.body.kind == "multipart"
    assert one.digest() == same.digest() != other.digest()
    assert differences(one, other) == ("body.note",)


def test_the_name_of_a_file_and_its_type_count() -> None:
    one = canonical(multipart("b", (FILE, b"1")))
    renamed = canonical(multipart("b", (FILE.replace("a.png", "b.png"), b"1")))
    assert differences(one, renamed) == ("body.file",)


def test_form_parts_have_no_order_and_mixed_parts_have_one() -> None:
    a, b = (field("a"), b"1"), (field("b"), b"2")
    assert canonical(multipart("x", a, b)).digest() == canonical(multipart("y", b, a)).digest()
    assert (
        canonical(multipart("x", a, b, subtype="related")).digest()
        != canonical(multipart("x", b, a, subtype="related")).digest()
    )


def test_a_json_part_is_read_as_json_and_a_text_part_as_text() -> None:
    typed = f"Content-Type: {JSON}"
    one = canonical(multipart("b", (typed, b'{"a":1,"b":2}'), subtype="related"))
    assert (
        one.digest()
        == canonical(multipart("c", (typed, b'{"b": 2, "a":1}'), subtype="related")).digest()
    )
    assert differences(one, canonical(multipart("b", (typed, b"{}"), subtype="related"))) == (
        "body[0]",
    )
    assert (
        canonical(multipart("b", (field("a"), b"1"))).digest()
        != canonical(multipart("b", (field("a"), b" 1"))).digest()
    )


def test_a_nested_boundary_does_not_count() -> None:
    def nested(inner: str, text: bytes) -> str:
        whole = multipart(inner, ("Content-Type: text/plain", text), subtype="alternative")
        head = f"Content-Type: {whole.header('content-type')}"
        return canonical(multipart("o", (head, whole.body.data or b""), subtype="mixed")).digest()

    assert nested("i1", b"hello") == nested("i2", b"hello") != nested("i2", b"hullo")


@pytest.mark.parametrize(
    "body",
    [
        b"--b\r\nA: 1\r\n\r\nx\r\n",  # not closed
        b"before\r\n--b\r\nA: 1\r\n\r\nx\r\n--b--",
        b"--b\r\nA: 1\r\n\r\nx\r\n--b--after",
        b"--b\nA: 1\n\nx\n--b--",
        b"--b\r\nno colon\r\n\r\nx\r\n--b--",
        b"--b\r\nA: 1\r\n folded\r\n\r\nx\r\n--b--",
        b"--b\r\nA: 1\r\n\r\nx\r\n--bb\r\ny\r\n--b--",
    ],
)
def test_a_malformed_multipart_body_counts_byte_by_byte(body: bytes) -> None:
    assert canonical(request(body, "multipart/form-data; boundary=b")).body.kind == "raw"
    assert canonical(request(body, "multipart/form-data")).body.kind == "raw"


# --- other bodies ---------------------------------------------------------------------------------


def test_a_spooled_body_has_the_fingerprint_of_the_same_bytes() -> None:
    data = b"\x00\x01" * 50
    whole = request(data, "application/octet-stream")
    spooled = whole.with_(body=Body(len(data), hashlib.sha256(data).hexdigest(), None))
    assert canonical(whole).digest() == canonical(spooled).digest()


def test_a_compressed_body_counts_byte_by_byte() -> None:
    coded = request('{"a":1}', headers=(("Content-Encoding", "gzip"),))
    assert canonical(coded).body.kind == "raw"


def test_no_body_is_not_an_empty_value() -> None:
    assert len({digest(""), digest("null"), digest("{}"), digest('""')}) == 4


# --- around the body ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"method": "PUT"}, "method"),
        ({"host": "api2.example.com"}, "host"),
        ({"target": "/v1/charges?a=1&a=2&b=3"}, "path"),
        ({"target": "/v1/refunds?a=2&a=1&b=3"}, "query.a"),
        ({"target": "/v1/refunds?a=1&a=2&b=3&c="}, "query.c"),
    ],
)
def test_method_and_url_count(change: dict[str, str], named: str) -> None:
    base = {"target": "/v1/refunds?a=1&a=2&b=3"}
    a, b = (canonical(request("{}", **kw)) for kw in (base, base | change))  # type: ignore[arg-type]
    assert a.digest() != b.digest()
    assert differences(a, b) == (named,)


def test_query_parameters_have_no_order_except_among_equal_names() -> None:
    assert digest(target="/x?a=1&b=%7E&a=2") == digest(target="/x?b=~&a=1&a=2")


def test_only_the_named_headers_count() -> None:
    def of(value: str, *counted: str) -> str:
        return canonical(request("{}", headers=(("If-Match", value),)), headers=counted).digest()

    assert of("1") == of("2")
    assert of("1", "if-match") != of("2", "If-Match")


@pytest.mark.parametrize(
    ("headers", "target"),
    [
        ((("Authorization", "Bearer b"),), "/x?a=1&access_token=s2"),
        ((), "/x?access_token=s3&a=1"),
        ((("Cookie", "s=1"), ("X-Api-Key", "k")), "/x?a=1"),
    ],
)
def test_credentials_do_not_count(headers: tuple[tuple[str, str], ...], target: str) -> None:
    first = request("{}", headers=(("Authorization", "Bearer a"),), target="/x?a=1&access_token=s1")
    counted = ("Authorization", "X-Api-Key")
    other = request("{}", headers=headers, target=target)
    digests = {
        canonical(r, headers=counted).digest()
        for r in (first, other, split(first)[0], split(other)[0])
    }
    assert len(digests) == 1


# --- fields that do not count ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "a", "b", "kind"),
    [
        ("body.t", '{"t":1,"x":1}', '{"x":1}', JSON),
        ("body.m.t", '{"m":{"t":1,"y":[1]}}', '{"m":{"t":[2],"y":[1]}}', JSON),
        ("body.lines[].t", '{"lines":[{"t":1},{"t":2}]}', '{"lines":[{"t":3},{}]}', JSON),
        ("body.lines[0]", '{"lines":[1,2]}', '{"lines":[3,2]}', JSON),
        ("body[].t", '[{"t":1}]', '[{"t":2}]', JSON),
        ('body."a.b"', '{"a.b":1}', '{"a.b":2}', JSON),
        ("body", '{"a":1}', "b=2", FORM),
        ("body.t", "t=1&x=1", "x=1&t=2&t=3", FORM),
        ("body.m.t", "m[t]=1", "m[t]=2", FORM),
        ("body.m[t]", "m[t]=1", "m[t]=2", FORM),
        ("body.m", "m[t]=1", "m[u][v]=2", FORM),
        ("body.t[]", "t[]=1&t[]=2", "t[]=3", FORM),
    ],
)
def test_noise_and_wording_do_not_count(path: str, a: str, b: str, kind: str) -> None:
    first, second = request(a, kind), request(b, kind)
    assert canonical(first).digest() != canonical(second).digest()
    one, two = canonical(first, noise=[path]), canonical(second, noise=[path])
    assert one.digest() == two.digest()
    assert differences(one, two) == ()
    assert canonical(first).digest([path]) == canonical(second).digest([path]) == one.digest()


def test_noise_in_query_header_path_and_parts_does_not_count() -> None:
    def of(n: int, **options: Any) -> str:
        call = request("{}", target=f"/t/{n}%20x/end?q={n}&k=1", headers=(("X-Try", str(n)),))
        return canonical(call, headers=["X-Try"], params={"id": f"{n} x"}, **options).digest()

    everything = ["query.q", "header.x-try", "path.id"]
    assert of(1, noise=everything) == of(2, noise=everything)
    for kept in everything:
        assert of(1, noise=[p for p in everything if p != kept]) != of(
            2, noise=[p for p in everything if p != kept]
        )
    parts = [multipart("b", (field("t"), n), (field("x"), b"1")) for n in (b"1", b"2")]
    assert len({canonical(part, noise=["body.t"]).digest() for part in parts}) == 1


@pytest.mark.parametrize(
    "path", ["body.other", "body.a.b", "body[0]", "query.z", "header.z", "path.z", "x"]
)
def test_a_path_that_leads_nowhere_takes_nothing_away(path: str) -> None:
    assert digest('{"a":1}') == canonical(request('{"a":1}'), noise=[path]).digest()


# --- names of unruled operations ------------------------------------------------------------------


def test_a_content_digest_is_32_digits_and_tells_calls_apart() -> None:
    one = content_digest(request('{"a":1,"b":2}', target="/x?i=1"))
    assert len(one) == 32
    assert set(one) <= set("0123456789abcdef")
    assert one == content_digest(canonical(request('{"b":2, "a":1}', target="/x?i=1")))
    assert one != content_digest(request('{"a":1,"b":2}', target="/x?i=2"))
    assert one != content_digest(request('{"a":1,"b":3}', target="/x?i=1"))


def test_a_fingerprint_stays_the_same_over_releases() -> None:
    """Stored ones are compared with new ones: a change here makes every resume a mismatch."""
    whole = (
        b'["POST","https://api.example.com","/v1/refunds",[["a","1"]],[],"json",{"b":[1.50,null]}]'
    )
    expected = hashlib.sha256(whole).hexdigest()
    assert digest('{"b": [1.50, null]}', target="/v1/refunds?a=1") == expected


# --- paths ----------------------------------------------------------------------------------------


@given(st.lists(st.text(min_size=1, max_size=5) | st.integers(0, 9), max_size=4))
def test_a_path_is_read_as_it_is_written(steps: list[Any]) -> None:
    assert path_steps(path_text("body", tuple(steps))) == ("body", *steps)


def test_form_names_have_the_steps_of_their_brackets() -> None:
    assert form_steps("a[b][0][]") == ("a", "b", 0, None)
    assert form_steps("a.b") == ("a.b",)
    assert form_steps("a[b") == ("a[b",)
    assert form_steps("[b]") == ("[b]",)
