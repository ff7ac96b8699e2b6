"""R5: a machine plays agents, operators, crashes and losses in any order against the real engine,
beside a model (``model.py``) that is written without its code.

After every step nothing may have reached the API that the model forbids, nothing may have happened
twice, the counters are the model's and have not fallen, and what is told of runs is true.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from proxy.core.model import Lost, NotSent, Request
from proxy.core.operation import State
from proxy.core.runs import next_epoch
from proxy.errors import ServiceError
from proxy.ledger.base import Query
from proxy.net.exchange import Reply
from tests.fakes.scripted import answer
from tests.fakes.world import POINTS, Killed
from tests.faults.plants import PLANTS
from tests.reliability import control, figure
from tests.runs.model import HOUR, READ, Deed, Grant, Model, ModelRun
from tests.runs.support import IMPATIENT, World, call, get, limits, world

RULES = """
service: shop
hosts: [shop.test]
source: https://shop.test/docs
confidence: documented
checked: "2026-11-30"
key: none
endpoints:
  refunds.create:
    match: POST /keyed
    key: {in: header, name: Idempotency-Key, valid_for: 24h, keeps: success, existing: replace}
    answers: [{header: {Idempotent-Replayed: "true"}, replayed: true}]
    external_id: id
  payouts.create:
    match: POST /asking
    key: {in: header, name: Idempotency-Key, valid_for: 24h, keeps: success, existing: replace}
    answers: [{header: {Idempotent-Replayed: "true"}, replayed: true}]
    external_id: id
    approval: {required: true, expires: 1h}
  notes.create:
    match: POST /queried
    external_id: id
    marker: {in: json, name: mark}
    reconcile:
      request: GET /queried
      items: data
      where: {mark: "{key}"}
      running: 1s
      settle: 1s
  messages.create:
    match: POST /plain
    external_id: id
"""
DEFAULTS = {"writes": 6}
TREE = {"top": None, "middle": "top", "low": "middle", "other": None}
KINDS = ("keyed", "asking", "queried", "plain")
BEHAVIOURS = ("answers", "answers", "rejects", "refuses", "loses_before", "loses_after")
runs = st.sampled_from(["top", "low", "other"])  # the one between is there to be passed through
steps, kinds = st.sampled_from("ab"), st.sampled_from(KINDS)


class Api:
    """``script``: what happens to the next writes, then it answers; ``hold``: the next write waits
    between its connection and its first byte."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.script: list[str] = []
        self.made: list[dict[str, Any]] = []
        self.by_key: dict[str, dict[str, Any]] = {}
        self.kill: str | None = None
        self.hold: asyncio.Event | None = None
        self.held = asyncio.Event()
        self.writes = self.reads = 0

    async def reach(self, point: str, operation_key: str) -> None:
        """In place of the failpoints."""
        if point == self.kill:
            self.kill = None
            raise Killed

    enabled = False

    async def open(self, request: Request, **options: Any) -> Any:
        if self.hold is not None and request.method != "GET":
            hold, self.hold = self.hold, None
            self.held.set()
            await hold.wait()
        behaviour = self.script.pop(0) if self.script and request.method != "GET" else "answers"
        if behaviour == "refuses":
            return NotSent("connection refused")
        gate = options.get("gate")
        objection = gate() if gate is not None else None
        if objection is not None:
            return NotSent(objection)
        if request.method == "GET":
            self.reads += request.path != "/queried"
            return answer(200, {"data": self.made})
        self.writes += 1
        body = json.loads(request.body.data or b"")
        self.model.arrives(body["deed"], body["n"])
        if behaviour == "loses_before":
            return Lost("connection reset")
        key = request.header("Idempotency-Key")
        if key in self.by_key:
            told = answer(200, self.by_key[key], Idempotent_Replayed="true")
        elif behaviour == "rejects":
            return answer(402, {"error": "declined"})
        else:
            effect = {**body, "id": f"ob_{len(self.made) + 1}"}
            self.made.append(effect)
            if key is not None:
                self.by_key[key] = effect
            self.model.takes_effect(body["deed"])
            told = answer(200, effect)
        await self.reach("during_call", "")
        return Lost("connection reset") if behaviour == "loses_after" else told


