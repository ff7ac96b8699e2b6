"""Every item of a batch is looked for: all are there, none is, or a person must see it."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core import settle
from proxy.core.decide.decision import Watch
from proxy.core.matching import RuleSet
from proxy.core.model import Answer, Answered, Body, Lost, Request, SendResult
from proxy.core.operation import Kind
from proxy.core.placement import put_key, put_marker
from proxy.core.reconcile import (
    Found,
    Inconclusive,
    LookupVerdict,
    NoneFound,
    Partial,
    Several,
    inquiry_of,
    key_of_item,
)
from proxy.core.rules import Endpoint
from proxy.rulefile.loader import load_text
from proxy.rulefile.testing import run_examples

RULE = """
service: crm
hosts: [crm.test]
source: here
confidence: documented
key: none
answers: [{status: 207, means: unknown}]
endpoints:
  listed:
    match: POST /listed
    external_id: "results[0].id"
    marker: {in: json, name: "inputs[].ref"}
    reconcile:
      each: body.inputs
      request: GET /objects?since={sent_at | unix}
      items: results
      where: {ref: "{key}"}
      answer: {status: 201, body: {status: COMPLETE, results: "{items}"}}
    examples:
      - request: {send: POST /listed, json: {inputs: [{name: a}, {name: b}]}}
        expect: {json: {inputs: [{name: a, ref: "{key[0]}"}, {name: b, ref: "{key[1]}"}]}}
        lookups:
          - body: {results: [{id: 1, ref: "{key[0]}"}, {id: 2, ref: "{key[1]}"}]}
            means: found
            external_id: "1"
          - {body: {results: [{id: 1, ref: "{key[0]}"}]}, means: partial}
          - {body: {results: [{id: 1, ref: "{key}"}]}, means: none}
  asked:
    match: POST /asked
    marker: {in: json, name: "inputs[].ref", as: digest}
    reconcile:
      each: body.inputs
      request: GET /objects/{each.name}?ref={key}
      answer: {body: "{items}"}
    examples:
      - request: {send: POST /asked, json: {inputs: [{name: a}, {name: b}]}}
        lookups:
          - {body: {id: 1}, pages: [{id: 2}], means: found, asks: "GET /objects/a?ref={key[0]}"}
          - {status: 404, pages: [{}], means: none}
