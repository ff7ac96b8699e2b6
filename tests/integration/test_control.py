"""The control API over a real socket: who may do what, and what operators' acts do."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from proxy.clock import SystemClock
from proxy.config import Address
from proxy.control.api import Control
from proxy.control.tokens import Holder, Role, Tokens, TokensUnusable, read_or_make
from proxy.core.model import Body, Request
from proxy.core.operation import Event, Intent, Kind, Operation, State
from proxy.core.transitions import evolve_all
from proxy.errors import CODES, ServiceError
from proxy.ledger.base import Change, Query
from proxy.ledger.memory import MemoryLedger
from proxy.metrics import Metrics
from proxy.service.checkpoints import CheckpointService
from tests.fakes.serving import services_of

AGENT = {"Authorization": "Bearer agent-token"}
OPERATOR = {"Authorization": "Bearer operator-token"}
OPENAPI = Path(__file__).parents[2] / "proxy" / "control" / "openapi.json"
AT = 1_700_000_000.0


@dataclass
class World:
    """A control port over a memory ledger."""

    ledger: MemoryLedger
    control: Control
    session: aiohttp.ClientSession
    checkpointing: CheckpointService
    url: str = ""
    settled: list[str] = field(default_factory=list)
    rules_broken: bool = False
    not_ready: str | None = None

    async def settle(self, key: str) -> None:
        self.settled.append(key)

    async def reload(self) -> None:
        if self.rules_broken:
            raise ServiceError("invalid-rules", "Broken.", ["a.yaml:1:1: service: is missing"])

    async def lost(self, run: str = "case-1", step: str = "refund") -> str:
        """An operation whose only attempt was lost; returns its key."""
        return (await self.add(run, step, lost=True)).key

    async def add(self, run: str = "case-1", step: str = "refund", lost: bool = False) -> Operation:
        new = Operation(
            run, step, "stripe.refunds.create", 1, "stripe", "refunds.create", "POST",
            "https://api.stripe.com/v1/refunds", Intent("f", "c"), AT, AT,
        )  # fmt: skip
        events = [Event(Kind.ATTEMPT_STARTED, AT, {"attempt": 1})]
        if lost:
            events.append(Event(Kind.ATTEMPT_LOST, AT, {"attempt": 1, "reason": "reset"}))
        request = Request("POST", "https", "api.stripe.com", 443, "/v1/refunds", (), Body.of(b"x"))
        return await self.ledger.commit(
            Change(evolve_all(new, events), tuple(events), request=request)
        )

    def path(self, key: str, suffix: str = "") -> str:
        return f"{self.url}/v1/operations/{quote(key, safe='')}{suffix}"

    async def get(self, path: str, headers: dict[str, str] = AGENT, **options: Any) -> Any:
        async with self.session.get(self._at(path), headers=headers, **options) as response:
            return response.status, await response.json()

    async def post(self, path: str, body: object = None, headers: dict[str, str] = OPERATOR) -> Any:
        data = None if body is None else json.dumps(body)
        async with self.session.post(self._at(path), data=data, headers=headers) as response:
            return response.status, await response.json()

    def _at(self, path: str) -> Any:
        from yarl import URL

        return URL(path if path.startswith("http") else self.url + path, encoded=True)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    clock = SystemClock()
    ledger = MemoryLedger(clock)
    await ledger.open()
    async with aiohttp.ClientSession() as session:
        holder: list[World] = []
        services = services_of(
            ledger,
            clock,
            settle=lambda key: holder[0].settle(key),
            reload=lambda: holder[0].reload(),
            checkpoint_max=100_000,
        )
        control = Control(
            services=services,
            metrics=Metrics(),
            tokens=Tokens(
                [
                    ("agent-token", Holder("agent", Role.AGENT)),
                    ("operator-token", Holder("ada", Role.OPERATOR)),
                ]
            ),
            not_ready=lambda: holder[0].not_ready,
            hosts=("onceproxy.internal",),
        )
        made = World(ledger, control, session, services.checkpoints)
        holder.append(made)
        made.url = f"http://{await control.start(Address('127.0.0.1', 0))}"
        yield made
        await control.stop()
    await ledger.close()


# Who


def plain(path: str) -> str:
    """A route's path as the description has it."""
    return re.sub(r"\{key:.+?\}", "{key}", path)


def _concrete(path: str) -> str:
    path = plain(path).replace("{key}", "some%2Fkey")
    return path.replace("{run}", "some-run").replace("{id}", "apr-0")


async def test_every_route_but_the_probes_wants_a_token(world: World) -> None:
    open_routes = set()
    for route in world.control.routes:
        async with world.session.request(
            route.method, world._at(_concrete(route.path)), headers={"Authorization": "Bearer no"}
        ) as response:
            if response.status != 401:
                open_routes.add(route.path)
    assert open_routes == {"/metrics", "/healthz", "/readyz", "/openapi.json"}


