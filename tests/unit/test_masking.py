"""What people see of requests and answers: what a rule redacts is gone, in every kind of body."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from proxy.core.masking import Redaction, masked_url, redaction_of
from proxy.core.model import Answer, Body, Request
from proxy.rulefile.loader import load
from proxy.service.content import LOOK_MAX, NOT_APART, answer_view, body_view, request_view

RULE = """
service: pay
hosts: [api.pay.test, "{tenant}.pay.test"]
source: a test
confidence: documented
key: none
redact: %s
endpoints:
  cards.create:
    match: POST /v1/cards/{token}
    answer_format: %s
    examples: []
"""
SECRET = "4242-secret"


def redaction(tmp_path: Path, *paths: str, answer_format: str = "json") -> Redaction:
    (tmp_path / "pay.yaml").write_text(RULE % (json.dumps(paths), answer_format))
    return redaction_of(load([tmp_path]).services, "pay", "cards.create")


def request(body: bytes, kind: str, target: str = "/v1/cards/c_1", **more: str) -> Request:
    headers = (("Content-Type", kind), *((n.replace("_", "-"), v) for n, v in more.items()))
    return Request("POST", "https", "api.pay.test", 443, target, headers, Body.of(body))


JSON, FORM = "application/json", "application/x-www-form-urlencoded"
PARTS = (
    b'--x\r\nContent-Disposition: form-data; name="card[number]"\r\n\r\n4242-secret\r\n'
    b'--x\r\nContent-Disposition: form-data; name="note"\r\n\r\nhello\r\n--x--\r\n'
)


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("body.card.number", JSON, b'{"card":{"number":"4242-secret"},"note":"hello"}'),
        ("body.card.number", JSON, b'{"card":[{"number":"4242-secret"}],"note":"hello"}'),
        ("body.cards[].number", JSON, b'{"cards":[{"number":"4242-secret"}],"note":"hello"}'),
        ("body.card", JSON, b'{"card":{"number":["4242-secret"]},"note":"hello"}'),
        ("body.card.number", "", b' {"card":{"number":"4242-secret"},"note":"hello"}'),
        ("body.card.number", FORM, b"card[number]=4242-secret&note=hello"),
        ("body.card.number", FORM, b"card%5Bnumber%5D=4242-secret&note=hello"),
        ("body.cards[].number", FORM, b"cards[0][number]=4242-secret&note=hello"),
        ("body.cards.number", FORM, b"cards[][number]=4242-secret&note=hello"),
        ("body.card.number", "multipart/form-data; boundary=x", PARTS),
    ],
)  # fmt: skip
def test_what_a_rule_redacts_is_masked_and_the_rest_is_shown(
    tmp_path: Path, path: str, kind: str, body: bytes
) -> None:
    view = json.dumps(request_view(request(body, kind), redaction(tmp_path, path)))
    assert SECRET not in view
    assert "***" in view
    assert "hello" in view


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b'{"card":{"number":"4242-secret"},"card":{}}'),  # two readings
        ("application/json", b'{"card":{"number":"4242-secret"'),
        ("text/plain", b"number=4242-secret"),
        ("application/octet-stream", b"\xff4242-secret"),
        ("multipart/form-data; boundary=y", PARTS),
        ("application/xml", b"<card><number>4242-secret</number></card>"),
    ],
)
def test_a_body_that_cannot_be_masked_for_certain_is_not_shown(
    tmp_path: Path, kind: str, body: bytes
) -> None:
    rule = redaction(tmp_path, "body.card.number")
    view = request_view(request(body, kind), rule)["body"]
    assert (view["kind"], view["note"]) == ("withheld", NOT_APART)
    assert SECRET not in json.dumps(view)
    assert view["size"] == len(body)


@pytest.mark.parametrize(
    ("answer_format", "kind", "body"),
    [
        ("json", "application/json", b'{"card":{"number":"4242-secret"},"note":"hello"}'),
        ("xml", "text/xml", b"<r><card><number>4242-secret</number></card><note>hello</note></r>"),
        ("form", "text/plain", b"card[number]=4242-secret&note=hello"),
    ],
)
def test_answers_are_masked_in_the_format_that_the_rule_states(
    tmp_path: Path, answer_format: str, kind: str, body: bytes
) -> None:
    paths = ("answer.card.number", "answer.r.card.number", "answer.header.X-Code")
    rule = redaction(tmp_path, *paths, answer_format=answer_format)
    headers = (("Content-Type", kind), ("X-Code", SECRET), ("Set-Cookie", SECRET))
    view = answer_view(Answer(200, "OK", headers, Body.of(body)), rule)
    assert SECRET not in json.dumps(view)
    assert "hello" in json.dumps(view)


def test_headers_that_hold_credentials_are_masked_without_a_rule() -> None:
    made = request(b"{}", "application/json", X_Api_Key=SECRET, X_Case="7")
    shown = dict(map(tuple, request_view(made, Redaction())["headers"]))  # type: ignore[arg-type]
    assert shown == {"Content-Type": "application/json", "X-Api-Key": "***", "X-Case": "7"}


def test_a_compressed_body_is_opened_and_masked(tmp_path: Path) -> None:
    body = gzip.compress(b'{"card":{"number":"4242-secret"},"note":"hello"}')
    made = request(body, "application/json", Content_Encoding="gzip")
    view = request_view(made, redaction(tmp_path, "body.card.number"))["body"]
    assert SECRET not in view["text"]
    assert "hello" in view["text"]
    assert view["size"] == len(body)


def test_numbers_are_shown_as_they_were_sent() -> None:
    text = '{"amount": 10.10, "big": 12345678901234567890123, "tiny": 1E-7}'
    shown = body_view(Body.of(text.encode()), (("Content-Type", "application/json"),))["text"]
    assert '"amount": 10.10' in shown
    assert "12345678901234567890123" in shown
    assert "1E-7" in shown


@pytest.mark.parametrize(
    ("path", "url", "shown"),
    [
        ("query.q", "https://api.pay.test/v1/cards/c_1?q=4242&a=1", "https://api.pay.test/v1/cards/c_1?q=***&a=1"),
        ("query.q", "https://api.pay.test/v1/cards/c_1?q[x]=4242", "https://api.pay.test/v1/cards/c_1?q[x]=***"),
        ("path.token", "https://api.pay.test/v1/cards/c_1?a=1", "https://api.pay.test/v1/cards/***?a=1"),
        ("path.token", "https://api.pay.test/v1/cards/c%5f1", "https://api.pay.test/v1/cards/***"),
        ("path.token", "https://api.pay.test/v2/elsewhere/c_1", "https://api.pay.test/***"),
        ("host.tenant", "https://acme.pay.test/v1/cards/c_1", "https://***.pay.test/v1/cards/c_1"),
        ("body.x", "https://api.pay.test/v1/cards/c_1?q=1", "https://api.pay.test/v1/cards/c_1?q=1"),
    ],
)  # fmt: skip
def test_addresses_are_masked(tmp_path: Path, path: str, url: str, shown: str) -> None:
    assert masked_url(url, redaction(tmp_path, path)) == shown


def test_without_the_rule_file_nothing_is_shown_that_it_might_mask() -> None:
    rule = redaction_of((), "pay", "cards.create")
    view = request_view(request(b'{"a":1}', "application/json", "/v1/cards/c_1?q=1"), rule)
    assert view["url"] == "https://api.pay.test/v1/cards/c_1?***"
    assert view["body"]["kind"] == "withheld"
    assert redaction_of((), "unruled", "POST api.pay.test/").known


def test_a_large_body_is_told_by_its_size() -> None:
    view = body_view(Body.of(b"x" * (LOOK_MAX + 1)), ())
    assert (view["kind"], view["text"], view["size"]) == ("withheld", None, LOOK_MAX + 1)


def test_a_deep_body_is_shown_as_it_came() -> None:
    text = "[" * 5000 + "]" * 5000
    view = body_view(Body.of(text.encode()), (("Content-Type", "application/json"),))
    assert view["text"] == text


def test_keys_that_look_like_credentials_are_starred_in_texts() -> None:
    view = body_view(Body.of(b'{"key": "sk_live_abcdefgh12345678"}'), ())
    assert "abcdefgh12345678" not in view["text"]
