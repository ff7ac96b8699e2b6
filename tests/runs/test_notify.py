"""Webhooks: somebody is told, whatever the receiver and the proxy go through, and no call waits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy import notify
from proxy.console import words
from proxy.core.model import Lost, NotSent, Request
from proxy.core.notice import CALLER_SECONDS, FOR_A_PERSON, KINDS, TYPES
from proxy.core.operation import Event, Kind, State
from proxy.core.transitions import evolve
from proxy.ledger.base import Change, LedgerError
from proxy.metrics import Metrics
from proxy.notify import Notifier, Receiver, signatures
from tests.crash.test_rare_schedules import says
from tests.fakes.scripted import LOST, answer, code
from tests.fakes.world import Opened, post
from tests.runs.support import IMPATIENT, MADE, World, call, payout, refund, world

MEMORY = pytest.mark.parametrize("store", ["memory"])
BOTH = pytest.mark.parametrize("store", ["memory", "sqlite"])  # where the ledger's part is judged
SECRET = b"a-secret-of-the-receiver"
RECEIVER = Receiver("https://hooks.test/in?team=a", [SECRET])
DAY = 86_400.0
PLAIN = """
service: plain
hosts: [plain.test]
source: https://plain.test/docs
confidence: documented
checked: "2026-11-30"
key: none
endpoints:
  notes.create: {match: POST /notes}
  settings.put: {match: PUT /settings}
"""


@dataclass
class Hook:
    """A receiver. ``takes``: its status for a notice, or why there is none."""

    takes: Any = 200
    got: list[Request] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    async def open(self, request: Request, **_: Any) -> NotSent | Lost | Opened:
        told = json.loads(request.body.data or b"")
        end = self.takes(told) if callable(self.takes) else self.takes
        if isinstance(end, (NotSent, Lost)):
            return end
        self.got.append(request)
        return Opened(end, "", (), b"")

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(each.body.data or b"") for each in self.got]

    @property
    def types(self) -> list[str]:
        return [each["type"] for each in self.told]


@dataclass
class Desk:
    """A proxy, whom it tells, and what it says about that."""

    proxy: World
    hook: Hook
    metrics: Metrics
    notifier: Notifier

    async def restart(self, receiver: Receiver = RECEIVER) -> None:
        await self.proxy.restart()
        self.notifier = Notifier(
            self.proxy.ledger, self.proxy.clock, self.hook, receiver, self.metrics
        )
        await self.notifier.prepare()

    async def pass_time(self, seconds: float) -> int:
        """Rounds of delivery over that time; over a long one, not each of those that only look."""
        end, rounds = self.proxy.clock.time() + seconds, 0
        while (left := end - self.proxy.clock.time()) > 0:
            pause = max(await self.notifier.round(), seconds / 300)
            self.proxy.clock.advance(min(left, pause))
            rounds += 1
        await self.notifier.round()
        return rounds

    def counted(self, result: str) -> float:
        return sum(
            sample.value
            for metric in self.metrics.registry.collect()
            for sample in metric.samples
            if sample.name == "onceproxy_notifications_total" and sample.labels["result"] == result
        )

    def gauge(self, name: str) -> float:
        found = self.metrics.registry.get_sample_value(f"onceproxy_notify_{name}")
        assert found is not None
        return found


@asynccontextmanager
async def desk(
    store: str, path: Path, *sends: Any, receiver: Receiver = RECEIVER, **more: Any
) -> AsyncIterator[Desk]:
    async with world(store, path, sends, settings=IMPATIENT, **more) as proxy:
        metrics = Metrics()
        notifier = Notifier(proxy.ledger, proxy.clock, hook := Hook(), receiver, metrics)
        await notifier.prepare()
        yield Desk(proxy, hook, metrics, notifier)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many may be set aside, so that a test need not make hundreds."""
    monkeypatch.setattr(notify, "BREAKING_MAX", 3)
    monkeypatch.setattr(notify, "SET_ASIDE_MAX", 10)
    return 10


def note(step: str = "step-1", **more: Any) -> Any:
    return post("/notes", {"text": "hello"}, host="plain.test", step=step, **more)