@pytest.mark.parametrize("path", ["a%2%46b", "a%%32Fb"])
async def test_a_token_is_asked_of_the_run_that_the_handler_reads(world: World, path: str) -> None:
    """The router reads these as a/b, and a call that names itself so as a%2Fb."""
    _, own = await world.post("/v1/runs", {"run": "a/b"})
    await world.post("/v1/runs", {"run": "a%2Fb"})
    mine = {"Authorization": f"Bearer {own['token']}"}
    assert (await world.get("/v1/runs/a%2Fb", mine))[0] == 200
    assert (await world.get(f"/v1/runs/{path}", mine))[0] == 401
    assert (await world.get(f"/v1/runs/{path}", AGENT))[0] == 403


async def test_an_agent_may_not_act(world: World) -> None:
    for route in world.control.routes:
        if route.role is Role.OPERATOR:
            async with world.session.request(
                route.method, world._at(_concrete(route.path)), headers=AGENT
            ) as response:
                problem = await response.json()
                assert (response.status, problem["code"]) == (403, "forbidden"), route.path


async def test_the_description_has_every_route_and_the_least_that_may_use_it(world: World) -> None:
    described = {
        (method.upper(), path): entry.get("x-role")
        for path, methods in json.loads(OPENAPI.read_text())["paths"].items()
        for method, entry in methods.items()
    }
    served = {
        (route.method, plain(route.path)): route.role.name.lower()
        if route.role is not None
        else None
        for route in world.control.routes
    }
    assert described == served


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "[::1"])
async def test_a_foreign_name_is_refused_before_the_token_is_looked_at(
    world: World, host: str
) -> None:
    status, problem = await world.get("/v1/operations", AGENT | {"Host": host})
    assert (status, problem["code"]) == (403, "foreign-host")


@pytest.mark.parametrize(
    "host",
    ["localhost:8902", "onceproxy.localhost:8902", "127.0.0.1", "[::1]:8902", "onceproxy.internal"],
)
async def test_addresses_localhost_and_configured_names_are_its_own(
    world: World, host: str
) -> None:
    assert (await world.get("/v1/operations", AGENT | {"Host": host}))[0] == 200


async def test_a_page_of_another_origin_is_refused(world: World) -> None:
    status, problem = await world.get("/v1/operations", AGENT | {"Origin": "https://evil.example"})
    assert (status, problem["code"]) == (403, "foreign-host")


# Reading


async def test_operations_are_listed_and_filtered(world: World) -> None:
    key = await world.lost("case-1")
    await world.add("case-2")
    _, body = await world.get("/v1/operations")
    assert len(body["operations"]) == 2
    _, body = await world.get("/v1/operations?run=case-1&state=unknown")
    (only,) = body["operations"]
    assert only["key"] == key
    assert only["state"] == "unknown"
    assert only["attempts"] == 1
    _, body = await world.get("/v1/operations?state=succeeded,failed&run=")
    assert body["operations"] == []


async def test_a_wrong_filter_is_a_bad_request(world: World) -> None:
    status, problem = await world.get("/v1/operations?state=pending")
    assert status == 400
    assert "in_flight" in problem["detail"]
    assert (await world.get("/v1/operations?limit=many"))[0] == 400
    assert (await world.get("/v1/operations?before=yesterday"))[0] == 400


@pytest.mark.parametrize("run", ["case-1", "a%20b", "%2Fodd%25", "käse"])
async def test_a_key_in_a_path_is_percent_encoded_once(world: World, run: str) -> None:
    key = await world.lost(run)
    status, body = await world.get(world.path(key))
    assert status == 200
    assert body["key"] == key


async def test_a_key_with_its_slashes_left_as_they_are_is_understood(world: World) -> None:
    key = await world.lost("a%20b")
    assert (await world.get(f"/v1/operations/{key}"))[1]["key"] == key
    assert (await world.get(f"/v1/operations/{key}/history"))[1]["operation"] == key


async def test_an_operation_shows_its_attempts_and_history(world: World) -> None:
    key = await world.lost()
    _, body = await world.get(world.path(key))
    assert [attempt["end"] for attempt in body["attempt_list"]] == ["unknown"]
    _, body = await world.get(world.path(key, "/history"))
    assert [event["event"] for event in body["events"]] == ["AttemptStarted", "AttemptLost"]


async def test_an_operator_sees_what_was_sent(world: World) -> None:
    key = await world.add("unruled-1", "say")
    status, body = await world.get(world.path(key.key, "/content"), OPERATOR)
    assert status == 200
    assert body["answer"] is None
    # No rule of that service is loaded, so that nothing says what has to be masked.
    assert body["request"]["body"]["kind"] == "withheld"
    assert body["request"]["body"]["size"] == 1


