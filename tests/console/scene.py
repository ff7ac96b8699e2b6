"""A console over real sockets and a ledger with something in every state, for tests to look at."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxy.config import Address
from proxy.console.site import Console
from proxy.control.api import Control
from proxy.control.tokens import Holder, Role, Tokens
from proxy.core.identity import encode_part
from proxy.core.model import Answer, Body, Request
from proxy.core.operation import Event, Intent, Kind, Operation
from proxy.core.runs import Charge
from proxy.core.transitions import evolve_all
from proxy.ledger.base import Change
from proxy.ledger.memory import MemoryLedger
from proxy.metrics import Metrics
from proxy.rulefile.loader import load
from proxy.service.services import Services
from tests.fakes.clock import FakeClock
from tests.fakes.serving import services_of

OPERATOR, AGENT = "operator-token-of-ada", "agent-token"
K = Kind

RULES = """
service: shop
hosts: [api.shop.test]
source: a test
confidence: documented
key: none
redact: [body.card.number, answer.client_secret]
endpoints:
  refunds.create:
    match: POST /v1/refunds
    external_id: id
"""


@dataclass
class Scene:
    ledger: MemoryLedger
    clock: FakeClock
    services: Services
    control: Control
    console: Console
    url: str = ""
    settles: list[str] = field(default_factory=list)  # keys it was asked to look for
    held: list[str] = field(default_factory=list)  # approvals
    runs: list[str] = field(default_factory=list)
    finds: str = ""  # the external id that looking finds

    def let_in(self) -> tuple[str, str]:
        """The cookie of a new session of the first operator, without the form."""
        holder = self.console._tokens.holder(OPERATOR)
        assert holder is not None
        return f"onceproxy-{self.url.rpartition(':')[2]}", self.console._sessions.open(holder)

    async def add(
        self,
        *events: tuple[Kind, float, dict[str, Any]],
        run: str = "support-case-1842",
        step: str = "issue-refund",
        name: str = "shop.refunds.create",
        url: str = "https://api.shop.test/v1/refunds",
        method: str = "POST",
        body: bytes = b'{"charge": "ch_1", "amount": 42.50}',
        kind: str = "application/json",
        answer: bytes | None = None,
        ago: float = 600.0,
    ) -> Operation:
        """An operation that these events made; their moments are seconds after its first."""
        at = self.clock.time() - ago
        service, _, endpoint = name.partition(".") if " " not in name else ("unruled", "", name)
        new = Operation(
            encode_part(run), encode_part(step), encode_part(name), 1, service, endpoint, method,
            url, Intent("f", "c", body_size=len(body)), at, at,
        )  # fmt: skip
        made = [Event(kind_, at + after, data) for kind_, after, data in events]
        target = "/" + url.split("/", 3)[3]
        request = Request(
            method, "https", "api.shop.test", 443, target,
            (("Content-Type", kind), ("User-Agent", "agent/1.0"), ("X-Api-Key", "hunter2hunter2")),
            Body.of(body),
        )  # fmt: skip
        given = None
        if answer is not None:
            fields = (("Content-Type", "application/json"), ("Request-Id", "req_77"))
            given = Answer(201, "Created", fields, Body.of(answer))
        return await self.ledger.commit(
            Change(evolve_all(new, made), tuple(made), request=request, answer=given)
        )

    async def hold(
        self, summary: str = "Refund 42.50 to ch_1", *, expires: float = 3600.0, **options: Any
    ) -> str:
        """An operation that waits for a person; returns the approval's id."""
        number = f"apr-{len(self.held)}"
        self.held.append(number)
        data = {
            "id": number, "digest": "9f2c" * 16, "rule_digest": "r", "summary": summary,
            "expires_at": self.clock.time() + expires,
        }  # fmt: skip
        await self.add((K.APPROVAL_REQUESTED, 0, data), **options)
        return number

    async def run(self, name: str, *, by: str = "agent", **body: Any) -> dict[str, Any]:
        """A run that somebody has begun."""
        self.runs.append(name)
        return await self.services.runs.begin({"run": name, **body}, by)

    async def spend(self, name: str, **amounts: int) -> None:
        charge = Charge(amounts, enforce=False)
        await self.ledger.amend(encode_part(name), lambda run: (run, ()), charge=charge)

    async def then(self, operation: Operation, kind: Kind, **data: Any) -> Operation:
        """Something happens to it now."""
        held = self.ledger.get(operation.key)
        assert held is not None
        event = Event(kind, self.clock.time(), data)
        return await self.ledger.commit(Change(evolve_all(held, [event]), (event,)))

    async def settle(self, key: str) -> None:
        self.settles.append(key)
        held = self.ledger.get(key)
        assert held is not None
        if self.finds:
            await self.then(held, K.EFFECT_FOUND, external_id=self.finds, status=200, kept=False)


def started(after: float = 0, number: int = 1, **data: Any) -> tuple[Kind, float, dict[str, Any]]:
    return K.ATTEMPT_STARTED, after, {"attempt": number, "reason": "first attempt", **data}