class Machine(RuleBasedStateMachine):
    store: ClassVar[str] = "memory"
    steps_made: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda loop, context: None)  # tasks of lives that ended
        self.folder = tempfile.TemporaryDirectory()
        self.stack = AsyncExitStack()
        self.model = Model(dict(DEFAULTS))
        self.api = Api(self.model)

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    async def _through(self, work: Any) -> Any:
        """While time passes."""
        task = asyncio.ensure_future(work)
        while not task.done():
            if self.store == "sqlite":
                await asyncio.wait({task}, timeout=0.002)
            else:
                for _ in range(20):
                    await asyncio.sleep(0)
            if not task.done():
                self.proxy.clock.advance(0.05)
        return task.result()

    @initialize()
    def begin(self) -> None:
        async def begin() -> None:
            opened = world(
                self.store,
                Path(self.folder.name),
                rights=limits(**DEFAULTS),
                settings=IMPATIENT,
                rules=RULES,
            )
            self.proxy: World = await self.stack.enter_async_context(opened)
            self.proxy.api = self.api  # type: ignore[assignment]
            self._start()
            for name, parent in TREE.items():
                body = {"run": name} | ({"parent": parent} if parent else {})
                token = (await self.proxy.runs.begin(body, "ann"))["token"]
                self.model.runs[name] = ModelRun(parent, tokens={token: False})

        self.do(begin())

    def _start(self) -> None:
        self.proxy.start()
        engine = self.proxy.engine
        engine._failpoints = engine.outbound._failpoints = self.api  # type: ignore[assignment]

    def _deed(self, run: str, step: str, kind: str) -> tuple[str, Deed]:
        name = f"{run}/{step}/{kind}"
        return name, self.model.deeds.setdefault(name, Deed(run, kind == "asking"))

    def _arrival(self, name: str, n: int, token: str | None) -> Any:
        run, step, kind = name.split("/")
        return call(f"/{kind}", {"deed": name, "n": n}, run=run, step=step, token=token)

    def _token(self, run: str, named: bool) -> str | None:
        return list(self.model.runs[run].tokens)[-1] if named else None

    def _expect(self, deed: Deed, n: int, token: str | None) -> bool:
        deed.token = token
        self.model.now = self.proxy.clock.time()
        will = self.model.will_begin(deed, n)
        if will:
            self.model.begin(deed)
        return will

    def _heard(self, name: str, deed: Deed, reply: Reply) -> None:
        if reply.status == 402:
            self.model.failed(deed)
        elif reply.status == 200 and deed.effects != 1:
            self.model.wrong.append(f"{name}: told of a success, and there are {deed.effects}")

    # -- agents

    @rule(
        run=runs,
        step=steps,
        kind=kinds,
        n=st.sampled_from([1, 1, 1, 2]),
        behaviour=st.sampled_from(BEHAVIOURS),
        named=st.booleans(),
        twins=st.sampled_from([1, 1, 1, 3]),
    )
    def calls(
        self, run: str, step: str, kind: str, n: int, behaviour: str, named: bool, twins: int
    ) -> None:
        name, _ = self._deed(run, step, kind)
        self._call(name, n if kind == "asking" else 1, behaviour, named, twins)

    @rule(run=runs, step=steps)
    def asks_and_is_granted(self, run: str, step: str) -> None:
        name, _ = self._deed(run, step, "asking")
        self._call(name, 1, "answers")
        for one in self.do(self.proxy.desk.approvals(["waiting"])):
            if one["operation"].startswith(f"{run}/{step}/"):
                self._grant(one["id"])

    @precondition(lambda self: self._granted())
    @rule(
        data=st.data(),
        n=st.sampled_from([1, 2]),
        behaviour=st.sampled_from(BEHAVIOURS),
        seconds=st.sampled_from([0.0, 0.0, 3700.0]),
    )
    def uses_a_grant(self, data: st.DataObject, n: int, behaviour: str, seconds: float) -> None:
        self.proxy.clock.advance(seconds)
        self._call(data.draw(st.sampled_from(self._granted())), n, behaviour)

    def _granted(self) -> list[str]:
        return sorted(name for name, deed in self.model.deeds.items() if deed.grants)

    def _call(self, name: str, n: int, behaviour: str, named: bool = False, twins: int = 1) -> None:
        deed = self.model.deeds[name]
        token = self._token(deed.run, named)
        self._expect(deed, n, token)
        self.api.script = [behaviour]

        async def all_at_once() -> list[Reply]:
            arrivals = [self._arrival(name, n, token) for _ in range(twins)]
            return list(await asyncio.gather(*map(self.proxy.call, arrivals)))

        for reply in self.do(self._through(all_at_once())):
            self._heard(name, deed, reply)

    @rule(
        run=runs,
        step=steps,
        kind=kinds,
        point=st.sampled_from(POINTS),
        behaviour=st.sampled_from(["answers", "answers", "loses_after"]),
    )
    def is_killed(self, run: str, step: str, kind: str, point: str, behaviour: str) -> None:
        name, deed = self._deed(run, step, kind)
        deed.token, self.model.now = None, self.proxy.clock.time()
        will = self.model.will_begin(deed, 1)
        if will and point != "before_intent":
            self.model.begin(deed)
        self.api.script, self.api.kill = [behaviour], point

        async def dying() -> Reply | None:
            return await self.proxy.callers.handle(self._arrival(name, 1, None))

        self.do(self._through(dying()))
        self.api.kill = None
        self.restarts()

    @rule(run=runs)
    def reads(self, run: str) -> None:
        barred = self.model.barred(run, None)
        may = not barred and self.model.affords(run, READ)
        before = self.api.reads
        reply = self.do(self._through(self.proxy.call(get(run=run))))
        assert (reply.status == 200, self.api.reads - before) == (may, int(may)), reply
        if may:
            self.model.charge(run, READ)

    @rule(run=runs)
    def resumes(self, run: str) -> None:
        row = self.model.runs[run]
        if not (row.revoked or row.closed):
            self.do(self.proxy.ledger.amend(run, next_epoch(self.proxy.clock.time())))

    @rule(run=runs, unit=st.sampled_from(["tool_calls", "writes"]), limit=st.integers(0, 8))
    def lowers(self, run: str, unit: str, limit: int) -> None:
        row = self.model.runs[run]
        before = self.model.limit(row, unit)
        try:
            self.do(self.proxy.runs.set_budget(run, {unit: limit}, "agent", raising=False))
        except ServiceError:
            assert before is not None
            assert limit > before
        else:
            assert before is None or limit <= before
            row.limits[unit] = limit

    # -- operators

    @rule(
        run=runs,
        unit=st.sampled_from(["tool_calls", "writes"]),
        limit=st.one_of(st.none(), st.integers(0, 20)),
    )
    def sets_budget(self, run: str, unit: str, limit: int | None) -> None:
        self.do(self.proxy.runs.set_budget(run, {unit: limit}, "ann", raising=True))
        row = self.model.runs[run]
        row.limits.pop(unit, None)
        if limit is not None:
            row.limits[unit] = limit

    @rule(data=st.data(), word=st.sampled_from(["grant", "grant", "grant", "deny"]))
    def decides(self, data: st.DataObject, word: str) -> None:
        waiting = self.do(self.proxy.desk.approvals(["waiting"]))
        if not waiting:
            return
        one = data.draw(st.sampled_from(sorted(waiting, key=lambda each: each["operation"])))
        if word == "grant":
            self._grant(one["id"])
        else:
            self.do(self.proxy.desk.deny(one["id"], {}, "bob"))

    def _grant(self, number: str) -> None:
        told = self.do(self.proxy.desk.grant(number, {}, "bob"))
        body = json.loads(told["request"]["body"]["text"])
        grant = Grant(body["n"], told["requested_at"] + HOUR)
        self.model.deeds[body["deed"]].grants[number] = grant

    @rule(data=st.data())
    def takes_back(self, data: st.DataObject) -> None:
        given = self.do(self.proxy.desk.approvals(["granted", "consumed"]))
        if given:
            one = data.draw(st.sampled_from(sorted(given, key=lambda each: each["operation"])))
            self.do(self._revoke_approval(one["id"]))

    async def _revoke_approval(self, number: str) -> dict[str, Any]:
        told: dict[str, Any] = await self.proxy.desk.revoke(number, {}, "bob")
        for deed in self.model.deeds.values():
            if number in deed.grants:
                deed.grants[number].revoked = True
        return told

    @rule(run=runs)
    def revokes(self, run: str) -> None:
        told = self.do(self._revoke_run(run))
        assert told["in_flight"] == []

    async def _revoke_run(self, run: str) -> dict[str, Any]:
        told = await self.proxy.runs.revoke(run, {}, "ann")
        self.model.runs[run].revoked = True
        return told

    @rule(run=runs)
    def revokes_token(self, run: str) -> None:
        self.do(self._revoke_token(run))

    async def _revoke_token(self, run: str) -> dict[str, Any]:
        row = self.model.runs[run]
        token = list(row.tokens)[-1]
        told = await self.proxy.runs.revoke(run, {"token": token}, "ann")
        row.tokens[token] = True
        return told

    @rule(run=runs)
    def comes_back(self, run: str) -> None:
        token = self.do(self.proxy.runs.begin({"run": run}, "ann"))["token"]
        self.model.runs[run].tokens[token] = False

    @rule(run=runs)
    def closes(self, run: str) -> None:
        self.do(self.proxy.runs.close(run, {}, "ann"))
        self.model.runs[run].closed = True

    @rule()
    def restores(self) -> None:
        for run, row in self.model.runs.items():
            if row.revoked or row.closed:
                self.do(self.proxy.runs.restore(run, {}, "ann"))
                row.revoked = row.closed = False

    @rule(
        run=runs,
        step=steps,
        kind=kinds,
        what=st.sampled_from(["run", "top", "token", "approval"]),
    )
    def revokes_while_it_connects(self, run: str, step: str, kind: str, what: str) -> None:
        """Between the intent and the first byte."""
        name, deed = self._deed(run, step, kind)
        token = self._token(run, what == "token")
        self._expect(deed, 1, token)

        async def race() -> None:
            self.api.script, self.api.hold = [], asyncio.Event()
            hold, self.api.held = self.api.hold, asyncio.Event()
            calling = self.proxy.call(self._arrival(name, 1, token))
            sending = asyncio.ensure_future(self._through(calling))
            held = asyncio.ensure_future(self.api.held.wait())
            await asyncio.wait({sending, held}, return_when=asyncio.FIRST_COMPLETED)
            held.cancel()
            connecting, told = self.api.held.is_set(), None
            if what in ("run", "top"):
                told = await self._revoke_run(run if what == "run" else "top")
            elif what == "token":
                told = await self._revoke_token(run)
            else:
                open_ = [number for number, grant in deed.grants.items() if not grant.revoked]
                if open_ and self.model.approved(deed, 1):
                    told = await self._revoke_approval(open_[-1])
            below = what != "top" or "top" in (run, TREE[run]) or run == "low"
            if connecting and told is not None and below:
                keys = [key for key in told["in_flight"] if key.startswith(f"{run}/{step}/")]
                assert keys, f"{name} is on its way, and the revocation does not tell of it"
            self.api.hold = None
            hold.set()
            self._heard(name, deed, await sending)

        self.do(race())

    # -- the world

    @rule(seconds=st.sampled_from([1.0, 60.0, 1900.0]))
    def time_passes(self, seconds: float) -> None:
        self.proxy.clock.advance(seconds)

    @rule()
    def restarts(self) -> None:
        self.proxy.clock.advance(1.0)
        self._start()
        self.do(self._through(self.proxy.recovery.start()))

    @rule(behaviour=st.sampled_from(BEHAVIOURS[:1] + BEHAVIOURS[3:]))
    def settles(self, behaviour: str) -> None:
        self.model.now = self.proxy.clock.time()
        self.api.script = [behaviour]
        self.do(self._through(self.proxy.recovery.settle_all()))

    # -- what must be true

    @invariant()
    def holds(self) -> None:
        type(self).steps_made += 1
        assert self.model.wrong == []
        self.do(self._holds())

    async def _holds(self) -> None:
        if not self.model.runs:
            return
        await self.proxy.ledger.flush()
        for name, row in self.model.runs.items():
            told = await self.proxy.runs.one(name)
            used = {unit: told["budget"][unit]["used"] for unit in ("tool_calls", "writes")}
            assert used == {unit: row.used[unit] for unit in used}, name
            seen = self.model.seen[name]
            assert all(used[unit] >= seen[unit] for unit in used), "a counter fell"
            seen.update({unit: used[unit] - seen[unit] for unit in used})
            unknown = any(told["operations"].get(state) for state in ("unknown", "in_flight"))
            assert told["status"] == self.model.status(name, unknown), name
            await self._truth(name)

    async def _truth(self, run: str) -> None:
        """What is known of each operation is what is at the API."""
        for operation in await self.proxy.ledger.operations(Query(run=run)):
            name = f"{run}/{operation.step}/{operation.url.rpartition('/')[2]}"
            effects = self.model.deeds[name].effects
            match operation.state:
                case State.SUCCEEDED:
                    assert effects == 1, operation.key
                case State.UNKNOWN | State.IN_FLIGHT:
                    pass
                case State.FAILED:
                    pass  # a later version may have had it
                case _:
                    assert effects == 0, operation.key

    def teardown(self) -> None:
        async def end() -> None:
            if hasattr(self, "proxy"):
                assert await self.proxy.ledger.verify() == []

        async def clear() -> None:
            await self.stack.aclose()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        try:
            self.do(end())
        finally:
            self.do(clear())
            self.loop.close()
            self.folder.cleanup()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Some hundred lines a second tell nothing, and take longer than what they tell of."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


