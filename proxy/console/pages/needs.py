"""The first page: what waits for a person, the oldest first."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from proxy.console import words
from proxy.console.desk import Desk, Page, Visit
from proxy.ledger.base import RunQuery

SHOWN: Final = 50  # of each kind; who has more looks at the list
RUNS: Final = 100  # looked through for conflicts


def pages(desk: Desk) -> list[Page]:
    async def first(visit: Visit) -> web.Response:
        now = desk.clock.time()
        unknown = await desk.operations.unresolved()
        mine = [one for one in unknown if words.needs_person(one, now)]
        others = [one for one in unknown if not words.needs_person(one, now)]
        return await desk.show(
            visit,
            "needs.html",
            approvals=(await desk.waiting_approvals())[:SHOWN],
            unknown=mine[:SHOWN],
            unknown_more=len(mine) - SHOWN,
            settling=others[:SHOWN],
            settling_more=len(others) - SHOWN,
            alarms=alarms(desk),
            conflicts=await _conflicts(desk),
        )

    return [Page("GET", "/", first)]


async def _conflicts(desk: Desk) -> list[dict[str, Any]]:
    """Of the newest runs, those with an effect that should not be there."""
    return [run for run in await desk.runs.runs(RunQuery(limit=RUNS)) if run["conflicts"]]


def alarms(desk: Desk) -> list[dict[str, Any]]:
    """What is wrong with the ledger, why, and what to do."""
    life = desk.operations.ledger()
    found: list[dict[str, Any]] = []
    if life["trouble"]:
        found.append(
            {
                "what": "The ledger cannot be written",
                "why": words.sentence(life["trouble"]),
                "do": "No write of an agent is sent until it can. The proxy tries again by itself.",
            }
        )
    for alarm in life["alarms"]:
        found.append(
            {
                "what": "This is not the ledger that ran here before",
                "why": words.sentence(alarm),
                "do": "Find out who put it there, and whether the other one still exists.",
            }
        )
    if life["gap"]:
        found.append(
            {
                "what": "Some time is missing in the ledger",
                "why": "It was restored or replaced, and does not know what was sent from",
                "since": life["gap"]["since"],
                "until": life["gap"]["until"],
                "do": "Writes of runs from before are asked about before they are sent. When no "
                "such run can come again: onceproxy gap close.",
            }
        )
    return found
