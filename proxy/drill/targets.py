"""The APIs a drill can be run against: the toy API, or a server of somebody else.

A target knows how to make a call that is one logical operation, and counts afterwards how often
that operation has really happened. ``reference`` is the unique text that names it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import jmespath

from proxy.drill.agent import Call
from proxy.drill.processes import Child, DrillError, spawn

TOY_RULES = Path(__file__).parent / "rules" / "toy.yaml"
TOY_HOST = "127.0.0.1:8907"  # as written in the file; a drill puts the real port in its place
SMALL, LARGE = 4200, 84_200  # amounts: the rules ask a person about what is over 10,000
MAX_TOKENS = 50  # more than the model's answer takes
TOY_PATHS = {"key": "/refunds", "query": "/invoices", "neither": "/messages"}


class Hold(Protocol):
    """One request that the API holds at an exact moment, for the drill to kill the proxy then."""

    async def reached(self) -> None:
        """Returns at that moment."""
        ...

    async def release(self) -> None: ...


class Target(Protocol):
    @property
    def kinds(self) -> Sequence[str]: ...

    @property
    def asks(self) -> bool:
        """Whether its rules have a large call wait for an approval."""
        ...

    @property
    def rules(self) -> Path:
        """A folder with the rule file for it."""
        ...

    def call(self, kind: str, reference: str, *, large: bool = False) -> Call:
        """``large``: of an amount that needs an approval, where the rules ask for one."""
        ...

    def model_call(self, reference: str) -> Call | None:
        """What the agent asks a model before it acts; None where there is none."""
        ...

    async def turns(self, reference: str) -> int:
        """How often the model was asked."""
        ...

    async def count(self, reference: str) -> int:
        """How often the operation has happened."""
        ...

    async def hold(self, reference: str, moment: str, release: str) -> Hold | None:
        """Arranges that the API holds this operation's request; None where it cannot."""
        ...


@dataclass(frozen=True, slots=True)
class ToyHold:
    session: aiohttp.ClientSession
    gate: str

    async def reached(self) -> None:
        async with self.session.get(self.gate):
            pass

    async def release(self) -> None:
        async with self.session.post(f"{self.gate}/open"):
            pass


@dataclass(slots=True)
class Toy:
    """The toy API in a process of its own."""

    url: str
    rules: Path
    session: aiohttp.ClientSession
    kinds: Sequence[str] = ("key", "query", "neither")
    asks: bool = True

    def call(self, kind: str, reference: str, *, large: bool = False) -> Call:
        body = json.dumps({"reference": reference, "amount": LARGE if large else SMALL})
        return Call(reference, "act", "POST", self.url + TOY_PATHS[kind], body)

    def model_call(self, reference: str) -> Call | None:
        body = json.dumps({"reference": reference, "max_tokens": MAX_TOKENS, "stream": True})
        return Call(reference, "think", "POST", f"{self.url}/chat", body)

    async def turns(self, reference: str) -> int:
        return await self._counted("turns", reference)

    async def count(self, reference: str) -> int:
        return await self._counted("counts", reference)

    async def _counted(self, what: str, reference: str) -> int:
        async with self.session.get(f"{self.url}/_effects") as response:
            return int((await response.json())[what].get(reference, 0))

    async def hold(self, reference: str, moment: str, release: str) -> Hold | None:
        wanted = {"match": reference, "moment": moment, "release": release}
        async with self.session.post(f"{self.url}/_gates", json=wanted) as response:
            return ToyHold(self.session, f"{self.url}/_gates/{(await response.json())['gate']}")

    async def trouble(self, reference: str, fault: str, seconds: float = 0.1) -> None:
        """The next request for that operation meets this fault."""
        wanted = {"match": reference, "fault": fault, "seconds": seconds}
        async with self.session.post(f"{self.url}/_faults", json=wanted):
            pass


@asynccontextmanager
async def toy(folder: Path, *, latency: float = 0.0) -> AsyncIterator[Toy]:
    """Starts the toy API and writes the rules for its port; both live in ``folder``."""
    arguments = ["proxy.drill.toyapi", "--file", str(folder / "effects.jsonl")]
    child = await spawn([*arguments, "--latency", str(latency)], folder / "toyapi.log", tells=True)
    # An unlimited pool: every held request of a drill is waited for by one connection.
    connector = aiohttp.TCPConnector(limit=0)
    try:
        url = await _told_url(child)
        rules = folder / "rules"
        rules.mkdir(exist_ok=True)
        text = TOY_RULES.read_text(encoding="utf-8")
        host = url.removeprefix("http://")
        (rules / "toy.yaml").write_text(text.replace(TOY_HOST, host), encoding="utf-8")
        async with aiohttp.ClientSession(connector=connector) as session:
            yield Toy(url, rules, session)
    finally:
        await child.kill()


async def _told_url(child: Child) -> str:
    async for line in child.lines():
        return str(line["url"])
    raise DrillError(f"The toy API did not start. Its last words:\n{child.last_words()}")


@dataclass(slots=True)
class Foreign:
    """A server that knows nothing of the drill.

    ``send`` and ``count_by`` are ``METHOD /path``; they and ``body`` may contain ``{reference}``.
    An element of the list at ``items`` (JMESPath; None: the whole answer) in which the reference
    occurs is one effect.
    """

    url: str
    rules: Path
    kind: str
    send: str
    body: str
    count_by: str
    items: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    asks: bool = False

    @property
    def kinds(self) -> Sequence[str]:
        return (self.kind,)

    def call(self, kind: str, reference: str, *, large: bool = False) -> Call:
        method, _, path = self.send.partition(" ")
        body = self.body.replace("{reference}", reference)
        form = "application/x-www-form-urlencoded"
        content_type = "application/json" if body.lstrip().startswith(("{", "[")) else form
        return Call(
            reference,
            "act",
            method,
            self.url + path.replace("{reference}", reference),
            body,
            {"Content-Type": content_type, **self.headers},
        )

    def model_call(self, reference: str) -> Call | None:
        return None

    async def turns(self, reference: str) -> int:
        return 0

    async def count(self, reference: str) -> int:
        method, _, path = self.count_by.partition(" ")
        url = self.url + path.replace("{reference}", reference)
        async with (
            aiohttp.ClientSession(headers=self.headers) as session,
            session.request(method, url) as response,
        ):
            found: Any = await response.json(content_type=None)
        items = jmespath.search(self.items, found) if self.items else found
        if not isinstance(items, list):
            raise DrillError(
                f"{self.count_by} gave no list (status {response.status}); "
                "say with --items where the list is"
            )
        return sum(reference in json.dumps(item) for item in items)

    async def hold(self, reference: str, moment: str, release: str) -> Hold | None:
        return None


async def reachable(url: str, within: float) -> bool:
    """Whether a server answers there, whatever it says; waits for it up to ``within`` seconds."""
    try:
        async with asyncio.timeout(within), aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(url):
                        return True
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)
    except TimeoutError:
        return False