def play(
    store: str, examples: int, length: int, *, derandomize: bool = False, shrink: bool = True
) -> type[Machine]:
    made = type("Played", (Machine,), {"store": store, "steps_made": 0})
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    run_state_machine_as_test(
        made,
        settings=settings(
            max_examples=examples,
            stateful_step_count=length,
            deadline=None,
            derandomize=derandomize,
            database=None,
            phases=phases,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return made


@pytest.mark.parametrize(("store", "examples"), [("memory", 25), ("sqlite", 3)])
def test_r5_runs_lose_nothing_in_any_order_of_events(store: str, examples: int) -> None:
    played = play(store, examples, 30)
    figure("R5", f"agents, operators, crashes in any order, {store}", steps=played.steps_made)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("store", "examples"), [("memory", 1000), ("sqlite", 80)])
def test_r5_many_more_orders(store: str, examples: int) -> None:
    played = play(store, examples, 50)
    figure("R5", f"agents, operators, crashes in any order, {store}", steps=played.steps_made)


BUGS = (
    "charged_late",
    "charged_every_time",
    "not_counted_above",
    "approval_of_anything",
    "approval_for_ever",
    "revoked_until_commit",
    "resend_whatever",
)


@pytest.mark.parametrize("plant", BUGS)
def test_r5_control_the_machine_finds_what_is_planted(
    plant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    PLANTS[plant](monkeypatch.setattr)  # type: ignore[operator]
    with pytest.raises((AssertionError, ExceptionGroup)) as found:
        play("memory", 100, 30, derandomize=True, shrink=False)
    control("R5", f"`{plant.replace('_', ' ')}`", str(found.value).splitlines()[0][:80])