@BOTH
async def test_an_approval_is_told_when_it_is_asked_for_and_when_it_is_decided(
    store: str, tmp_path: Path
) -> None:
    async with desk(store, tmp_path, answer(200, MADE)) as d:
        await d.proxy.call(payout())
        assert await d.notifier.round() == 1.0
        waiting = await d.proxy.waiting()
        [told] = d.hook.told
        assert told == {
            "id": told["id"],
            "type": "approval.requested",
            "at": d.proxy.clock.time(),
            "run": "run-1",
            "operation": "run-1/step-1/shop.payouts.create/v1",
            "approval": {
                "id": waiting["id"],
                "summary": "Pay 50 to acct_1",
                "state": "waiting",
                "expires_at": waiting["expires_at"],
            },
        }
        await d.proxy.desk.grant(waiting["id"], {"note": "fine"}, "ann")
        await d.notifier.round()
        assert d.hook.told[1]["approval"]["state"] == "granted"
        assert (await d.proxy.call(payout())).status == 200
        assert len(d.proxy.api.writes) == 1
        await d.proxy.desk.revoke(waiting["id"], {}, "ann")
        await d.pass_time(10)
        assert d.hook.types == ["approval.requested", "approval.decided", "approval.decided"]
        assert d.hook.told[2]["approval"]["state"] == "revoked"
        assert len({each["id"] for each in d.hook.told}) == 3


@MEMORY
async def test_a_denial_and_an_end_of_its_time_are_decisions(store: str, tmp_path: Path) -> None:
    async with desk(store, tmp_path) as d:
        await d.proxy.call(payout("a"))
        await d.proxy.desk.deny((await d.proxy.waiting())["id"], {}, "ann")
        await d.proxy.call(payout("b"))
        await d.pass_time(4000)
        await d.proxy.call(payout("b"))  # asks anew
        await d.pass_time(10)
        states = [each["approval"]["state"] for each in d.hook.told]
        assert states == ["waiting", "denied", "waiting", "expired", "waiting"]


@MEMORY
async def test_what_only_a_person_can_settle_is_told_once(store: str, tmp_path: Path) -> None:
    async with desk(store, tmp_path, LOST, rules=PLAIN) as d:
        assert code(await d.proxy.call(note())) == "outcome-unresolved"
        for _ in range(3):
            assert code(await d.proxy.call(note())) == "outcome-unresolved"
            await d.pass_time(700)
        assert len(d.proxy.api.writes) == 1
        [told] = d.hook.told
        assert (told["type"], told["blocked_by"]) == ("operation.unresolved", "no_query")
        assert "approval" not in told
        await d.restart()
        await d.pass_time(10)
        assert len(d.hook.got) == 1


@MEMORY
async def test_sends_that_decide_nothing_are_no_news(store: str, tmp_path: Path) -> None:
    """A caller that comes again causes one more send under the key, and that is lost too."""
    async with desk(store, tmp_path, *[LOST] * 12) as d:
        for _ in range(12):
            await d.proxy.call(refund())
            await d.pass_time(100)
        held = d.proxy.operation("run-1/step-1/shop.refunds.create")
        assert (held.blocked_by, len(held.attempts)) == ("ambiguous", 12)
        blocks = [e for e in await d.proxy.ledger.history(held.key) if "blocked_by" in e.event.data]
        assert len(blocks) > 8, "each time it is blocked anew"
        assert d.hook.types == ["operation.unresolved"]


@MEMORY
async def test_one_that_is_lost_again_later_is_told_again(store: str, tmp_path: Path) -> None:
    async with desk(store, tmp_path, LOST, LOST, rules=PLAIN) as d:
        await d.proxy.call(note())
        await says(
            d.proxy, d.proxy.operation("run-1/step-1/plain.notes.create").key, "did_not_happen"
        )
        await d.proxy.call(note())
        await d.notifier.round()
        assert d.hook.types == ["operation.unresolved"] * 2
        assert len(d.proxy.api.writes) == 2, "a person said that the first had no effect"


@MEMORY
async def test_what_the_proxy_settles_by_itself_is_not_told(store: str, tmp_path: Path) -> None:
    async with desk(store, tmp_path, LOST, answer(200, MADE)) as d:
        assert code(await d.proxy.through(refund())) == "outcome-unknown"
        await d.pass_time(100)
        assert (await d.proxy.through(refund())).status == 200  # under its key
        await d.pass_time(100)
        assert d.hook.got == []