"""


def test_its_examples_hold() -> None:
    loaded = load_text(RULE)
    assert [result for result in run_examples([loaded]) if not result.passed] == []


SERVICE = load_text(RULE).service
RULES = RuleSet([SERVICE])
LISTED, ASKED = SERVICE.endpoints
KEY = "run/step/crm.listed/v1"


def sent(endpoint: Endpoint, names: list[str]) -> Request:
    body = json.dumps({"inputs": [{"name": name} for name in names]}).encode()
    kind = (("Content-Type", "application/json"),)
    request = Request("POST", "https", "crm.test", 443, f"/{endpoint.name}", kind, Body.of(body))
    assert endpoint.marker is not None
    return put_marker(request, endpoint.marker, KEY, {}, endpoint.match)


def page(body: Any, status: int = 200) -> Answered:
    kind = (("Content-Type", "application/json"),)
    return Answered(Answer(status, "", kind, Body.of(json.dumps(body).encode())))


def look(
    endpoint: Endpoint, names: list[str], world: Any, key: str | None = KEY
) -> tuple[list[str], LookupVerdict]:
    """``world``: a function of the target that gives the result."""
    [lookup] = endpoint.reconcile
    inquiry = inquiry_of(
        endpoint, lookup, sent(endpoint, names), {}, {"key": key, "sent_at": 1_700_000_000.0}
    )
    asked = []
    while isinstance(step := inquiry.next(), Request):
        asked.append(step.target)
        inquiry.feed(world(step.target))
    return asked, step


@given(st.integers(1, 5), st.data())
def test_a_listing_is_read_once_for_all_items(count: int, data: st.DataObject) -> None:
    there = data.draw(st.sets(st.integers(0, count - 1)))
    marks = [key_of_item(LISTED, KEY, index) for index in there]
    objects = [{"id": 70 + i, "ref": mark} for i, mark in zip(there, marks, strict=True)]
    objects.append({"id": 1, "ref": KEY})  # of the whole, or of another batch
    names = [f"n{i}" for i in range(count)]
    asked, verdict = look(LISTED, names, lambda _: page({"results": objects}))
    assert asked == ["/objects?since=1700000000"]
    if len(there) == count:
        assert isinstance(verdict, Found)
        assert verdict.answer.status == 201
        built = json.loads(verdict.answer.body.data)  # type: ignore[union-attr, arg-type]
        assert [each["id"] for each in built["results"]] == [70 + i for i in range(count)]
        assert verdict.external_id == "70"
    elif there:
        assert verdict == Partial(len(there), count)
    else:
        assert verdict == NoneFound()


def test_each_item_is_asked_for_at_its_own_address() -> None:
    made = {"/objects/a": {"id": 1}, "/objects/b": {"id": 2}}
    asked, verdict = look(ASKED, ["a", "b"], lambda target: page(made[target.partition("?")[0]]))
    refs = [key_of_item(ASKED, KEY, index) for index in range(2)]
    assert asked == [f"/objects/a?ref={refs[0]}", f"/objects/b?ref={refs[1]}"]
    assert isinstance(verdict, Found)
    assert verdict.item == [{"id": 1}, {"id": 2}]
    _, none = look(ASKED, ["a", "b"], lambda _: page({}, 404))
    assert none == NoneFound()


@pytest.mark.parametrize("result", [Lost("gone"), page({}, 500), page({"error": "no"})])
def test_one_item_that_cannot_be_told_makes_all_so(result: SendResult) -> None:
    def world(target: str) -> SendResult:
        return page({"id": 1}) if target.startswith("/objects/a") else result

    _, verdict = look(ASKED, ["a", "b"], world)
    assert isinstance(verdict, Inconclusive)


def test_one_object_is_not_two_items() -> None:
    _, verdict = look(ASKED, ["a", "b"], lambda _: page({"id": 1}))
    assert verdict == Several(2)


def test_without_a_mark_or_without_items_nothing_is_asked() -> None:
    asked, verdict = look(LISTED, ["a"], lambda _: page({"results": []}), key=None)
    assert (asked, isinstance(verdict, Inconclusive)) == ([], True)
    [lookup] = LISTED.reconcile
    for body in (
        b"{}",
        b'{"inputs": []}',
        b"not json",
        json.dumps({"inputs": [{}] * 101}).encode(),
    ):
        bare = Request("POST", "https", "crm.test", 443, "/listed", (), Body.of(body))
        step = inquiry_of(LISTED, lookup, bare, {}, {"key": KEY, "sent_at": 1.0}).next()
        assert isinstance(step, Inconclusive), body


@pytest.mark.parametrize(
    ("quiet", "kind"), [(0.0, Kind.LOOKUP_INCONCLUSIVE), (65.0, Kind.EFFECT_AMBIGUOUS)]
)
def test_a_part_may_be_a_lag_and_then_is_for_a_person(quiet: float, kind: Kind) -> None:
    [lookup] = LISTED.reconcile
    watch = Watch(quiet_for=quiet, looks=0)
    learned = settle.lookup_ended(
        lookup, Partial(1, 3), watch, 5.0, adopted_by=None, marked=True, same_view=True
    )
    assert [event.kind for event in learned.events] == [kind]
    assert not learned.counts
    assert "1 of 3 items" in str(learned.events[0].data["reason"])


KEYED = """
service: pay
hosts: [pay.test]
source: here
confidence: documented
endpoints:
  batch:
    match: POST /batch
    key: {in: json, name: "items[].ref", existing: keep, valid_for: forever, keeps: success}
    reconcile: {each: body.items, request: "GET /items/{key}", running: 1s, settle: 1s}
"""


def test_an_item_that_kept_its_callers_key_is_looked_for_by_that_key() -> None:
    """By ours it would seem not to be there, and be sent again."""
    [endpoint] = load_text(KEYED).service.endpoints
    assert endpoint.key is not None
    body = json.dumps({"items": [{"ref": "invoice-7"}, {"n": 2}]}).encode()
    call = Request("POST", "https", "pay.test", 443, "/batch", JSON_BODY, Body.of(body))
    sent = put_key(call, endpoint.key, "run/step/op/v1")
    names = {"key": "run/step/op/v1", "sent": "run/step/op/v1"}
    inquiry = inquiry_of(endpoint, endpoint.reconcile[0], sent, {}, names)
    asked = []
    while isinstance(step := inquiry.next(), Request):
        asked.append(step.target)
        inquiry.feed(Answered(Answer(404, "", (), Body.of(b"")), True))
    own = key_of_item(endpoint, "run/step/op/v1", 1)
    assert own is not None
    assert asked == ["/items/invoice-7", "/items/" + quote(own, "")]


JSON_BODY = (("Content-Type", "application/json"),)
