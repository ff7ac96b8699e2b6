"""What rules see of requests and answers: exact values, and never "not there" for "cannot tell"."""

from __future__ import annotations

import gzip
import zlib
from decimal import Decimal

import pytest

from proxy.core.bodies import dump_json, parse_json
from proxy.core.model import Answer, Body, Request
from proxy.core.paths import PathError, answer_path, request_path
from proxy.core.views import MISSING, AnswerView, BodyMissing, ItemView, RequestView

FORM = "application/x-www-form-urlencoded"


def view(
    body: bytes, kind: str | None = "application/json", *headers: tuple[str, str], target: str = "/"
) -> RequestView:
    fields = (("Content-Type", kind), *headers) if kind else headers
    request = Request("POST", "https", "api.test", 443, target, fields, Body.of(body))
    return RequestView(request, {"id": "7"})


def answer(body: bytes | None, *headers: tuple[str, str], status: int = 200) -> Answer:
    return Answer(status, "", headers, None if body is None else Body.of(body))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("body.a.b[1]", 2),
        ("body.a.b[7]", MISSING),
        ("body.list[].id", [1, 2]),
        ("body.list[].tags[]", ["x", "y"]),
        ("body.none", None),
        ("body.absent.deeper", MISSING),
        ('body."dotted.name"', "d"),
        ("body.a[b][0]", 1),
        ("path.id", "7"),
        ("query.limit", "10"),
        ("query.created.gte", "5"),
        ("query.empty", ""),
        ("header.X-Mode", "live"),
        ("header.X-None", MISSING),
        ("host", "api.test"),
    ],
)
def test_paths_lead_to_values(path: str, value: object) -> None:
    body = (
        b'{"a": {"b": [1, 2]}, "list": [{"id": 1, "tags": ["x"]}, {"id": 2, "tags": ["y"]}],'
        b' "none": null, "dotted.name": "d"}'
    )
    seen = view(
        body, "application/json", ("x-mode", "live"), target="/x?limit=10&created[gte]=5&empty="
    )

    assert seen.get(path) == value


@pytest.mark.parametrize("text", ["", "boddy.a", "body.a[", 'body."a', "body..a", "header."])
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(PathError):
        request_path(text)


def test_numbers_are_exact() -> None:
    seen = view(b'{"id": 12345678901234567890123, "amount": 0.1000, "big": 1e400}')

    assert seen.get("body.id") == 12345678901234567890123
    assert str(seen.get("body.amount")) == "0.1000"
    assert seen.get("body.big") == Decimal("1e400")
    assert dump_json(seen.get("body")).startswith('{"id":12345678901234567890123,"amount":0.1000')


def test_form_names_with_brackets_are_nested() -> None:
    seen = view(
        b"metadata[k]=v&items[0][price]=p0&items[1][price]=p1&expand[]=a&expand[]=b&x=1&x=2", FORM
    )

    assert seen.get("body.metadata.k") == "v"
    assert seen.get("body.metadata[k]") == "v"
    assert seen.get("body.items[1].price") == "p1"
    assert seen.get("body.items[].price") == ["p0", "p1"]
    assert seen.get("body.expand") == ["a", "b"]
    assert seen.get("body.x") == ["1", "2"]


def test_form_names_that_contradict_each_other_lose_nothing() -> None:
    seen = view(b"a=1&a[b]=2", FORM)

    assert seen.get("body.a") == "1"
    assert seen.get('body."a[b]"') == "2"


def test_a_multipart_body_shows_fields_and_digests_of_files() -> None:
    body = (
        b'--B\r\nContent-Disposition: form-data; name="purpose; x"\r\n\r\nbatch\r\n'
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nhello'
        b"\r\n--B--\r\n"
    )
    seen = view(body, "multipart/form-data; boundary=B")

    assert seen.get('body."purpose; x"') == "batch"
    assert seen.get("body.file.filename") == "a.txt"
    assert seen.get("body.file.size") == 5


def test_an_empty_body_has_no_members() -> None:
    assert view(b"", None).get("body.a") is MISSING


def test_json_is_read_as_such_whatever_the_client_called_it() -> None:
    assert view(b'{"a": 1}', FORM).get("body.a") == 1
    assert view(b'{"a": 1}', None).get("body.a") == 1


