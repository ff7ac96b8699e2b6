"""Conditions hold by meaning; what cannot be told is said, not guessed."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from proxy.core.conditions import Condition
from proxy.core.model import Body, Request
from proxy.core.paths import answer_path, request_path
from proxy.core.templates import ValueMissing
from proxy.core.views import ItemView, RequestView
from proxy.rulefile.problems import Problems
from proxy.rulefile.wording import Reader

ITEM = {
    "status": "open",
    "amount": 500,
    "text": "900",
    "rate": Decimal("1.0"),
    "live": True,
    "none": None,
    "tags": ["a", "b"],
    "url": "https://q.test/orders.fifo",
    "made": "2023-11-14T22:13:20Z",
    "mailed": "Tue, 14 Nov 2023 22:13:20 +0000",
    "at_ms": 1_700_000_000_000,
}


def condition(raw: Any) -> Condition:
    problems = Problems("test")
    read = Reader(problems, ("key", "sent_at")).condition(raw, (), answer_path, templates=True)
    assert not problems.errors
    assert read is not None
    return read


def holds(raw: Any, names: dict[str, Any] | None = None) -> bool:
    request = Request("POST", "https", "a.test", 443, "/", (), Body.of(b'{"status": "open"}'))
    return condition(raw).holds(ItemView(ITEM), names or {}, RequestView(request))


@pytest.mark.parametrize(
    "raw",
    [
        {"status": "open"},
        {"amount": 500},
        {"amount": "500"},
        {"rate": 1},
        {"live": True},
        {"live": "true"},
        {"none": None},
        {"status": {"in": ["shut", "open"]}},
        {"status": {"not": "shut"}},
        {"status": {"not": ["shut", "gone"]}},
        {"absent": {"not": "shut"}},
        {"tags": {"has": "b"}},
        {"tags[]": {"has": "b"}},
        {"tags": {"contains": "a"}},
        {"url": {"contains": "orders"}},
        {"url": {"ends": ".fifo"}},
        {"amount": {"over": 499, "under": 501}},
        {"text": {"over": 500}},
        {"made": {"after": "2023-11-14T22:13:19Z"}},
        {"mailed": {"after": 1_699_999_999}},
        {"at_ms": {"after": "2023-11-14T22:13:19+00:00"}},
        {"amount": {"exists": True}},
        {"absent": {"exists": False}},
        {"none": {"exists": False}},
        {"status": "open", "amount": 500},
        [{"status": "shut"}, {"amount": 500}],
        {"status": "{body.status}"},
        {"text": {"in": ["{key}", "x"]}},
        {"made": {"after": "{sent_at | minus 60s}"}},
    ],
)
def test_a_condition_holds(raw: Any) -> None:
    assert holds(raw, {"key": "900", "sent_at": 1_700_000_030.0})


@pytest.mark.parametrize(
    "raw",
    [
        {"status": "OPEN"},
        {"amount": 501},
        {"amount": True},
        {"live": 1},
        {"none": "null"},
        {"status": {"in": ["shut"]}},
        {"status": {"not": "open"}},
        {"absent": "open"},
        {"absent": {"in": ["open"]}},
        {"tags": "a"},
        {"tags": {"has": "c"}},
        {"amount": {"contains": "5"}},
        {"absent": {"over": 1}},
        {"amount": {"over": 500}},
        {"amount": {"under": 500}},
        {"made": {"after": "2023-11-14T22:13:20Z"}},
        {"none": {"exists": True}},
        {"status": "open", "amount": 501},
        [{"status": "shut"}, {"amount": 501}],
        {"status": "{body.status | digest}"},
    ],
)
def test_a_condition_does_not_hold(raw: Any) -> None:
    assert not holds(raw)


@pytest.mark.parametrize(
    "raw",
    [
        {"status": "{body.absent}"},
        {"status": "{key}"},
        {"status": {"over": 5}},
        {"tags": {"under": 5}},
        {"status": {"after": "2023-11-14T22:13:20Z"}},
    ],
)
def test_what_cannot_be_told_is_neither_yes_nor_no(raw: Any) -> None:
    with pytest.raises(ValueMissing):
        holds(raw)
    assert condition(raw).may_hold(ItemView(ITEM))


def test_a_body_that_cannot_be_read_may_hold_anything() -> None:
    twice = Body.of(b'{"amount": 1, "amount": 20000}')
    request = Request("POST", "https", "a.test", 443, "/", (), twice)
    problems = Problems("test")
    over = Reader(problems).condition({"body.amount": {"over": 10_000}}, (), request_path)

    assert over is not None
    assert over.may_hold(RequestView(request))
