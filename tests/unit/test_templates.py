"""Templates write values and nothing else; a missing one is never written as empty text."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from proxy.core.model import Body, Request
from proxy.core.templates import (
    TemplateError,
    ValueMissing,
    duration,
    parse_structure,
    parse_template,
    parse_url,
    render_structure,
)
from proxy.core.views import MISSING, RequestView

NAMES = ("key", "sent_at", "item")
GIVEN: dict[str, Any] = {
    "key": "run/step/a b",
    "sent_at": 1_700_000_000.9,
    "item": {"id": 7, "live": True, "tags": ["x"]},
}
BODY = b'{"name": "A & B", "id": 9007199254740993, "none": null, "list": [1], "empty": ""}'
REQUEST = Request("POST", "https", "a.test", 443, "/t/x?q=1", (("X-V", "2"),), Body.of(BODY))
VIEW = RequestView(REQUEST, {"thing": "a/b", "up": ".."})


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("plain", "plain"),
        ("", ""),
        ("a {{literal}} b", "a {literal} b"),
        ("<!-- {key} -->", "<!-- run/step/a b -->"),
        ("{body.id}", "9007199254740993"),
        ("{header.x-v}{query.q}{path.thing}", "21a/b"),
        ("{item.live}", "true"),
        ("{sent_at | minus 60s | unix}", "1699999940"),
        ("{sent_at|iso}", "2023-11-14T22:13:20Z"),
        ("{sent_at | minus 1d | date}", "2023-11-13"),
        ("{key | digest}", hashlib.sha256(b"run/step/a b").hexdigest()),
        ("{key | hex:40}", hashlib.sha256(b"run/step/a b").hexdigest()[:40]),
    ],
)
def test_values_are_written(text: str, rendered: str) -> None:
    assert parse_template(text, NAMES).render(VIEW, GIVEN) == rendered


@pytest.mark.parametrize(
    "text", ["x{body.absent}", "{body.none}", "{body.list}", "{item}", "{item.gone | digest}"]
)
def test_a_text_without_one_of_its_values_is_missing(text: str) -> None:
    assert parse_template(text, NAMES).render(VIEW, GIVEN) is MISSING


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{kee}", "did you mean key"),
        ("{key", "without '}'"),
        ("{key | upper}", "is no pipe"),
        ("{key | hex:3}", "is no pipe"),
        ("{sent_at | minus soon}", "is no pipe"),
        ("{body..a}", "no path"),
        ("{}", "not known"),
    ],
)
def test_what_is_no_template_is_refused_when_it_is_read(text: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        parse_template(text, NAMES)


def test_a_single_placeholder_keeps_the_kind_of_its_value() -> None:
    assert parse_template("{item}", NAMES).value(VIEW, GIVEN) == GIVEN["item"]
    assert parse_template("{sent_at}", NAMES).value(VIEW, GIVEN) == 1_700_000_000.9


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("/t/{path.thing}", "/t/a%2Fb"),
        ("/t/{path.thing+}", "/t/a/b"),
        ("/t?name={body.name}&limit=100", "/t?name=A%20%26%20B&limit=100"),
        ("/t?gone={body.absent}&limit=100", "/t?limit=100"),
        ("/t?gone={body.empty}", "/t"),
        ("/t?Date>={sent_at | date}", "/t?Date%3E=2023-11-14"),
        ("/t?q={key}", "/t?q=run%2Fstep%2Fa%20b"),
        ("/t?flag=&x=a:b,c", "/t?flag=&x=a:b,c"),
    ],
)
def test_urls_encode_their_values_and_drop_parameters_without_one(text: str, target: str) -> None:
    assert parse_url(text, NAMES).render(VIEW, GIVEN) == target


@pytest.mark.parametrize("text", ["/t/{body.absent}", "/t/{body.empty}", "/t/{path.up}/x"])
def test_a_path_without_a_value_or_with_a_dot_segment_is_no_url(text: str) -> None:
    assert parse_url(text, NAMES).render(VIEW, GIVEN) is MISSING


def test_a_structure_is_filled_in_place() -> None:
    raw = {"ok": True, "id": "{item.id}", "all": ["{item}", "n {item.id}"], "sent": "{sent_at}"}

    assert render_structure(parse_structure(raw, NAMES), VIEW, GIVEN) == {
        "ok": True,
        "id": 7,
        "all": [GIVEN["item"], "n 7"],
        "sent": "2023-11-14T22:13:20Z",
    }


def test_a_missing_value_in_a_structure_is_an_error_or_left_out() -> None:
    structure = parse_structure({"a": "{body.absent}", "b": ["{item.gone}", 1]}, NAMES)

    with pytest.raises(ValueMissing, match=r"body\.absent"):
        render_structure(structure, VIEW, GIVEN)
    assert render_structure(structure, VIEW, GIVEN, strict=False) == {"b": [1]}


def test_a_graphql_document_keeps_its_braces() -> None:
    raw = {"query": "query($id: ID!){thing(id: $id){id}}", "variables": {"id": "{key}"}}

    assert render_structure(parse_structure(raw, NAMES), VIEW, GIVEN) == {
        "query": raw["query"],
        "variables": {"id": "run/step/a b"},
    }


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("24h", 86_400), ("500ms", 0.5), ("0s", 0), ("1w", 604_800)],
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["90", "s", "-5s", "1.5h", "5 m", "٣s"])
def test_what_is_no_duration_is_none(text: str) -> None:
    assert duration(text) is None