@MEMORY
async def test_a_write_that_may_be_made_again_is_no_case_for_a_person(
    store: str, tmp_path: Path
) -> None:
    async with desk(store, tmp_path, LOST, answer(200, MADE), rules=PLAIN) as d:
        arrival = post("/settings", {"dark": True}, host="plain.test", method="PUT")
        assert code(await d.proxy.call(arrival)) == "outcome-unknown"
        held = d.proxy.operation("run-1/step-1/plain.settings.put")
        assert (held.state, held.blocked_by) == (State.UNKNOWN, None)
        await d.pass_time(100)
        assert d.hook.got == []
        assert (await d.proxy.through(arrival)).status == 200
        d.proxy.clock.advance(1000)
        await d.proxy.recovery.settle_all()
        await d.pass_time(100)
        assert d.hook.got == []


@BOTH
async def test_a_caller_has_a_minute_to_come_back_with_its_credential(
    store: str, tmp_path: Path
) -> None:
    """After a restart its credential is gone, and mostly the agent is on its way."""
    authorised = {"headers": (("Authorization", "Bearer of-the-caller"),)}
    async with desk(store, tmp_path, *[LOST] * 2, *[answer(200, MADE)] * 2) as d:
        for step in "ab":
            lost = call("/refunds", {"amount": 5}, step=step, **authorised)
            assert code(await d.proxy.call(lost)) == "outcome-unknown"
        await d.restart()
        await d.proxy.recovery.settle_all()
        blocked = d.proxy.operation("run-1/a/shop.refunds.create").blocked_by
        assert blocked == "credentials"
        await d.pass_time(CALLER_SECONDS - 5)
        assert d.hook.got == []
        assert d.gauge("set_aside") == 2
        back = call("/refunds", {"amount": 5}, step="a", **authorised)
        assert (await d.proxy.through(back)).status == 200
        await d.restart()
        await d.pass_time(30)
        [told] = d.hook.told
        assert told["operation"] == "run-1/b/shop.refunds.create/v1"
        assert told["blocked_by"] == "credentials"


@MEMORY
async def test_a_receiver_that_is_down_for_a_day_gets_all_of_it_in_order(
    store: str, tmp_path: Path
) -> None:
    async with desk(store, tmp_path, LOST, answer(200, MADE), rules=PLAIN) as d:
        for down in (NotSent("connection refused"), Lost("time-out"), 503):
            d.hook.takes = down
            d.hook.got.clear()
            await d.proxy.call(note(f"lost-{down}"))
            d.proxy.api.sends = [LOST]
            before = d.counted("failed")
            await d.pass_time(DAY)
            assert d.counted("failed") - before < 200, "it is left alone"
            assert d.gauge("behind_seconds") > DAY / 2
            d.hook.got.clear()
            d.hook.takes = 200
            await d.restart()
            await d.pass_time(700)
            assert len(d.hook.got) == 1
            assert d.gauge("behind_seconds") == 0
        assert d.counted("given_up") == 0
        d.proxy.api.sends = [answer(200, MADE)]
        assert (await d.proxy.call(note("whole"))).status == 200, "no call waits for a receiver"


@MEMORY
async def test_the_order_is_that_of_the_history(store: str, tmp_path: Path) -> None:
    async with desk(store, tmp_path) as d:
        d.hook.takes = Lost("gone")
        for number in range(150):
            await d.proxy.call(payout(f"s{number:03}"))
        await d.pass_time(DAY / 2)
        d.hook.takes = 200
        await d.pass_time(700)
        steps = [each["operation"].split("/")[1] for each in d.hook.told]
        assert steps == [f"s{number:03}" for number in range(150)]


@BOTH
async def test_a_restart_at_any_moment_loses_none_and_repeats_under_the_same_id(
    store: str, tmp_path: Path
) -> None:
    """The proxy dies between the receiver's answer and its own note of it."""
    async with desk(store, tmp_path) as d:
        for number in range(4):
            await d.proxy.call(payout(f"s{number}"))
        put = d.proxy.ledger.set_bookmark
        for _ in range(4):

            async def dies(name: str, value: bytes) -> None:
                raise LedgerError("killed")

            d.proxy.ledger.set_bookmark = dies  # type: ignore[method-assign]
            await d.notifier.round()
            d.proxy.ledger.set_bookmark = put  # type: ignore[method-assign]
            await d.restart()
        await d.pass_time(10)
        ids = Counter(each["id"] for each in d.hook.told)
        assert len(ids) == 4
        assert max(ids.values()) > 1, "one came twice, under its id"
        bodies = {each["id"]: each for each in d.hook.told}
        assert all(bodies[each["id"]] == each for each in d.hook.told), "and word for word"