async def test_an_absent_operation_is_not_found_everywhere(world: World) -> None:
    for suffix in ("", "/history", "/content"):
        assert (await world.get(world.path("no/such/op/v1", suffix), OPERATOR))[0] == 404
    for suffix in ("/resolve", "/reconcile"):
        status, problem = await world.post(world.path("no/such/op/v1", suffix), {"as": "abandoned"})
        assert (status, problem["type"]) == (404, "urn:onceproxy:not-found")


async def test_unknown_addresses_and_methods_are_problems(world: World) -> None:
    assert (await world.get("/v1/nothing"))[1]["code"] == "not-found"
    assert (await world.post("/v1/events", {}))[1]["code"] == "method-not-allowed"


async def test_events_can_be_paged(world: World) -> None:
    await world.lost()
    _, page = await world.get("/v1/events?limit=1")
    _, rest = await world.get(f"/v1/events?after={page['after']}")
    assert [e["event"] for e in page["events"] + rest["events"]] == [
        "AttemptStarted",
        "AttemptLost",
    ]


async def test_events_can_be_followed_and_resumed(world: World) -> None:
    await world.lost("case-1")
    headers = AGENT | {"Accept": "text/event-stream", "Last-Event-ID": "1"}
    async with world.session.get(world._at("/v1/events"), headers=headers) as response:
        assert response.content_type == "text/event-stream"
        first = await _event(response)
        await world.lost("case-2")
        second = await _event(response)
    assert (first["run"], first["event"]) == ("case-1", "AttemptLost")
    assert (second["run"], second["event"]) == ("case-2", "AttemptStarted")


async def _event(response: aiohttp.ClientResponse) -> dict[str, Any]:
    async with asyncio.timeout(10):
        async for line in response.content:
            if line.startswith(b"data: "):
                return dict(json.loads(line[6:]))
    raise AssertionError("the stream ended")


# Acting


async def test_happened_makes_it_succeeded_and_keeps_who_said_so_and_why(world: World) -> None:
    key = await world.lost()
    status, body = await world.post(
        world.path(key, "/resolve"),
        {"as": "happened", "external_id": "re_1", "evidence": "seen in the dashboard"},
    )
    assert status == 200
    assert (body["state"], body["external_id"], body["how"]) == ("succeeded", "re_1", "resolved")
    last = (await world.get(world.path(key, "/history")))[1]["events"][-1]
    assert last["event"] == "OperatorResolved"
    assert last["data"]["by"] == "ada"
    assert last["data"]["evidence"] == "seen in the dashboard"
    assert await world.ledger.answer_of(key) is None


async def test_happened_can_give_the_answer_that_later_calls_get(world: World) -> None:
    key = await world.lost()
    response = {"status": 201, "headers": {"X-Made": "yes"}, "body": {"id": "re_1"}}
    status, _ = await world.post(
        world.path(key, "/resolve"), {"as": "happened", "response": response}
    )
    assert status == 200
    answer = await world.ledger.answer_of(key)
    assert answer is not None
    assert answer.status == 201
    assert answer.header("content-type") == "application/json"
    assert answer.body is not None
    assert json.loads(answer.body.data or b"") == {"id": "re_1"}


@pytest.mark.parametrize(
    ("word", "state"), [("did_not_happen", "not_applied"), ("abandoned", "failed")]
)
async def test_the_other_resolutions(world: World, word: str, state: str) -> None:
    key = await world.lost()
    status, body = await world.post(world.path(key, "/resolve"), {"as": word, "by": "bob"})
    assert (status, body["state"]) == (200, state)
    assert body["attempts"] == 1


async def test_what_is_in_flight_cannot_be_resolved_or_reconciled(world: World) -> None:
    key = (await world.add()).key
    for suffix in ("/resolve", "/reconcile"):
        status, problem = await world.post(world.path(key, suffix), {"as": "did_not_happen"})
        assert (status, problem["code"]) == (409, "in-flight")
    assert world.settled == []


async def test_a_settled_operation_cannot_be_resolved_again(world: World) -> None:
    key = await world.lost()
    await world.post(world.path(key, "/resolve"), {"as": "happened"})
    status, problem = await world.post(world.path(key, "/resolve"), {"as": "did_not_happen"})
    assert (status, problem["code"]) == (409, "not-resolvable")
    (operation,) = await world.ledger.operations(Query())
    assert operation.state is State.SUCCEEDED


async def test_a_stale_revision_is_a_conflict(world: World) -> None:
    key = await world.lost()
    revision = (await world.get(world.path(key)))[1]["revision"]
    body = {"as": "did_not_happen", "revision": revision - 1}
    status, problem = await world.post(world.path(key, "/resolve"), body)
    assert (status, problem["code"]) == (409, "conflict")
    body["revision"] = revision
    assert (await world.post(world.path(key, "/resolve"), body))[0] == 200


