"""``observe`` records and counts, and changes nothing: every call leaves, and hears its own end."""

from __future__ import annotations

import asyncio

import pytest

from proxy.net.exchange import BytesInlet
from tests.crash.support import KEYED, OK, invoice, key_of, keyed, refund, saying, slowly
from tests.fakes.scripted import LOST, answer, code
from tests.fakes.world import outcome

OBSERVED = saying(KEYED, "mode: observe")


@pytest.mark.parametrize("other", [500, 50], ids=["identical", "changed"])
async def test_twins_that_are_observed_both_leave(other: int) -> None:
    proxy = keyed(rules=OBSERVED)
    proxy.api.sends = [slowly(proxy, answer(200, OK))] * 2
    replies = await asyncio.gather(proxy.call(refund(500)), proxy.call(refund(other)))
    assert len(proxy.api.writes) == 2
    assert {key_of(r) for r in proxy.api.writes} == {None}
    assert [r.status for r in replies] == [200, 200]


async def test_each_observed_twin_hears_of_its_own_send() -> None:
    proxy = keyed(rules=OBSERVED)
    proxy.api.sends = [slowly(proxy, LOST), slowly(proxy, answer(200, OK))]
    replies = await asyncio.gather(proxy.call(refund()), proxy.call(refund()))
    assert len(proxy.api.writes) == 2
    assert sorted(r.status for r in replies) == [200, 502]
    assert [code(r) for r in replies if r.status == 502] == ["upstream-lost"]


async def test_an_observed_duplicate_leaves_and_is_not_answered_from_the_ledger() -> None:
    proxy = keyed(answer(200, OK), answer(200, {"id": "re_2"}), rules=OBSERVED)
    await proxy.call(refund())
    reply = await proxy.call(refund())
    assert len(proxy.api.writes) == 2
    assert outcome(reply) is None
    assert ("observed", "duplicate") in proxy.metrics.calls


async def test_a_reused_business_key_is_observed_and_not_refused() -> None:
    proxy = keyed(answer(200, OK), answer(200, OK), rules=OBSERVED)
    await proxy.call(invoice("invoice-42", "run-1"))
    reply = await proxy.call(invoice("invoice-42", "run-2", 501))
    assert [key_of(r) for r in proxy.api.writes] == ["invoice-42"] * 2
    assert reply.status == 200


async def test_a_body_that_would_be_refused_is_observed_and_passes_unchanged() -> None:
    twice = b'{"amount": 1, "amount": 2}'
    proxy = keyed(answer(200, OK), rules=OBSERVED)
    arrival = refund()
    arrival.inlet, arrival.content_length = BytesInlet(twice), len(twice)
    reply = await proxy.call(arrival)
    assert [r.body.data for r in proxy.api.writes] == [twice]
    assert reply.status == 200
    assert ("observed", "bad-request") in proxy.metrics.calls


async def test_the_same_body_is_refused_where_the_rule_is_enforced() -> None:
    twice = b'{"amount": 1, "amount": 2}'
    proxy = keyed()
    arrival = refund()
    arrival.inlet, arrival.content_length = BytesInlet(twice), len(twice)
    reply = await proxy.call(arrival)
    assert proxy.api.writes == []
    assert (reply.status, code(reply)) == (400, "bad-request")
