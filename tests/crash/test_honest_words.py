"""What the caller is told is true: of what has happened, of what was sent, and of what is not
known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from proxy.core.model import Answer, Body, Request
from proxy.core.operation import Kind, State
from proxy.relay import CutOff
from proxy.service.operations import OperationService
from proxy.service.resolution import Resolution
from tests.crash.support import (
    IMPATIENT,
    KEYED,
    OK,
    PATIENT,
    PLAIN,
    QUERIED,
    REFUND,
    Boom,
    Cut,
    boom,
    failing,
    keyed,
    kinds,
    note,
    note_key,
    plain,
    queried,
    refund,
    slowly,
)
from tests.fakes.scripted import LOST, Proxy, Scripted, answer, code, ruleset
from tests.fakes.world import Opened, body_of, outcome

# -- a person's word ---------------------------------------------------------------------------


async def test_a_held_call_gets_the_answer_that_a_person_gave_meanwhile() -> None:
    proxy = keyed(answer(500, {"error": "boom"}))
    service = OperationService(
        ledger=proxy.ledger,
        clock=proxy.clock,
        services=lambda: (),
        settle=proxy.recovery.settle,
        reload=None,
    )
    calling = asyncio.create_task(proxy.call(refund()))
    while not _unknown(proxy):
        await asyncio.sleep(0)
    given = Answer(200, "", (), Body.of(b'{"id":"re_9"}'))
    await service.resolve(f"{REFUND}/v1", Resolution("happened", "ann", answer=given))
    reply = await calling
    assert len(proxy.api.writes) == 1
    assert (reply.status, outcome(reply)) == (200, "resolved")
    assert body_of(reply) == b'{"id":"re_9"}'


def _unknown(proxy: Proxy) -> bool:
    operation = proxy.ledger.get(f"{REFUND}/v1")
    return operation is not None and operation.state is State.UNKNOWN


# -- "nothing was sent" ------------------------------------------------------------------------


async def test_nothing_was_sent_is_not_said_of_a_lost_send_whose_lookup_the_ledger_failed() -> None:
    proxy = queried()
    ledger = failing(proxy)

    def look(request: Request) -> Opened:
        ledger.fail = 1
        return answer(500)

    proxy.api.sends, proxy.api.lookups = [LOST], [look]
    reply = await proxy.call(note())
    assert len(proxy.api.writes) == 1
    assert (reply.status, code(reply)) == (409, "outcome-unknown")
    assert b"othing was sent" not in body_of(reply)


async def test_what_was_not_sent_once_says_nothing_of_the_send_after_it() -> None:
    """The first intent fails and does not land; the second attempt has the same number, and its
    bytes leave before the proxy meets a fault of its own."""
    proxy = Proxy(ruleset(QUERIED), Scripted([boom]))
    ledger = failing(proxy)
    ledger.fail = 1
    assert code(await proxy.call(plain())) == "ledger-unavailable"
    assert (await proxy.call(plain())).status == 500
    reply = await proxy.call(plain())
    assert len(proxy.api.writes) == 1
    assert (reply.status, code(reply)) == (424, "outcome-unresolved")
    assert Kind.ATTEMPT_NOT_SENT not in await kinds(proxy, f"{PLAIN}/v1")


# -- answers that are not kept -----------------------------------------------------------------


async def test_who_waits_for_an_answer_that_is_not_kept_gets_it_once() -> None:
    rules = KEYED.replace("external_id: id", "external_id: id\n    store: meta")
    proxy = keyed(answer(200, OK), rules=rules)
    first, duplicate = await proxy.call(refund()), await proxy.call(refund())
    assert len(proxy.api.writes) == 1
    assert (first.status, body_of(first)) == (200, b'{"id": "re_1"}')
    assert (duplicate.status, code(duplicate)) == (409, "outcome-not-kept")
    assert b"re_1" in body_of(duplicate)


async def test_a_success_whose_body_broke_off_is_told_as_done_and_not_as_its_half() -> None:
    cut = Cut(200, "", (("Content-Type", "application/json"),), b'{"id": "re_1"}')
    proxy = Proxy(ruleset(QUERIED), Scripted([cut]))
    first, duplicate = await proxy.call(plain()), await proxy.call(plain())
    assert len(proxy.api.writes) == 1
    assert proxy.operation(PLAIN).state is State.SUCCEEDED
    assert [code(first), code(duplicate)] == ["outcome-not-kept"] * 2


async def test_a_stream_breaks_off_for_its_caller_when_the_flight_fails() -> None:
    class Stream(Opened):
        async def read(self, limit: int) -> tuple[Body | None, bool]:
            return None, True

        async def chunks(self) -> AsyncIterator[bytes]:
            yield b"x" * 1000
            raise Boom

    proxy = keyed(Stream(200, "", (("Content-Type", "text/event-stream"),), b""))
    reply = await proxy.callers.handle(refund())
    assert not isinstance(reply.body, Body)
    assert len(proxy.api.writes) == 1
    with pytest.raises(CutOff):
        await anext(aiter(reply.body))


# -- two messages of one step ------------------------------------------------------------------


async def test_a_second_message_at_the_same_moment_is_not_swallowed() -> None:
    proxy = queried()
    proxy.api.sends = [slowly(proxy, answer(201, {"id": "n1"}))]
    first, second = await asyncio.gather(
        proxy.call(note("Deploy started")), proxy.call(note("Deploy failed"))
    )
    assert len(proxy.api.writes) == 1
    assert (first.status, second.status) == (201, 422)


async def test_a_second_message_is_not_swallowed_while_the_first_answer_is_being_read() -> None:
    proxy = queried()
    proxy.api.sends = [slowly(proxy, answer(201, {"id": "n1"}))]
    first, second = await asyncio.gather(
        proxy.callers.handle(note("Deploy started")), proxy.callers.handle(note("Deploy failed"))
    )
    first.delivered(True)
    assert len(proxy.api.writes) == 1
    assert (first.status, second.status) == (201, 422)


async def test_a_reworded_call_is_not_refused_for_good_while_the_first_is_being_settled() -> None:
    quick = QUERIED.replace("running: 60s", "running: 1s").replace("settle: 5s", "settle: 1s")
    empty = answer(200, {"data": [], "next": None})
    proxy = queried(LOST, rules=quick, settings=IMPATIENT, lookups=[empty] * 60)
    await proxy.call(note("one"))
    proxy.settings = PATIENT
    proxy.start()
    proxy.api.sends = [answer(201, {"id": "n1"})]
    reply = await proxy.call(note("two"))
    assert [r.body.data for r in proxy.api.writes] == [proxy.api.writes[0].body.data] * 2
    assert reply.status == 201
    assert proxy.operation(note_key(proxy)).state is State.SUCCEEDED