def lost(
    blocked_by: str | None = "no_query", after: float = 1, number: int = 1, **data: Any
) -> tuple[Kind, float, dict[str, Any]]:
    told = {"attempt": number, "reason": "the connection was reset", "blocked_by": blocked_by}
    return K.ATTEMPT_LOST, after, {**told, **data}


def answered(
    verdict: str, status: int, after: float = 1, number: int = 1, **data: Any
) -> tuple[Kind, float, dict[str, Any]]:
    return K.OUTCOME_RECORDED, after, {
        "attempt": number, "verdict": verdict, "status": status, **data,
    }  # fmt: skip


@asynccontextmanager
async def scene(
    folder: Path,
    *,
    tokens: Sequence[tuple[str, Holder]] = (
        (OPERATOR, Holder("ada", Role.OPERATOR)),
        (AGENT, Holder("agent", Role.AGENT)),
    ),
) -> AsyncIterator[Scene]:
    clock = FakeClock(auto=False)
    ledger = MemoryLedger(clock)
    await ledger.open()
    (folder / "shop.yaml").write_text(RULES, encoding="utf-8")
    rules = load([folder]).services
    held: list[Scene] = []
    services = services_of(
        ledger,
        clock,
        settle=lambda key: held[0].settle(key),
        reload=lambda: held[0].settle(""),
        rules=lambda: rules,
    )
    known = Tokens(tokens)
    console = Console(services=services, tokens=known, clock=clock)
    control = Control(
        services=services,
        metrics=Metrics(),
        tokens=known,
        not_ready=lambda: None,
        pages=console.mount,
    )
    made = Scene(ledger, clock, services, control, console)
    held.append(made)
    made.url = f"http://{await control.start(Address('127.0.0.1', 0))}"
    try:
        yield made
    finally:
        await control.stop()
        await ledger.close()


async def furnish(made: Scene) -> None:
    """Something in every state and of every kind of trouble."""
    body = json.dumps({"charge": "ch_1", "amount": 42.5, "card": {"number": "4242424242424242"}})
    await made.add(started(), lost(), ago=3 * 3600, body=body.encode())
    await made.add(
        started(keyed=True), lost("key_expired"), started(5, 2, keyed=True),
        lost("key_expired", 6, 2, status=500, reason="the API failed"),
        run="support-case-1851-a-very-long-run-name-that-an-agent-made-up-from-the-title-of-the-mail",
        step="toolu_01A09q90qw90lq917835lq9-and-some-more-characters", ago=26 * 3600,
    )  # fmt: skip
    await made.add(started(), lost("credentials"), run="invoice-run-7", step="send", ago=1800)
    await made.add(
        started(), lost("lag"), (K.EFFECT_ABSENT, 9, {"conclusive": False, "look": 1, "looks": 2}),
        run="invoice-run-8", step="send", ago=40,
    )  # fmt: skip
    answer = b'{"id": "re_1", "object": "refund", "amount": 42.50, "client_secret": "cs_1"}'
    for number in range(2):
        await made.add(
            started(), answered("succeeded", 201, external_id=f"re_{number}"),
            (K.ANSWER_DELIVERED, 1.1, {"epoch": 1}), (K.REPLAYED, 200, {"epoch": 2}),
            (K.REPLAYED, 230, {"epoch": 2}),
            run=f"support-case-18{number}", answer=answer, body=body.encode(), ago=900 + number,
        )  # fmt: skip
    await made.add(
        started(), answered("rejected", 402, reason="error.type is card_declined"), run="case-9"
    )
    await made.add(
        started(), (K.ATTEMPT_NOT_SENT, 1, {"attempt": 1, "reason": "connection refused"}),
        run="case-10", step="crm note", name="POST api.shop.test/v1/notes~8a1f",
        url="https://api.shop.test/v1/notes?case=10", body=b"note=hello&case[id]=10",
        kind="application/x-www-form-urlencoded",
    )  # fmt: skip
    await made.add(started(), run="case-11", ago=3)
    await made.hold(run="case-12", ago=300)
    runs = made.services.runs
    await made.run("support-case-1842")
    await runs.set_budget(
        "support-case-1842", {"turns": 40, "tokens": 200_000, "tool_calls": 50}, "ada", raising=True
    )
    await made.spend("support-case-1842", turns=12, tokens=183_400, tool_calls=50, writes=7)
    await made.run("case-14", parent="support-case-1842")
    await runs.close("case-14", {"outcome": "completed"}, "agent")
    await made.run("case-15")
    await runs.revoke("case-15", {"reason": "The customer withdrew the case."}, "ada")
    resolved = await made.add(started(), lost(), run="case-13", ago=4000)
    await made.then(
        resolved, K.OPERATOR_RESOLVED, **{
            "as": "happened", "by": "ada", "external_id": "re_99", "kept": False,
            "evidence": "Seen in the dashboard: https://shop.test/refunds/re_99",
        },
    )  # fmt: skip
