"""What an answer says about the effect, by the rule's lines and by the built-in table."""

from __future__ import annotations

import pytest

from proxy.core.classify import Verdict, classify
from proxy.core.model import Answer, Answered, Body
from proxy.core.rules import Endpoint
from proxy.rulefile.loader import load_text

RULE = """
service: acme
hosts: [api.acme.test]
source: https://docs.test
confidence: documented
key: {in: header, name: Idempotency-Key}
answers:
  - {header: {Replayed: "true"}, replayed: true}
  - {status: 429, means: not_applied}
  - {status: 409, body: {error.code: in_use}, means: running}
  - {body: {error.type: idempotency_error}, means: mismatch}
  - {status: 200, body: {ok: false}, means: rejected}
  - {status: {over: 598}, means: rejected}
endpoints:
  things.create:
    match: POST /things
    external_id: data[0].id
    answers:
      - {status: 202, means: accepted}
      - {status: 409, body: {"errors[].code": {has: EXISTS}}, means: exists}
"""
ENDPOINT: Endpoint = load_text(RULE).service.endpoints[0]
JSON = (("Content-Type", "application/json"),)


def judge(
    status: int,
    body: bytes = b"",
    headers: tuple[tuple[str, str], ...] = JSON,
    *,
    complete: bool = True,
    endpoint: Endpoint | None = ENDPOINT,
    keyed: bool = True,
) -> Verdict:
    answered = Answered(Answer(status, "", headers, Body.of(body)), complete)
    return classify(endpoint, answered, keyed=keyed)


@pytest.mark.parametrize(
    ("statuses", "means"),
    [
        ((200, 201, 202, 204, 206, 299, 303), "succeeded"),
        ((401, 407, 421, 425, 429), "not_applied"),
        ((307, 308), "rejected"),
        ((400, 402, 403, 404, 405, 409, 410, 412, 413, 422, 451), "rejected"),
        ((300, 301, 302, 304, 408, 499, 500, 502, 503, 504, 599, 100, 700), "unknown"),
    ],
)
def test_without_a_rule_the_status_decides(statuses: tuple[int, ...], means: str) -> None:
    for status in statuses:
        verdict = judge(status, b"{}", endpoint=None, keyed=False)
        assert verdict.means == means, status
        assert str(status) in verdict.reason


def test_under_a_key_an_unlisted_409_may_be_our_own_earlier_attempt() -> None:
    assert judge(409, b"{}", keyed=True).means == "unknown"
    assert judge(409, b"{}", keyed=False).means == "rejected"


@pytest.mark.parametrize(
    ("status", "body", "means"),
    [
        (200, b'{"data": [{"id": 7}]}', "succeeded"),
        (200, b'{"ok": false}', "rejected"),
        (202, b"{}", "accepted"),
        (409, b'{"errors": [{"code": "EXISTS"}]}', "exists"),
        (409, b'{"error": {"code": "in_use"}}', "running"),
        (400, b'{"error": {"type": "idempotency_error"}}', "mismatch"),
        (400, b'{"error": {"type": "other"}}', "rejected"),
        (599, b"{}", "rejected"),
        (500, b'{"error": {"type": "idempotency_error"}}', "mismatch"),
    ],
)
def test_the_endpoints_lines_come_first_then_the_services_then_the_table(
    status: int, body: bytes, means: str
) -> None:
    assert judge(status, body).means == means


def test_a_line_without_a_meaning_goes_on() -> None:
    replayed = (*JSON, ("Replayed", "true"))

    verdict = judge(200, b'{"data": [{"id": 7}]}', replayed)
    assert (verdict.means, verdict.replayed, verdict.external_id) == ("succeeded", True, "7")
    assert judge(429, b"", replayed).replayed
    assert not judge(200, b"{}").replayed


def test_an_id_is_given_only_with_a_success() -> None:
    assert judge(202, b'{"data": [{"id": "x"}]}').external_id == "x"
    assert judge(400, b'{"data": [{"id": "x"}]}').external_id is None
    assert judge(200, b'{"data": []}').external_id is None


def test_a_success_that_broke_off_is_unknown_where_its_body_could_have_said_no() -> None:
    assert judge(200, b'{"ok": fal', complete=False).means == "unknown"
    assert judge(200, b'{"ok": fal', complete=False, endpoint=None).means == "succeeded"
    assert judge(201, b"cut", complete=False, endpoint=None).means == "succeeded"


def test_a_line_by_status_alone_needs_no_body() -> None:
    assert judge(429, b"{", complete=False).means == "not_applied"
    assert judge(202, b"{", complete=False).means == "accepted"


@pytest.mark.parametrize(
    ("status", "means"), [(400, "unknown"), (401, "not_applied"), (500, "unknown")]
)
def test_a_refusal_that_broke_off_is_none(status: int, means: str) -> None:
    assert judge(status, b"{", complete=False, endpoint=None).means == means
    assert judge(400, b"{", complete=False).means == "unknown"


HTML = (("Content-Type", "text/html; charset=utf-8"),)


def test_a_gateways_page_is_judged_by_its_status() -> None:
    assert judge(429, b"<html>", HTML).means == "not_applied"
    assert judge(403, b"<html>", HTML).means == "rejected"
    assert judge(502, b"<html>", HTML).means == "unknown"


def test_a_page_instead_of_the_apis_success_is_unknown() -> None:
    assert judge(200, b"<html>welcome", HTML).means == "unknown"


def test_a_success_of_another_kind_cannot_hold_an_error() -> None:
    assert judge(200, b"\x89PNG", (("Content-Type", "image/png"),)).means == "succeeded"


def test_a_body_in_a_coding_that_nobody_reads_decides_nothing() -> None:
    coded = (*JSON, ("Content-Encoding", "br"))

    assert judge(200, b"\x0b\x02", coded).means == "unknown"
    assert judge(400, b"\x0b\x02", coded).means == "unknown"


def test_an_empty_success_has_no_members_to_say_no() -> None:
    assert judge(204).means == "succeeded"