async def test_of_two_resolutions_at_once_one_holds(world: World) -> None:
    key = await world.lost()
    answers = await asyncio.gather(
        world.post(world.path(key, "/resolve"), {"as": "happened"}),
        world.post(world.path(key, "/resolve"), {"as": "did_not_happen"}),
    )
    assert sorted(status for status, _ in answers) == [200, 409]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"as": "resend"},
        {"as": "happened", "revision": "3"},
        {"as": "happened", "note": "unknown member"},
        {"as": "happened", "evidence": "x" * 3000},
        {"as": "did_not_happen", "external_id": "re_1"},
        {"as": "happened", "response": {"status": 500}},
        {"as": "happened", "response": {"headers": {"X": "a\r\nB: c"}}},
        {"as": "happened", "response": "text"},
        ["happened"],
    ],
)
async def test_a_resolution_that_is_not_one_changes_nothing(world: World, body: object) -> None:
    key = await world.lost()
    status, problem = await world.post(world.path(key, "/resolve"), body)
    assert (status, problem["code"]) == (400, "bad-request")
    assert (await world.get(world.path(key)))[1]["state"] == "unknown"


async def test_a_body_that_is_not_json_is_a_bad_request(world: World) -> None:
    key = await world.lost()
    url = world._at(world.path(key, "/resolve"))
    async with world.session.post(url, data=b"{as: happened", headers=OPERATOR) as response:
        assert response.status == 400


async def test_an_id_that_another_operation_owns_is_recorded_as_shared(world: World) -> None:
    first, second = await world.lost("case-1"), await world.lost("case-2")
    for key in (first, second):
        await world.post(world.path(key, "/resolve"), {"as": "happened", "external_id": "re_1"})
    last = (await world.get(world.path(second, "/history")))[1]["events"][-1]
    assert last["event"] == "SharedEffect"
    assert last["data"]["with"] == first


async def test_reconcile_asks_the_engine_about_that_key(world: World) -> None:
    key = await world.lost()
    status, body = await world.post(world.path(key, "/reconcile"))
    assert (status, body["key"]) == (200, key)
    assert world.settled == [key]


async def test_resume_begins_an_epoch_and_lists_what_is_unresolved(world: World) -> None:
    key = await world.lost("case-1")
    first = (await world.post("/v1/runs/case-1/resume", {}, AGENT))[1]
    second = (await world.post("/v1/runs/case-1/resume", {}, AGENT))[1]
    assert second["epoch"] == first["epoch"] + 1
    assert [one["key"] for one in second["unresolved"]] == [key]


async def test_reload_of_broken_rules_lists_every_problem(world: World) -> None:
    assert (await world.post("/v1/rules/reload", {}))[0] == 200
    world.rules_broken = True
    status, problem = await world.post("/v1/rules/reload", {})
    assert (status, problem["code"]) == (422, "invalid-rules")
    assert problem["problems"] == ["a.yaml:1:1: service: is missing"]


# Monitoring


async def test_alive_is_not_ready(world: World) -> None:
    assert (await world.get("/readyz", {}))[0] == 200
    world.not_ready = "stopping"
    assert (await world.get("/readyz", {}))[0] == 503
    assert (await world.get("/healthz", {}))[0] == 200


async def test_metrics_are_scraped_without_a_token(world: World) -> None:
    async with world.session.get(world._at("/metrics")) as response:
        assert response.status == 200
        assert "onceproxy_build_info" in await response.text()


async def test_the_description_is_served_and_names_every_status_that_problems_have(
    world: World,
) -> None:
    _, served = await world.get("/openapi.json", {})
    assert served == json.loads(OPENAPI.read_text())
    described = {
        int(status)
        for methods in served["paths"].values()
        for entry in methods.values()
        for status in entry["responses"]
        if int(status) >= 400
    }
    assert {meaning.status for meaning in CODES.values()} - described <= {405, 500}


# Tokens


def test_tokens_are_made_once_for_the_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    made = read_or_make(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_or_make(file) == made
    assert set(made) == {"agent", "operator"}
    assert made["agent"] != made["operator"]


def _wide(file: Path) -> None:
    file.write_text('{"agent": "a", "operator": "b"}')
    file.chmod(0o644)


def _text(text: str) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        file.touch(0o600)
        file.write_text(text)

    return write


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_wide, "chmod 600"),
        (_text("{"), "not JSON"),
        (_text('{"agent": "a"}'), "does not hold a token"),
    ],
)
def test_a_token_file_that_cannot_be_trusted_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    file = tmp_path / "tokens.json"
    spoil(file)
    with pytest.raises(TokensUnusable, match=message):
        read_or_make(file)
