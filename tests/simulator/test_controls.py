"""Services that do worse than their rule says, and planted bugs of the proxy: each must be seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from proxy.core import intent, settle
from proxy.core.decide import state as by_state
from proxy.rulefile.loader import load_text
from tests.simulator.matrix import Life, begun, end, worlds
from tests.simulator.service import Scenario, scenarios

pytestmark = pytest.mark.usefixtures("quiet_log")

SHOP = """
service: shop
hosts: [api.shop.test]
source: https://shop.test/docs
confidence: documented
checked: "2026-11-30"
key: none
endpoints:
  orders.create:
    match: POST /orders
    external_id: id
    key: {in: header, name: Idempotency-Key, valid_for: 24h, keeps: all}
    examples:
      - request: {send: POST /orders, json: {sku: a}}
        answers: &answers
          - {status: 201, body: {id: o_1}, means: succeeded}
          - {status: 422, body: {error: sold_out}, means: rejected}
          - {status: 429, means: not_applied}
          - {status: 500, means: unknown}
  notes.create:
    match: POST /notes
    external_id: id
    marker: {in: json, name: mark}
    reconcile:
      request: GET /notes
      items: data
      where: {mark: "{key}"}
      pages: {cursor: next, into: cursor}
      running: 30s
      settle: 10s
    examples:
      - request: {send: POST /notes, json: {text: a}}
        answers: *answers
        lookups:
          - {body: {data: [{id: n_1, mark: "{key}"}], next: null}, means: found}
          - {body: {data: [], next: null}, means: none}
  mails.send:
    match: POST /mails
    external_id: id
    examples:
      - request: {send: POST /mails, json: {to: a}}
        answers: *answers
"""
KEYED, QUERIED, PLAIN = "shop.orders.create", "shop.notes.create", "shop.mails.send"
LATE = 0.85 * 24 * 3600  # most of the key's window, and inside its margin
AFTER = 25 * 3600.0


@cache
def scenario(title: str) -> Scenario:
    found = {each.title: each for each in scenarios(load_text(SHOP))}
    return found[title]


async def seen(title: str, *story: Life, **habits: float) -> tuple[str, ...]:
    """What is found to be wrong after these lives."""
    [world] = await worlds(scenario(title), [[life] for life in story], **habits)
    return (await end(world)).violations


KILLED = Life("after_effect", "answers")
KILLED_LONG_AGO = replace(KILLED, pause=LATE)
LOST = Life("after_effect", "loses_after")
SLOW = Life("after_effect", "slow")


@pytest.mark.parametrize(
    ("title", "life", "habits"),
    [
        pytest.param(KEYED, KILLED_LONG_AGO, {"window_factor": 0.5}, id="forgets keys early"),
        pytest.param(QUERIED, KILLED, {"lag_factor": 30.0}, id="shows objects late"),
        pytest.param(QUERIED, SLOW, {"slow_factor": 9.0}, id="works longer than it may"),
    ],
)
async def test_a_service_that_does_worse_than_its_rule_says_is_seen(
    title: str, life: Life, habits: dict[str, float]
) -> None:
    assert await seen(title, life) == ()
    assert await seen(title, life, **habits)


def _absence_is_believed_at_once(patch: pytest.MonkeyPatch) -> None:
    true = settle._nothing
    patch.setattr(
        settle,
        "_nothing",
        lambda lookup, watch, *rest: true(
            replace(lookup, looks=1), replace(watch, quiet_for=1e9), *rest
        ),
    )


def _no_mark_is_sent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(intent, "put_marker", lambda request, *rest: request)


def _no_key_is_sent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(intent, "put_key", lambda request, *rest: request)


def _windows_never_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(by_state, "_key_holds", lambda question, operation: True)


def _sent_again_whatever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(by_state, "_permit", lambda *args: by_state.UNDER_KEY)


def _a_new_key_each_time(patch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    true = intent._upstream_key

    def planted(*args: Any) -> str:
        made.append(args)
        return f"{true(*args)}-{len(made)}"

    patch.setattr(intent, "_upstream_key", planted)
    patch.setattr("proxy.engine.stored_request", _without_key(made))


def _without_key(made: list[Any]) -> Callable[..., Any]:
    from proxy.bound import stored_request

    async def planted(*args: Any) -> Any:
        request = await stored_request(*args)
        made.append(args)
        return request.with_(headers=(("Idempotency-Key", str(len(made))),))

    return planted


@pytest.mark.parametrize(
    ("plant", "title", "life"),
    [
        (_absence_is_believed_at_once, QUERIED, KILLED),
        (_no_mark_is_sent, QUERIED, KILLED),
        (_no_key_is_sent, KEYED, KILLED),
        (_windows_never_end, KEYED, replace(KILLED, pause=AFTER)),
        (_sent_again_whatever, PLAIN, LOST),
        (_a_new_key_each_time, KEYED, LOST),
    ],
)
async def test_a_planted_bug_is_seen(
    plant: Callable[[pytest.MonkeyPatch], None],
    title: str,
    life: Life,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await seen(title, life) == ()
    plant(monkeypatch)
    assert await seen(title, life)


async def test_the_service_counts_each_request_that_no_key_ties_to_another() -> None:
    world = begun(scenario(PLAIN))
    for _ in range(3):
        await world.service.open(world.scenario.request)
    assert len(world.service.effects) == 3


@pytest.mark.parametrize(("hours", "effects"), [(23, 1), (25, 2)])
async def test_the_service_honours_a_key_for_its_window(hours: float, effects: int) -> None:
    world = begun(scenario(KEYED))
    request = world.scenario.request.with_(headers=(("Idempotency-Key", "k"),))
    await world.service.open(request)
    world.clock.advance(hours * 3600)
    await world.service.open(request)
    assert len(world.service.effects) == effects


async def test_a_lookup_shows_an_object_after_its_lag_on_the_page_after_those_of_others() -> None:
    world = begun(scenario(QUERIED))
    request = world.scenario.request
    marked = request.with_(body=type(request.body).of(b'{"text":"a","mark":"m"}'))
    await world.service.open(marked)

    async def look(query: str = "") -> bytes:
        asked = replace(
            request, method="GET", target=f"/notes{query}", body=type(request.body).of(b"")
        )
        opened = await world.service.open(asked)
        return opened.body  # type: ignore[union-attr]

    assert await look() == b'{"data":[],"next":null}'
    world.clock.advance(10)
    first = await look()
    assert b'"somebody-elses"' in first
    assert b'"page-1"' in first
    assert await look("?cursor=page-1") == b'{"data":[{"id":"n_1","mark":"m"}],"next":null}'
