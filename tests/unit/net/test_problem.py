"""Refusals as answers: readable for a model, an SDK and a person."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.core.model import Body
from proxy.core.refusal import CODES, Refusal
from proxy.net.exchange import Reply
from proxy.net.problem import document, phrase, reply


def body(answer: Reply) -> Any:
    assert isinstance(answer.body, Body)
    assert answer.body.data is not None
    return json.loads(answer.body.data)


def values(answer: Reply, name: str) -> list[str]:
    return [value for key, value in answer.headers if key.lower() == name]


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_has_a_document_headers_and_a_phrase_that_agree(code: str) -> None:
    answer = reply(Refusal(code, "why", operation="r/s/a.b/v1", state="unknown"), attempts=2)
    members = body(answer)
    meaning = CODES[code]
    assert answer.status == members["status"] == meaning.status
    assert members["type"] == f"urn:onceproxy:{code}"
    assert members["error"]["message"] == members["next"]
    assert members["next"].startswith(answer.reason)
    assert 0 < len(answer.reason) <= 120
    assert answer.reason.isascii()
    flag = "true" if meaning.retryable else "false"
    assert values(answer, "x-should-retry") == values(answer, "stripe-should-retry") == [flag]
    assert bool(values(answer, "retry-after")) is meaning.retryable
    assert values(answer, "onceproxy-operation") == ["r/s/a.b/v1"]
    assert values(answer, "onceproxy-outcome") == ["refused"]
    assert values(answer, "onceproxy-attempts") == ["2"]


def test_the_phrase_is_the_first_clause_of_what_to_do() -> None:
    told = phrase(Refusal("operation-in-progress", ""))
    assert told == "The same call is still running: repeat exactly the same call"
    told = phrase(Refusal("operation-mismatch", "", fields=("body.amount",)))
    assert told == "Same intent: repeat the earlier values (body.amount)"


def test_the_wait_is_the_refusals_own() -> None:
    answer = reply(Refusal("outcome-unknown", "", retry_after=17))
    assert values(answer, "retry-after") == ["17"]
    assert "17 seconds" in body(answer)["next"]


@pytest.mark.parametrize("letter", ["x", "é", "\n", "\u2028", "\udcff", '"'])
def test_no_document_is_larger_than_two_kilobytes(letter: str) -> None:
    long = letter * 5000
    refusal = Refusal(
        "operation-mismatch",
        long,
        operation=long,
        state="unknown",
        external_id=long,
        fields=tuple(letter * 50 for _ in range(100)),
    )
    data = document(refusal)
    assert len(data) <= 2048
    json.loads(data)


def test_a_rules_shape_replaces_document_and_status() -> None:
    shape = {"status": 200, "body": {"ok": False, "error": "onceproxy_{code}", "n": [1, "{next}"]}}
    answer = reply(Refusal("budget-exhausted", "why", shape=shape))
    assert answer.status == 200
    filled = body(answer)
    assert filled["error"] == "onceproxy_budget-exhausted"
    assert filled["n"] == [1, CODES["budget-exhausted"].next]
    assert values(answer, "content-type") == ["application/json"]
