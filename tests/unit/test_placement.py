"""One value is put in its place; every other byte stays, and where it cannot be put nothing is."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from proxy.core.matching import Match
from proxy.core.model import Body, Headers, Request
from proxy.core.placement import CannotPlace, key_of_caller, put_key, put_marker
from proxy.core.rules import KeySpec, Marker
from proxy.core.templates import parse_structure, parse_template
from proxy.rulefile.patterns import request_line

JSON = (("Content-Type", "application/json"),)
FORM = (("Content-Type", "application/x-www-form-urlencoded"),)


def call(body: bytes = b"", headers: Headers = JSON, target: str = "/t") -> Request:
    return Request("POST", "https", "a.test", 443, target, headers, Body.of(body))


def text(request: Request) -> str:
    assert request.body.data is not None
    assert request.body == Body.of(request.body.data)  # size and digest follow the bytes
    return request.body.data.decode()


def match_of(line: str) -> Match:
    method, segments, rest = request_line(line)
    return Match(line, method, segments, rest)


def test_a_header_is_added_or_replaced_in_its_place() -> None:
    spec = KeySpec("header", "Idempotency-Key")
    given = (("A", "1"), ("idempotency-key", "x"), ("B", "2"), ("Idempotency-Key", "y"))

    assert put_key(call(headers=()), spec, "k").headers == (("Idempotency-Key", "k"),)
    replaced = put_key(call(headers=given), spec, "k")
    assert replaced.headers == (("A", "1"), ("idempotency-key", "k"), ("B", "2"))
    assert key_of_caller(call(headers=given), spec) == "x"


def test_a_query_parameter_leaves_the_rest_of_the_query_as_it_is() -> None:
    spec = KeySpec("query", "requestId")

    assert put_key(call(target="/t"), spec, "a/b").target == "/t?requestId=a%2Fb"
    assert put_key(call(target="/t?a=%7E&b"), spec, "k").target == "/t?a=%7E&b&requestId=k"
    assert put_key(call(target="/t?requestId=old&z=1"), spec, "k").target == "/t?requestId=k&z=1"
    assert key_of_caller(call(target="/t?requestId=a%20b"), spec) == "a b"


def test_a_path_parameter_is_replaced() -> None:
    spec = KeySpec("path", "id")
    match = match_of("PUT /v1/{kind}/x-{id}.json")
    request = call(target="/v1/a%2Fb/x-old.json?q=1")

    assert key_of_caller(request, spec, match) == "old"
    assert put_key(request, spec, "k/1", match).target == "/v1/a%2Fb/x-k%2F1.json?q=1"
    assert put_key(call(target="/f/a/b"), spec, "c/d", match_of("PUT /f/{id+}")).target == "/f/c/d"
    with pytest.raises(CannotPlace):
        put_key(call(target="/other"), spec, "k", match)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("id", '{"n": 1.50, "b": 123456789012345}', '{"n": 1.50, "b": 123456789012345,"id":"k"}'),
        ("id", "{}", '{"id":"k"}'),
        ("id", " { } ", ' { "id":"k"} '),
        ("id", "", '{"id":"k"}'),
        ("id", '{"id" : "old", "é": "\\u00e9"}', '{"id" : "k", "é": "\\u00e9"}'),
        ("id", '{"id": {"a": [1, 2]}, "b": 1}', '{"id": "k", "b": 1}'),
        ("a.b.c", '{"x": 1}', '{"x": 1,"a":{"b":{"c":"k"}}}'),
        ("a.b.c", '{"a": {"b": {}}}', '{"a": {"b": {"c":"k"}}}'),
        ("a.b.c", '{"a": {"b": null}, "z": 2}', '{"a": {"b": {"c":"k"}}, "z": 2}'),
        ("a.b.c", '{"a": {"b": {"c": "old", "d": 1e2}}}', '{"a": {"b": {"c": "k", "d": 1e2}}}'),
        ("a.b", '{"z": {"b": 1}, "a": {"y": "}"}}', '{"z": {"b": 1}, "a": {"y": "}","b":"k"}}'),
    ],
)  # fmt: skip
def test_a_json_member_is_set_and_every_other_byte_kept(name: str, before: str, after: str) -> None:
    placed = put_key(call(before.encode()), KeySpec("json", name), "k")

    assert text(placed) == after
    json.loads(after)
    assert key_of_caller(placed, KeySpec("json", name)) == "k"
    assert text(put_key(placed, KeySpec("json", name), "k")) == after


def test_a_graphql_key_goes_into_the_variables() -> None:
    body = (
        b'{"query": "mutation($input: I!){a(input: $input){id}}", "variables": {"input": {"t": 1}}}'
    )
    placed = put_key(call(body), KeySpec("graphql", "input.id"), "k")

    assert json.loads(text(placed))["variables"] == {"input": {"t": 1, "id": "k"}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("charge=ch_1&amount=500", "charge=ch_1&amount=500&metadata[k]=a%2Fb"),
        ("a=%C3%A9+x&metadata%5Bk%5D=old&b=", "a=%C3%A9+x&metadata[k]=a%2Fb&b="),
        ("", "metadata[k]=a%2Fb"),
    ],
)
def test_a_form_field_is_set_and_the_other_pairs_kept(before: str, after: str) -> None:
    placed = put_key(call(before.encode(), FORM), KeySpec("form", "metadata[k]"), "a/b")

    assert text(placed) == after


@pytest.mark.parametrize(("place", "kind"), [("form", FORM[0][1]), ("json", JSON[0][1])])
@pytest.mark.parametrize("headers", [(), (("content-type", "text/plain"),)])
def test_an_empty_body_becomes_what_the_place_asks_for(
    place: str, kind: str, headers: Headers
) -> None:
    placed = put_key(call(b"", headers), KeySpec(place, "id"), "k")

    assert placed.header("content-type") == kind
    assert len([name for name, _ in placed.headers if name.lower() == "content-type"]) == 1


def test_a_place_in_the_body_follows_the_body() -> None:
    spec = KeySpec("body", "metadata.payload.key")

    assert json.loads(text(put_key(call(b'{"a": 1}'), spec, "k"))) == {
        "a": 1,
        "metadata": {"payload": {"key": "k"}},
    }
    placed = put_key(call(b"a=1&metadata=%7B%22x%22%3A+1%7D", FORM), spec, "k")
    assert placed.body.data == (
        b"a=1&metadata=%7B%22x%22%3A%201%2C%22payload%22%3A%7B%22key%22%3A%22k%22%7D%7D"
    )
    assert key_of_caller(placed, spec) == "k"


@pytest.mark.parametrize(
    ("place", "body", "headers"),
    [
        ("json", b"a=1", FORM),
        ("form", b'{"a": 1}', JSON),
        ("form", b"--B", (("Content-Type", "multipart/form-data; boundary=B"),)),
        ("json", b"[1]", JSON),
        ("json", b'{"a": 1', JSON),
        ("json", b'{"id": 1, "id": 2}', JSON),
        ("json", b'{"a": 1}', (*JSON, ("Content-Encoding", "gzip"))),
        ("json", b"\xff", JSON),
        ("body", b"text", (("Content-Type", "text/plain"),)),
    ],
)
def test_a_body_without_such_a_place_is_left_alone(
    place: str, body: bytes, headers: Headers
) -> None:
    with pytest.raises(CannotPlace):
        put_key(call(body, headers), KeySpec(place, "id"), "k")
    assert key_of_caller(call(body, headers), KeySpec(place, "id")) is None


def test_something_else_on_the_way_is_not_overwritten() -> None:
    with pytest.raises(CannotPlace, match="a is no JSON object"):
        put_key(call(b'{"a": "text"}'), KeySpec("json", "a.b"), "k")


PARTS = (("Content-Type", 'multipart/form-data; boundary="x y"'),)
TWO = (
    b'--x y\r\nContent-Disposition: form-data; name="to"\r\n\r\nbob\r\n'
    b'--x y\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\xff\x00\r\n'
    b"--x y--\r\n"
)


def test_a_multipart_form_gets_a_part_and_keeps_every_byte() -> None:
    marker = Marker("form", "v:key")

    marked = put_marker(call(TWO, PARTS), marker, "M1", {})
    part = b'--x y\r\nContent-Disposition: form-data; name="v:key"\r\n\r\nM1\r\n'
    assert marked.body.data == TWO[:-9] + part + TWO[-9:]
    assert marked.body == Body.of(marked.body.data)
    assert put_marker(marked, marker, "M1", {}) == marked
    with pytest.raises(CannotPlace, match="kept"):
        put_marker(marked, marker, "M2", {})
    assert key_of_caller(call(TWO, PARTS), KeySpec("form", "to")) == "bob"


@pytest.mark.parametrize(
    "body",
    [b"", TWO[:-9], TWO + b"more", b"--x y--\r\n", TWO.replace(b"x y", b"z")],
    ids=["empty", "no end", "more behind", "no part", "other boundary"],
)
def test_a_multipart_form_that_is_read_in_two_ways_is_not_marked(body: bytes) -> None:
    with pytest.raises(CannotPlace):
        put_marker(call(body, PARTS), Marker("form", "v:key"), "M1", {})
    with pytest.raises(CannotPlace):
        put_marker(call(TWO, PARTS), Marker("body", "v.key"), "M1", {})


def test_a_key_brings_the_field_without_which_it_does_not_count() -> None:
    spec = KeySpec("json", "nonce", also={"enforce": True})

    assert json.loads(text(put_key(call(b"{}"), spec, "k"))) == {"nonce": "k", "enforce": True}
    own = put_key(call(b'{"enforce": false}'), spec, "k")
    assert json.loads(text(own)) == {"enforce": False, "nonce": "k"}
    form = put_key(call(b"a=1", FORM), KeySpec("form", "nonce", also={"enforce": True}), "k")
    assert text(form) == "a=1&nonce=k&enforce=true"


def mark(body: bytes, marker: Marker, headers: Headers = JSON) -> Any:
    return json.loads(text(put_marker(call(body, headers), marker, "M1", {})))


def test_a_marker_is_written_with_what_belongs_to_it() -> None:
    marker = Marker("json", "meta.payload.key", also={"meta.type": "onceproxy"})

    assert mark(b"{}", marker) == {"meta": {"payload": {"key": "M1"}, "type": "onceproxy"}}
    assert mark(b'{"meta": {"type": "own"}}', marker) == {
        "meta": {"type": "own", "payload": {"key": "M1"}}
    }


def test_a_value_of_the_callers_own_is_kept_and_there_is_no_marker() -> None:
    with pytest.raises(CannotPlace, match="kept"):
        mark(b'{"ref": "mine"}', Marker("json", "ref"))
    assert mark(b'{"ref": "mine"}', Marker("json", "ref", existing="replace")) == {"ref": "M1"}
    assert mark(b'{"ref": "M1"}', Marker("json", "ref")) == {"ref": "M1"}


def test_an_appended_marker_follows_the_text_once() -> None:
    marker = Marker("json", "body", append=parse_template("\n\n<!-- {key} -->", ("key",)))

    marked = put_marker(call(b'{"body": "hi \\u2603"}'), marker, "M1", {})
    assert json.loads(text(marked)) == {"body": "hi ☃\n\n<!-- M1 -->"}
    assert put_marker(marked, marker, "M1", {}) == marked


LISTED = Marker(
    "json", "fields.text", element=parse_structure({"name": "op", "value": "{key}"}, ("key",))
)
ELEMENT = {"name": "op", "value": "M1"}


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b"", [ELEMENT]),
        (b'{"fields": null}', [ELEMENT]),
        (b'{"fields": {"text": []}}', [ELEMENT]),
        (b'{"fields": {"text": null}}', [ELEMENT]),
        (b'{"fields": {"text": [ {"name": "a"} ] }}', [{"name": "a"}, ELEMENT]),
    ],
)
def test_a_marker_is_an_element_more_of_a_list(body: bytes, fields: list[Any]) -> None:
    marked = put_marker(call(body), LISTED, "M1", {})

    assert json.loads(text(marked)) == {"fields": {"text": fields}}
    assert put_marker(marked, LISTED, "M1", {}) == marked


INSIDE = Marker("json", "Invoices[1].Reference")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"Invoices": [1, { "a" : 1 } ,2]}', '{"Invoices": [1, { "a" : 1,"Reference":"M1" } ,2]}'),
        ('{"Invoices":[[],{"Reference":""}]}', '{"Invoices":[[],{"Reference":"M1"}]}'),
        ('{"Invoices":["],{",{}]}', '{"Invoices":["],{",{"Reference":"M1"}]}'),
        ('{"Invoices":[{},null]}', '{"Invoices":[{},{"Reference":"M1"}]}'),
    ],
)
def test_a_marker_is_a_member_of_an_element_that_is_there(before: str, after: str) -> None:
    marked = put_marker(call(before.encode()), INSIDE, "M1", {})

    assert text(marked) == after
    assert put_marker(marked, INSIDE, "M1", {}) == marked


@pytest.mark.parametrize(
    "body", ["{}", '{"Invoices": []}', '{"Invoices": [{}]}', '{"Invoices": {"1": {}}}', "[1, {}]"]
)
def test_an_element_that_is_not_there_is_not_made(body: str) -> None:
    with pytest.raises(CannotPlace):
        put_marker(call(body.encode()), INSIDE, "M1", {})


def test_a_marker_is_a_text_more_among_tags() -> None:
    marker = Marker("json", "tags", element=parse_structure("op:{key}", ("key",)))

    assert mark(b"{}", marker) == {"tags": ["op:M1"]}
    assert mark(b'{"tags": ["urgent"]}', marker) == {"tags": ["urgent", "op:M1"]}
    assert mark(b'{"tags": ["op:M1"]}', marker) == {"tags": ["op:M1"]}


@pytest.mark.parametrize("body", [b'{"fields": {"text": {}}}', b'{"fields": "x"}', b"[]"])
def test_what_is_no_list_gets_no_element(body: bytes) -> None:
    with pytest.raises(CannotPlace):
        put_marker(call(body), LISTED, "M1", {})


def test_a_form_gets_no_element() -> None:
    marker = Marker("body", "fields", element=LISTED.element)
    with pytest.raises(CannotPlace, match="no lists"):
        put_marker(call(b"a=1", FORM), marker, "M1", {})


MAIL = Marker("mime", "X-Op", message="message.raw")
LINES = b"To: a@b.test\r\nSubject: \xc3\xbc?>\r\n\r\nhi\r\n"


def mail(message: bytes, encode: Any = base64.urlsafe_b64encode) -> Request:
    return call(json.dumps({"message": {"raw": encode(message).decode()}}).encode())


def sent(request: Request) -> bytes:
    raw = json.loads(text(request))["message"]["raw"]
    return base64.b64decode(raw, b"-_" if set("-_") & set(raw) else b"+/", validate=True)


@pytest.mark.parametrize("encode", [base64.urlsafe_b64encode, base64.b64encode])
@pytest.mark.parametrize("lines", [LINES, LINES.replace(b"\r\n", b"\n")])
def test_a_mail_in_base64_gets_a_header_field(encode: Any, lines: bytes) -> None:
    marked = put_marker(mail(lines, encode), MAIL, "M1", {})

    end = b"\r\n" if b"\r" in lines else b"\n"
    assert sent(marked) == b"X-Op: M1" + end + lines
    assert put_marker(marked, MAIL, "M1", {}) == marked


def test_the_field_ends_its_line_as_the_first_one_does() -> None:
    mixed = b"To: a@b.test\n\nhi\r\n"
    assert sent(put_marker(mail(mixed), MAIL, "M1", {})) == b"X-Op: M1\n" + mixed


def test_base64_without_its_padding_is_read_too() -> None:
    bare = mail(LINES, lambda data: base64.urlsafe_b64encode(data).rstrip(b"="))
    assert sent(put_marker(bare, MAIL, "M1", {})) == b"X-Op: M1\r\n" + LINES


@pytest.mark.parametrize(
    "request_",
    [
        call(b'{"message": {}}'),
        call(b'{"message": {"raw": "not base64!"}}'),
        mail(b"no header fields"),
        mail(b"only: a head\r\n"),
        mail(b"\r\n\r\nonly a body"),
        mail(b"x-op: own\r\n" + LINES),
        mail(b"From someone Mon Nov 30\r\n" + LINES),
    ],
)
def test_what_is_no_mail_or_has_the_field_gets_none(request_: Request) -> None:
    with pytest.raises(CannotPlace):
        put_marker(request_, MAIL, "M1", {})


@pytest.mark.parametrize("body", [b"{}", b'{"body": ""}', b'{"body": null}', b'{"body": 5}'])
def test_a_marker_never_makes_a_text_of_none(body: bytes) -> None:
    """An API refuses an empty comment; with a marker in it, it would be posted."""
    marker = Marker("json", "body", append=parse_template("<!-- {key} -->", ("key",)))

    with pytest.raises(CannotPlace):
        mark(body, marker)