@BOTH
async def test_what_was_before_there_was_a_receiver_is_not_told(store: str, tmp_path: Path) -> None:
    async with world(store, tmp_path, settings=IMPATIENT) as proxy:
        await proxy.call(payout("before"))
        notifier = Notifier(proxy.ledger, proxy.clock, hook := Hook(), RECEIVER, Metrics())
        await notifier.prepare()
        await proxy.call(payout("after"))
        # The first life ends before it has told anything.
        again = Notifier(proxy.ledger, proxy.clock, hook, RECEIVER, Metrics())
        await again.prepare()
        await again.round()
        assert [each["operation"].split("/")[1] for each in hook.told] == ["after"]


@pytest.mark.parametrize("status", [400, 404, 301, 500])
@MEMORY
async def test_one_that_the_receiver_does_not_take_does_not_hold_up_the_others(
    store: str, tmp_path: Path, status: int
) -> None:
    async with desk(store, tmp_path) as d:
        d.hook.takes = lambda told: status if "/bad/" in told["operation"] else 200
        await d.proxy.call(payout("bad"))
        await d.proxy.call(payout("good"))
        await d.pass_time(100)
        good = [each for each in d.hook.told if "/good/" in each["operation"]]
        assert len(good) == 1
        tried = len(d.hook.got)
        await d.restart()
        await d.pass_time(DAY)
        assert tried < len(d.hook.got) < 200, "it goes on trying, and not too often"
        await d.pass_time(3 * DAY)
        assert d.counted("given_up") == 1
        assert d.gauge("set_aside") == 0
        ended = len(d.hook.got)
        await d.pass_time(DAY)
        assert len(d.hook.got) == ended


@MEMORY
async def test_a_receiver_that_refuses_everything_is_bounded(
    store: str, tmp_path: Path, few: int
) -> None:
    async with desk(store, tmp_path) as d:
        d.hook.takes = 400
        for number in range(few + 5):
            await d.proxy.call(payout(f"s{number}"))
        await d.pass_time(5)
        assert d.gauge("set_aside") == few
        assert d.counted("given_up") == 5
        await d.pass_time(DAY / 4)
        bound = len(d.hook.got) / few
        assert bound < 60


@MEMORY
async def test_a_receiver_with_errors_of_its_own_loses_nothing(
    store: str, tmp_path: Path, few: int
) -> None:
    async with desk(store, tmp_path) as d:
        d.hook.takes = 500
        many = few + 8
        for number in range(many):
            await d.proxy.call(payout(f"s{number}"))
        await d.pass_time(DAY)
        assert d.gauge("set_aside") <= 3
        d.hook.got.clear()
        d.hook.takes = 200
        await d.pass_time(1300)
        assert len({each["operation"] for each in d.hook.told}) == many
        assert d.counted("given_up") == 0


@MEMORY
async def test_after_a_long_absence_what_is_too_old_is_given_up_without_a_try_each(
    store: str, tmp_path: Path
) -> None:
    async with desk(store, tmp_path) as d:
        d.hook.takes = tries = Tries()
        for number in range(50):
            await d.proxy.call(payout(f"old{number}"))
        await d.pass_time(4 * DAY)
        tried = tries.count
        assert d.counted("given_up") == 50
        assert tried < 600
        await d.proxy.call(payout("new"))
        d.hook.takes = 200
        await d.pass_time(10)
        assert [each["operation"].split("/")[1] for each in d.hook.told] == ["new"]


class Tries:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, told: Any) -> Lost:
        self.count += 1
        return Lost("time-out")


@MEMORY
async def test_a_clock_that_is_set_back_delays_nothing_for_long(store: str, tmp_path: Path) -> None:
    async with desk(store, tmp_path) as d:
        d.hook.takes = 400
        await d.proxy.call(payout())
        await d.pass_time(10)
        d.proxy.clock.step(-DAY)
        d.hook.takes = 200
        d.hook.got.clear()
        await d.pass_time(1)
        assert len(d.hook.got) == 1