@pytest.mark.parametrize(
    ("body", "kind", "headers"),
    [
        (b'{"method": "read", "method": "write"}', "application/json", ()),
        (b'{"a": ', "application/json", ()),
        (b'{"a": NaN}', "application/json", ()),
        (b"\xff\xfe", "application/json", ()),
        (b"[" * 100_000, "application/json", ()),
        (b"x", "multipart/form-data", ()),
        (b"--B\r\n\r\ncut", "multipart/form-data; boundary=B", ()),
        (b"br", "application/json", (("Content-Encoding", "br"),)),
        (gzip.compress(b"{}", mtime=0)[:-4], "application/json", (("Content-Encoding", "gzip"),)),
        (
            gzip.compress(b" " * 11_000_000, mtime=0),
            "application/json",
            (("Content-Encoding", "gzip"),),
        ),
    ],
)
def test_a_body_that_two_servers_may_read_differently_is_not_read(
    body: bytes, kind: str, headers: tuple[tuple[str, str], ...]
) -> None:
    seen = view(body, kind, *headers)

    for _ in range(2):  # the failure is kept, not turned into "not there"
        with pytest.raises(BodyMissing):
            seen.get("body.method")


def test_the_same_body_under_another_match_is_parsed_once() -> None:
    seen = view(b'{"a": {"b": 1}}')

    assert seen.with_params({"id": "8"}).get("body.a") is seen.get("body.a")
    assert seen.with_params({"id": "8"}).get("path.id") == "8"


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, lambda d: zlib.compress(d)[2:-4]])
def test_a_compressed_answer_is_read(pack: object) -> None:
    assert callable(pack)
    coding = "gzip" if pack is gzip.compress else "deflate"
    seen = AnswerView(answer(pack(b'{"id": "re_1"}'), ("Content-Encoding", coding)))

    assert seen.get("id") == "re_1"


def test_an_answer_shows_body_header_and_status() -> None:
    seen = AnswerView(answer(b'{"errors": [{"code": "A"}, {"code": "B"}]}', ("ETag", '"x"')))

    assert seen.get("errors[].code") == ["A", "B"]
    assert seen.get("header.etag") == '"x"'


def test_a_body_that_broke_off_or_is_not_kept_cannot_be_asked() -> None:
    for seen in (AnswerView(answer(b'{"id": 1}'), complete=False), AnswerView(answer(None))):
        with pytest.raises(BodyMissing):
            seen.get("id")
        assert seen.get("header.x") is MISSING


def test_xml_answers_have_members_without_namespaces() -> None:
    body = b'<E xmlns="urn:x"><Code>Busy</Code><Part>1</Part><Part>2</Part></E>'
    seen = AnswerView(answer(body), "xml")

    assert seen.get("E.Code") == "Busy"
    assert seen.get("E.Part") == ["1", "2"]


@pytest.mark.parametrize("body", [b"<a", b"<!DOCTYPE x []><a/>", b"<a>" * 60_000])
def test_xml_that_could_harm_is_not_read(body: bytes) -> None:
    with pytest.raises(BodyMissing):
        AnswerView(answer(body), "xml").get("a")


def test_an_event_stream_of_json_rpc_shows_its_answer() -> None:
    body = (
        b'data: {"jsonrpc": "2.0", "method": "notify"}\n\n'
        b'event: message\r\ndata: {"jsonrpc": "2.0", "id": 1, "result": {"isError": false}}\r\n\r\n'
    )
    seen = AnswerView(answer(body, ("Content-Type", "text/event-stream")), "jsonrpc")

    assert seen.get("result.isError") is False


def test_a_form_answer_is_read() -> None:
    assert AnswerView(answer(b"id=1&state=ok"), "form").get("state") == "ok"


def test_an_item_is_seen_from_its_own_top() -> None:
    seen = ItemView({"body": "text", "n": 1}, (("ETag", "e"),))

    assert seen.get("body") == "text"
    assert seen.get("header.ETag") == "e"
    assert seen.get(answer_path("absent")) is MISSING


def test_written_json_can_be_read_back() -> None:
    text = '{"a":[1,2.50,null,true,"\\"é"],"b":{}}'

    assert dump_json(parse_json(text, strict=True)) == text
