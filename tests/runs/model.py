"""What runs may do, written down a second time and without the proxy's code: a model of one page.

The test tells it what was acknowledged to people and to agents, and asks it of every call that
reaches the API whether it may be there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

WRITE = {"tool_calls": 1, "writes": 1}
READ = {"tool_calls": 1}
HOUR = 3600.0


@dataclass
class ModelRun:
    parent: str | None
    limits: dict[str, int] = field(default_factory=dict)
    used: Counter[str] = field(default_factory=Counter)
    revoked: bool = False
    closed: bool = False
    tokens: dict[str, bool] = field(default_factory=dict)  # text -> revoked


@dataclass
class Grant:
    body: int
    until: float
    revoked: bool = False


@dataclass
class Deed:
    """One thing that is to happen once. ``begun``: its present version is charged."""

    run: str
    asks: bool
    begun: bool = False
    effects: int = 0
    token: str | None = None  # of its newest call
    grants: dict[str, Grant] = field(default_factory=dict)


@dataclass
class Model:
    defaults: dict[str, int]
    runs: dict[str, ModelRun] = field(default_factory=dict)
    deeds: dict[str, Deed] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    now: float = 0.0
    seen: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def chain(self, run: str) -> list[ModelRun]:
        found = []
        name: str | None = run
        while name is not None:
            found.append(self.runs[name])
            name = self.runs[name].parent
        return found

    def barred(self, run: str, token: str | None) -> bool:
        stopped = any(each.revoked or each.closed for each in self.chain(run))
        return stopped or (token is not None and self.runs[run].tokens[token])

    def limit(self, run: ModelRun, unit: str) -> int | None:
        return run.limits.get(unit, self.defaults.get(unit))

    def left(self, run: str, unit: str) -> int | None:
        """Of the tightest budget above and at the run; None where nothing limits it."""
        limits = [(self.limit(each, unit), each.used[unit]) for each in self.chain(run)]
        return min((limit - used for limit, used in limits if limit is not None), default=None)

    def affords(self, run: str, cost: dict[str, int]) -> bool:
        left = (self.left(run, unit) for unit in cost)
        return all(each is None or each > 0 for each in left)

    def charge(self, run: str, cost: dict[str, int]) -> None:
        for each in self.chain(run):
            each.used.update(cost)

    def approved(self, deed: Deed, body: int) -> bool:
        return not deed.asks or any(
            grant.body == body and not grant.revoked and self.now < grant.until
            for grant in deed.grants.values()
        )

    def may_send(self, deed: Deed, body: int) -> bool:
        return not self.barred(deed.run, deed.token) and self.approved(deed, body)

    def will_begin(self, deed: Deed, body: int) -> bool:
        """Whether the call that is being made starts the first attempt of a version."""
        ready = not deed.begun and not deed.effects and self.may_send(deed, body)
        return ready and self.affords(deed.run, WRITE)

    def begin(self, deed: Deed) -> None:
        deed.begun = True
        self.charge(deed.run, WRITE)

    def failed(self, deed: Deed) -> None:
        """Its caller has heard that the API refused it: the next call is another version."""
        deed.begun = False
        deed.grants.clear()

    def arrives(self, name: str, body: int) -> None:
        """A write is at the API."""
        deed = self.deeds[name]
        if not deed.begun:
            self.wrong.append(f"{name} was sent without a unit of its budget")
        if self.barred(deed.run, deed.token):
            self.wrong.append(f"{name} was sent by what had been revoked or closed")
        if not self.approved(deed, body):
            self.wrong.append(f"{name} was sent although nobody has approved {body}")

    def takes_effect(self, name: str) -> None:
        self.deeds[name].effects += 1
        if self.deeds[name].effects > 1:
            self.wrong.append(f"{name} happened {self.deeds[name].effects} times")

    def status(self, run: str, unknown: bool) -> str:
        row = self.runs[run]
        if row.revoked:
            return "revoked"
        if not row.closed:
            return "open"
        return "completed_with_unknown" if unknown else "completed"
