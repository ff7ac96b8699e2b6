"""Which version and which name a call belongs to, and what an operation keeps when its rule is
changed under it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from proxy.core.operation import State
from proxy.net.exchange import Arrival
from tests.crash.support import (
    IMPATIENT,
    KEYED,
    OK,
    QUERIED,
    REFUND,
    invoice,
    key_of,
    keyed,
    note,
    note_key,
    page,
    queried,
    refund,
    saying,
    settle_often,
    slowly,
)
from tests.fakes.scripted import LOST, Proxy, Scripted, answer, code, ruleset
from tests.fakes.world import outcome, post

# -- versions ----------------------------------------------------------------------------------


async def test_a_changed_call_gets_no_answer_to_the_call_it_met() -> None:
    """The throttled call is made again while another amount asks for the version after it."""
    proxy = keyed(answer(429, {}))
    await proxy.call(refund(500))
    proxy.api.sends = [slowly(proxy, answer(200, OK))]
    first, changed = await asyncio.gather(proxy.call(refund(500)), proxy.call(refund(50)))
    assert len(proxy.api.writes) == 2
    assert (first.status, changed.status) == (200, 422)
    assert code(changed) == "operation-mismatch"


async def test_a_version_that_was_overtaken_is_not_sent_any_more() -> None:
    proxy = keyed(answer(429, {}))
    await proxy.call(refund(500))
    proxy.api.sends = [slowly(proxy, answer(200, OK))] * 2
    changed, first = await asyncio.gather(proxy.call(refund(50)), proxy.call(refund(500)))
    assert [key_of(r) for r in proxy.api.writes] == [f"{REFUND}/v1", f"{REFUND}/v2"]
    assert (changed.status, first.status) == (200, 422)
    assert code(first) == "operation-mismatch"


# -- names -------------------------------------------------------------------------------------


async def test_a_name_added_later_is_seen_as_the_same_call_on_any_port() -> None:
    def call(operation_id: str | None = None) -> Arrival:
        arrival = post("/things", {"a": 1}, host="local.test", operation_id=operation_id)
        arrival.request = replace(arrival.request, port=8443)
        return arrival

    proxy = Proxy(ruleset(KEYED), Scripted([answer(201, OK)]))
    await proxy.call(call())
    reply = await proxy.call(call("the-second-name"))
    assert len(proxy.api.writes) == 1
    assert outcome(reply) == "replayed"


async def test_another_key_of_the_caller_in_one_step_is_the_same_operation() -> None:
    """SDKs make up keys of unknown shapes, so a key alone does not make a second operation."""
    proxy = keyed(answer(200, OK))
    await proxy.call(invoice("order-1"))
    reply = await proxy.call(invoice("order-2"))
    assert [key_of(r) for r in proxy.api.writes] == ["order-1"]
    assert outcome(reply) == "replayed"


async def test_operation_ids_make_two_operations_of_one_step() -> None:
    proxy = keyed(answer(200, OK), answer(200, {"id": "re_2"}))
    await proxy.call(invoice("order-1", operation_id="1"))
    reply = await proxy.call(invoice("order-2", operation_id="2"))
    assert [key_of(r) for r in proxy.api.writes] == ["order-1", "order-2"]
    assert outcome(reply) == "sent"


async def test_a_put_that_stands_for_a_post_is_not_sent_again_as_idempotent() -> None:
    override = [("X-HTTP-Method-Override", "POST")]
    proxy = Proxy(ruleset(KEYED), Scripted([LOST]))
    reply = await proxy.call(post("/thing", {"a": 1}, method="PUT", headers=override))
    assert len(proxy.api.writes) == 1
    assert (reply.status, code(reply)) == (424, "outcome-unresolved")


# -- a rule that changes ----------------------------------------------------------------------

META = KEYED.replace("external_id: id", "external_id: id\n    store: meta")


async def test_a_lookup_whose_mark_has_moved_proves_no_absence() -> None:
    moved = QUERIED.replace("name: mark}", "name: ref}").replace("where: {mark:", "where: {ref:")
    proxy = queried(LOST, settings=IMPATIENT, lookups=[answer(500)] * 3)
    await proxy.call(note())
    proxy.rules = ruleset(moved)
    await proxy.restart()
    proxy.api.lookups = [page({"id": "n1", "mark": f"{note_key(proxy)}/v1"})] * 60
    await proxy.call(note())
    await settle_often(proxy)
    assert len(proxy.api.writes) == 1
    assert proxy.operation(note_key(proxy)).state is State.UNKNOWN


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (META, META.replace("name: Idempotency-Key", "name: X-Request-Key")),
        (KEYED, saying(KEYED, "signed: body")),
    ],
    ids=["the key has another place, the body was not kept", "the API signs now"],
)
async def test_a_resend_carries_the_key_where_the_first_attempt_had_it(
    before: str, after: str
) -> None:
    proxy = keyed(LOST, rules=before, settings=IMPATIENT)
    await proxy.call(refund())
    proxy.rules = ruleset(after)
    await proxy.restart()
    proxy.api.sends = [answer(200, OK)]
    reply = await proxy.call(refund())
    assert [key_of(r) for r in proxy.api.writes] == [f"{REFUND}/v1"] * 2
    assert reply.status == 200


# -- time --------------------------------------------------------------------------------------


async def test_a_wall_clock_before_the_first_attempt_permits_no_resend() -> None:
    proxy = keyed(LOST, settings=IMPATIENT)
    await proxy.call(refund())
    proxy.clock.step(-86_400)
    await proxy.restart(seconds=23.5 * 3600)
    reply = await proxy.call(refund())
    assert len(proxy.api.writes) == 1
    assert (reply.status, code(reply)) == (424, "outcome-unresolved")
