"""What finding the endpoint of a call costs, counted in calls of functions and not in seconds: as a
part of what an operation takes, and with ten times as many rule files."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from proxy.core.matching import RuleSet
from proxy.core.model import Body, Request
from proxy.core.rules import Service
from proxy.ledger.memory import MemoryLedger
from proxy.rulefile.loader import load
from proxy.rulefile.patterns import host_pattern
from tests.fakes.clock import FakeClock
from tests.fakes.scripted import Proxy, Scripted, answer
from tests.fakes.world import post

SHIPPED = Path(__file__).parents[2] / "rules"
HOSTS = (
    "api.stripe.com",
    "slack.com",
    "api.github.com",
    "examplebucket.s3.eu-central-1.amazonaws.com",
    "gateway.nowhere.test",
)


@cache
def shipped() -> tuple[Service, ...]:
    return load([SHIPPED]).services


def many(count: int) -> RuleSet:
    """Forty of the shipped files, the ones with {x} and * in their hosts among them, and as many
    more of their kind, at hosts of their own, as it takes."""
    services = sorted(shipped(), key=lambda s: all(isinstance(h.labels[0], str) for h in s.hosts))
    made = list(services[:20]) + [
        s for s in services[20:] if s.name in ("stripe", "slack", "github")
    ]
    made += [s for s in services if s not in made][: 40 - len(made)]
    return RuleSet([*made, *(_copy(made[i % 40], i) for i in range(count - 40))])


def _copy(service: Service, number: int) -> Service:
    names = [host.text.partition(":")[0] for host in service.hosts if not host.everywhere]
    hosts = tuple(host_pattern(f"{name}.n{number}.test") for name in dict.fromkeys(names))
    return replace(service, name=f"{service.name}-{number}", hosts=hosts)


def requests() -> Iterator[Request]:
    paths = ("/v1/refunds", "/api/chat.postMessage", "/repos/a/b/issues", "/reports/a.csv", "/x/y")
    for host, path in zip(HOSTS, paths, strict=True):
        headers = (("Content-Type", "application/json"),)
        yield Request("POST", "https", host, 443, path, headers, Body.of(b'{"a": 1}'))


@contextlib.contextmanager
def counting(inside_of: str = "") -> Iterator[list[int]]:
    """Calls of functions, Python's and C's, that happen meanwhile; with ``inside_of`` only those
    made by functions of that file, and what these call."""
    count = [0]
    outermost: list[FrameType] = []

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        begins = event == "call" and not outermost
        if begins and inside_of and frame.f_code.co_filename.endswith(inside_of):
            outermost.append(frame)
        if event in ("call", "c_call") and (outermost or not inside_of):
            count[0] += 1
        if event == "return" and outermost and outermost[0] is frame:
            outermost.clear()

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        yield count
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("known", [False, True], ids=["a new address", "a known address"])
def test_ten_times_as_many_rule_files_cost_at_most_a_tenth_more(known: bool) -> None:
    costs = {}
    for files in (40, 400):
        rules = many(files)
        assert len(rules.services) == files
        sent = list(requests())
        found = [rules.match(request) for request in sent] if known else []
        assert sum(match is not None for match in found) >= (3 if known else 0)
        with counting() as count:
            for request in sent:
                rules.match(request)
        costs[files] = count[0]
    assert costs[400] <= 1.1 * costs[40], costs


async def test_finding_its_endpoint_is_at_most_three_hundredths_of_an_operation() -> None:
    """Without sockets, TLS and a disk, which cost most of a real one's time."""
    rules = RuleSet([s for s in shipped() if s.hosts])
    clock = FakeClock(auto=False)
    api = Scripted([answer(200, {"id": f"re_{n}"}) for n in range(21)])
    proxy = Proxy(rules, api, clock=clock, ledger=MemoryLedger(clock))

    async def one(number: int) -> None:
        arrival = post(
            "/emails", {"to": "a", "n": number}, step=f"s{number}", host="api.resend.com"
        )
        reply = await proxy.call(arrival)
        assert reply.status == 200

    await one(20)  # what is looked up once is known now
    with counting() as whole:
        for number in range(10):
            await one(number)
    with counting("core/matching.py") as matching:
        for number in range(10, 20):
            await one(number)
    assert 0 < matching[0] <= 0.03 * whole[0], (matching, whole)
