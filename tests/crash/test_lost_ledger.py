"""Schedule H7: a ledger that was restored, lost or replaced, judged by what the API has.

A ledger that does not know what came after it is a new generation. What a run may have done before
is then asked about, sent under a key that the API still honours, or left to a person.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy.core.call import Policy
from proxy.core.operation import Kind
from proxy.core.runs import next_epoch
from proxy.engine import Engine, Settings
from proxy.ledger import backup
from proxy.ledger.base import FAR_PAST, Gap, Ledger
from proxy.ledger.memory import MemoryLedger
from proxy.ledger.sqlite import SqliteLedger
from proxy.net.exchange import Reply
from proxy.recovery import Recovery
from proxy.service.operations import OperationService
from proxy.service.resolution import read_resolution
from tests import reliability
from tests.crash.support import QUERIED
from tests.fakes.clock import FakeClock
from tests.fakes.scripted import code, fields, ruleset
from tests.fakes.world import Api, engine, outcome, post, rules

BAR = "A ledger restored, lost or replaced; the run comes back"
KEY = bytes(32)
HOUR, DAY = 3600.0, 86400.0


@dataclass
class World:
    """An API that lives on, and one proxy after another over whatever ledger is in the folder."""

    folder: Path
    clock: FakeClock = field(default_factory=FakeClock)
    secrets: Sequence[bytes] = ()
    rules: Any = field(default_factory=rules)

    def __post_init__(self) -> None:
        self.api = Api(self.clock)

    @property
    def path(self) -> Path:
        return self.folder / "ledger.db"

    @asynccontextmanager
    async def life(self, *, restored: bool = False) -> AsyncIterator[Life]:
        ledger = SqliteLedger(self.path, key=KEY, clock=self.clock, restored=restored)
        await ledger.open()
        try:
            life = self.over(ledger)
            await life.recovery.start()
            yield life
        finally:
            await ledger.close()

    def over(self, ledger: Ledger) -> Life:
        settings = Settings(policy=Policy(digest_key=b"d"), secrets=self.secrets)
        made, callers, _ = engine(ledger, self.api, self.clock, self.rules, settings=settings)
        return Life(self, ledger, made, callers, Recovery(made))

    def with_a_gap(self) -> Life:
        """In memory, so that no disk is waited for while the clock runs."""
        ledger = MemoryLedger(self.clock)
        ledger.gap = Gap(self.clock.time() - DAY, self.clock.time())
        return self.over(ledger)

    def forget_what_follows(self) -> Path:
        """A copy of the ledger as it is now, by hand: the file alone."""
        return Path(shutil.copy(self.path, self.folder / "copy.db"))

    def put_back(self, copy: Path) -> None:
        shutil.copy(copy, self.path)


@dataclass
class Life:
    world: World
    ledger: Ledger
    engine: Engine
    callers: Any
    recovery: Recovery

    async def call(self, path: str, body: Any = None, **who: Any) -> Reply:
        reply: Reply = await self.callers.handle(post(path, body or {"amount": 5}, **who))
        reply.delivered(True)
        return reply

    async def kinds(self, key: str) -> list[Kind]:
        return [stored.event.kind for stored in await self.ledger.history(key)]

    def foreign(self) -> int:
        return sum(1 for name, *_ in self.engine.metrics.calls if name == "foreign")  # type: ignore[attr-defined]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def acted_after_the_copy(world: World, path: str) -> Path:
    """A run writes once; a copy of the ledger was made just before that."""
    async with world.life() as life:
        await life.call("/plain", run="run-0")
    copy = world.forget_what_follows()
    world.clock.advance(60)
    async with world.life() as life:
        assert outcome(await life.call(path)) == "sent"
    world.clock.advance(60)
    return copy


WAYS_BACK = ("copied by hand", "restored", "backup", "gone", "another")


async def bring_back(world: World, how: str, copy: Path) -> bool:
    """Have an earlier ledger, or none, where the one was that knows it all; whether --restored has
    to be given."""
    if how in ("copied by hand", "restored"):
        world.put_back(copy)
        if how == "restored":  # on another machine, where no head file tells
            world.path.with_name("ledger.db.head").unlink()
            return True
    elif how == "backup":
        world.path.with_name("ledger.db.head").unlink()
        world.path.unlink()
        file = world.folder / "backup.db"
        backup.copy(copy, file, world.clock.time())
        backup.restore(file, world.path, KEY, world.clock.time())
    elif how == "gone":
        world.path.unlink()
    else:
        other = World(world.folder / "other", clock=world.clock)
        other.folder.mkdir()
        async with other.life() as life:
            await life.call("/plain", run="run-of-another")
        shutil.copy(other.path, world.path)
    return False


@pytest.mark.parametrize("how", WAYS_BACK)
@pytest.mark.parametrize("path", ["/keyed", "/queried", "/plain"])
async def test_h7_a_write_that_a_lost_ledger_sent_is_not_made_twice(
    world: World, path: str, how: str
) -> None:
    copy = await acted_after_the_copy(world, path)
    before = len(world.api.effects)
    restored = await bring_back(world, how, copy)
    async with world.life(restored=restored) as life:
        reply = await life.call(path)
        assert len(world.api.effects) == before
        if path == "/queried":
            assert outcome(reply) == "reconciled"
        elif path == "/keyed" and how not in ("gone", "another"):
            assert outcome(reply) == "sent"  # the API's own replay, under its key
            assert reply.status == 200
        else:
            assert (reply.status, code(reply)) == (424, "outcome-unresolved")
            assert "restored or replaced" in fields(reply)["detail"]
        if reply.status == 200:
            assert Kind.FOREIGN_EFFECT in await life.kinds(
                dict(reply.headers)["Onceproxy-Operation"]
            )
            assert life.foreign() == 1
        again = await life.call(path)
        assert again.status == reply.status
        assert len(world.api.effects) == before
        assert await life.ledger.verify() == []
    for bar in ("H7", "R20"):
        reliability.figure(bar, BAR, cases=1, duplicates=0)


@pytest.mark.parametrize("path", ["/queried", "/plain"])
async def test_h7_without_the_gap_it_is_made_twice(world: World, path: str) -> None:
    """The control of the test above: nothing but the gap stands between the two effects."""
    copy = await acted_after_the_copy(world, path)
    before = len(world.api.effects)
    world.put_back(copy)
    async with world.life() as life:
        await life.ledger.close_gap()
        await life.call(path)
    assert len(world.api.effects) == before + 1
    for bar in ("H7", "R20"):
        reliability.control(bar, "the gap closed before the call", "a second effect each time")


async def test_h7_a_gap_lasts_over_restarts_and_until_a_person_closes_it(world: World) -> None:
    copy = await acted_after_the_copy(world, "/plain")
    world.put_back(copy)
    async with world.life() as life:
        gap = life.ledger.gap
        assert gap is not None
        assert gap.since < gap.until - 100  # from the newest event that the copy has
    async with world.life() as life:
        assert life.ledger.gap == gap
        assert life.ledger.alarms == ()
        assert any("gap --close" in warning for warning in life.ledger.warnings)
        assert (await life.call("/plain", run="never-seen")).status == 424
        await life.ledger.close_gap()
        assert outcome(await life.call("/plain", run="never-seen-2")) == "sent"
    async with world.life() as life:
        assert life.ledger.gap is None
        assert outcome(await life.call("/plain", run="never-seen-3")) == "sent"


async def test_a_run_that_is_known_to_be_new_is_not_asked_about(world: World) -> None:
    world.put_back(await acted_after_the_copy(world, "/plain"))
    async with world.life() as life:
        await life.ledger.amend("made-now", next_epoch(0.0), new=True)
        lookups = world.api.lookups
        assert outcome(await life.call("/plain", run="made-now")) == "sent"
        assert outcome(await life.call("/queried", run="made-now")) == "sent"
        assert world.api.lookups == lookups
        # Whoever merely says so of a run that has been seen is not believed.
        await life.ledger.amend("seen", next_epoch(0.0))
        await life.ledger.amend("seen", next_epoch(0.0), new=True)
        assert (await life.call("/plain", run="seen")).status == 424


async def test_h7_what_the_lost_ledger_did_not_do_is_sent_once_asked(world: World) -> None:
    life = world.with_a_gap()
    world.clock.advance(10)  # longer than the API may still work on what was sent before
    reply = await life.call("/queried", run="run-9")
    assert outcome(reply) == "sent"
    assert len(world.api.effects) == 1
    asked = world.api.lookups
    assert asked >= 2
    assert life.foreign() == 0
    assert outcome(await life.call("/queried", run="run-9")) == "replayed"
    assert world.api.lookups == asked
    # The next write of that run is one of a run that may be older, too.
    await life.call("/queried", run="run-9", step="step-2")
    assert world.api.lookups > asked
    assert len(world.api.effects) == 2


async def test_h7_absence_is_not_believed_right_after_the_start(world: World) -> None:
    """A process that died a moment ago may have sent something that the API still works on."""
    life = world.with_a_gap()
    world.api.lag = 1.5
    world.api.effects.append({"id": "late", "at": world.clock.time(), "mark": _mark("run-9")})
    assert outcome(await life.call("/queried", run="run-9")) == "reconciled"
    assert len(world.api.effects) == 1


def _mark(run: str, version: int = 1) -> str:
    return f"{run}/step-1/world.queried.create/v{version}"


async def test_a_person_says_that_it_did_not_happen_and_it_is_sent(world: World) -> None:
    world.put_back(await acted_after_the_copy(world, "/plain"))
    before = len(world.api.effects)
    async with world.life() as life:
        key = fields(await life.call("/plain"))["operation"]
        service = OperationService(
            ledger=life.ledger,
            clock=world.clock,
            services=lambda: (),
            settle=life.recovery.settle,
            reload=lambda: None,  # type: ignore[arg-type, return-value]
        )
        assert (await service.one(key))["attempt_list"][0]["reason"].startswith("a ledger")
        await service.resolve(key, read_resolution({"as": "did_not_happen"}, "ann"))
        assert outcome(await life.call("/plain")) == "sent"
        assert outcome(await life.call("/plain")) == "replayed"
    assert len(world.api.effects) == before + 1


async def test_h7_a_row_that_says_not_applied_may_be_out_of_date(world: World) -> None:
    world.api.script = ["refuses"]
    async with world.life() as life:
        await life.call("/plain")
    copy = world.forget_what_follows()
    world.clock.advance(60)
    async with world.life() as life:
        assert outcome(await life.call("/plain")) == "sent"
    world.clock.advance(60)
    world.put_back(copy)
    async with world.life() as life:
        assert (await life.call("/plain")).status == 424
    assert len(world.api.effects) == 1


async def test_h7_a_later_version_that_the_lost_ledger_began_is_found(world: World) -> None:
    async with world.life() as life:
        await life.call("/plain", run="run-0")
    copy = world.forget_what_follows()
    world.api.script = ["rejects"]
    async with world.life() as life:
        assert (await life.call("/queried")).status == 403
        assert outcome(await life.call("/queried")) == "sent"  # v2
    before = len(world.api.effects)
    world.put_back(copy)
    async with world.life() as life:
        world.clock.advance(10)
        reply = await life.call("/queried")
        assert outcome(reply) == "reconciled"
    assert len(world.api.effects) == before


async def test_a_mark_that_was_made_with_the_secret_of_then_is_found(world: World) -> None:
    world.secrets = [b"the first secret"]
    copy = await acted_after_the_copy(world, "/queried")
    before = len(world.api.effects)
    world.put_back(copy)
    world.secrets = [b"the second secret", b"the first secret"]
    async with world.life() as life:
        world.clock.advance(10)
        await life.call("/queried")
    assert len(world.api.effects) == before


async def test_a_key_of_another_secret_permits_nothing(world: World) -> None:
    world.secrets = [b"the first secret"]
    copy = await acted_after_the_copy(world, "/keyed")
    before = len(world.api.effects)
    world.put_back(copy)
    world.secrets = [b"the second secret", b"the first secret"]
    async with world.life() as life:
        assert (await life.call("/keyed")).status == 424
    assert len(world.api.effects) == before


async def test_a_key_counts_from_the_newest_event_that_the_copy_has(world: World) -> None:
    """When the lost ledger sent it is not known, so the whole gap counts."""
    copy = await acted_after_the_copy(world, "/keyed")
    before = len(world.api.effects)
    world.put_back(copy)
    world.clock.advance(23 * HOUR)
    world.api.by_key.clear()  # the API has forgotten the key; a send would act again
    async with world.life() as life:
        assert (await life.call("/keyed")).status == 424
    assert len(world.api.effects) == before


@pytest.mark.parametrize(
    "line", ["key: {in: header, name: Idempotency-Key}", "key: none\n    idempotent: true"]
)
async def test_what_only_holds_within_a_call_permits_nothing(world: World, line: str) -> None:
    """A key for which the API promises no time, and a write that does no harm twice."""
    world.rules = ruleset(
        "service: world\nhosts: [api.world.test]\nsource: x\nconfidence: documented\n"
        f"endpoints:\n  keyed.create:\n    match: PUT /keyed\n    {line}\n"
    )
    async with world.life() as life:
        await life.call("/keyed", run="run-0", method="PUT")
    copy = world.forget_what_follows()
    async with world.life() as life:
        await life.call("/keyed", method="PUT")
    before = world.api.sends
    world.put_back(copy)
    async with world.life() as life:
        assert (await life.call("/keyed", method="PUT")).status == 424
    assert world.api.sends == before


async def test_an_equal_object_is_nobodys_before_the_first_send(world: World) -> None:
    """By content alone, neither finding nor not finding one tells whose it is."""
    world.rules = ruleset(
        QUERIED.replace("marker: {in: json, name: mark}", "")
        .replace('where: {mark: "{key}"}', 'where: {text: "{body.text}"}\n      by: content')
        .replace("/notes?list={body.list}", "/notes")
    )
    copy = None
    async with world.life() as life:
        await life.call("/plain", run="run-0")
    copy = world.forget_what_follows()
    async with world.life() as life:
        await life.call("/plain", run="run-0", step="step-2")
    world.put_back(copy)
    world.api.effects.append({"id": "of somebody", "at": 0.0, "text": "hello"})
    before = world.api.sends
    async with world.life() as life:
        world.clock.advance(100)
        reply = await life.call("/notes", {"list": "a", "text": "hello"}, run="run-9")
        assert (reply.status, code(reply)) == (424, "outcome-unresolved")
    assert world.api.sends == before


async def test_a_ledger_of_its_first_life_asks_nobody(world: World) -> None:
    async with world.life() as life:
        assert life.ledger.gap is None
        assert outcome(await life.call("/queried")) == "sent"
    assert world.api.lookups == 0


async def test_since_when_something_may_be_missing(world: World) -> None:
    copy = await acted_after_the_copy(world, "/plain")
    world.path.unlink()
    async with world.life() as life:
        assert life.ledger.gap is not None
        assert life.ledger.gap.since == FAR_PAST
    # A second loss never makes the doubt smaller.
    world.put_back(copy)
    async with world.life(restored=True) as life:
        assert life.ledger.gap is not None
        assert life.ledger.gap.until == world.clock.time()