@MEMORY
async def test_only_the_types_that_were_asked_for_are_told(store: str, tmp_path: Path) -> None:
    receiver = Receiver(RECEIVER.url, [SECRET], events=["approval.decided"])
    async with desk(store, tmp_path, receiver=receiver) as d:
        await d.proxy.call(payout())
        await d.proxy.desk.deny((await d.proxy.waiting())["id"], {}, "ann")
        await d.pass_time(10)
        assert d.hook.types == ["approval.decided"]


@MEMORY
async def test_a_link_leads_to_the_page(store: str, tmp_path: Path) -> None:
    receiver = Receiver(RECEIVER.url, [SECRET], console="https://once.test")
    async with desk(store, tmp_path, LOST, rules=PLAIN, receiver=receiver) as d:
        await d.proxy.call(note("a b"))
        await d.notifier.round()
        [told] = d.hook.told
        key = "run-1%2Fa%2520b%2Fplain.notes.create%2Fv1"
        assert told["link"] == f"https://once.test/operation?key={key}"
    async with desk(store, tmp_path, receiver=receiver) as d:
        await d.proxy.call(payout())
        await d.notifier.round()
        [told] = d.hook.told
        assert told["link"] == f"https://once.test/approval?id={told['approval']['id']}"


@MEMORY
async def test_the_request_is_small_signed_and_without_what_was_sent(
    store: str, tmp_path: Path
) -> None:
    receiver = Receiver(RECEIVER.url, [SECRET, b"the-next-secret-of-it"])
    async with desk(store, tmp_path, LOST, rules=PLAIN, receiver=receiver) as d:
        secret = (("Authorization", "Bearer of-the-caller"),)
        await d.proxy.call(note(headers=secret))
        await d.notifier.round()
        [request] = d.hook.got
        assert (request.method, request.url) == ("POST", receiver.url)
        assert request.body.data is not None
        assert request.body.size < 1000
        for word in (b"hello", b"of-the-caller"):
            assert word not in request.body.data
        number, when = request.header("webhook-id"), request.header("webhook-timestamp")
        assert number == d.hook.told[0]["id"]
        assert when == str(int(d.proxy.clock.time()))
        both = signatures(receiver.secrets, number, when, request.body.data)
        assert request.header("webhook-signature") == both
        assert [each[:3] for each in both.split(" ")] == ["v1,", "v1,"]


@BOTH
async def test_a_long_history_without_a_notice_is_passed_over(store: str, tmp_path: Path) -> None:
    async with desk(store, tmp_path, *[answer(200, MADE)] * 20) as d:
        for number in range(20):
            assert (await d.proxy.call(refund(f"s{number}"))).status == 200
        asked: list[int] = []
        events = d.proxy.ledger.events

        async def counted(after: int, *args: Any, **more: Any) -> Any:
            found = await events(after, *args, **more)
            asked.append(len(found))
            return found

        d.proxy.ledger.events = counted  # type: ignore[method-assign]
        await d.pass_time(3)
        assert sum(asked) == 0, "no row of it was even read"
        assert d.notifier._mark.after == d.proxy.ledger.last_event()


@MEMORY
async def test_a_conflict_is_told(store: str, tmp_path: Path) -> None:
    async with desk(store, tmp_path, LOST, rules=PLAIN) as d:
        await d.proxy.call(note())
        held = d.proxy.operation("run-1/step-1/plain.notes.create")
        event = Event(Kind.EFFECT_CONFLICT, d.proxy.clock.time(), {})
        await d.proxy.ledger.commit(Change(evolve(held, event), (event,)))
        await d.notifier.round()
        assert d.hook.types == ["operation.unresolved", "operation.conflict"]


def test_the_words_are_those_of_the_console() -> None:
    """What a webhook calls a person for is what the console lists for one."""
    people = {word for word, about in words.BLOCKED.items() if about.person and word}
    assert people == FOR_A_PERSON
    assert set(TYPES) == set(Receiver("https://x", []).events)
    assert Kind.OUTCOME_RECORDED not in KINDS, "it is the most frequent of all"
