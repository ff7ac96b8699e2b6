"""Agents that know nothing of the proxy, started by ``onceproxy run``; the second start resumes."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.clients.world import AGENTS, NODE, World


def lines(w: World, run: str, step: str, *command: str) -> tuple[list[Any], list[Any]]:
    first, second = w.run(run, step, *command), w.run(run, step, *command)
    assert [line["client"] for line in first] == [line["client"] for line in second]
    return first, second


def test_python_clients_need_no_change_where_the_documents_say_so(w: World) -> None:
    things, shop = w.upstream["things"].https, w.upstream["stripe"].https
    command = (sys.executable, str(AGENTS / "unchanged.py"), things + "/v1/things/py", shop)
    # `auto`: several writes in a process that names no steps.
    first, second = lines(w, "python", "auto", *command)
    assert {line["client"] for line in first} == {
        "requests",
        "httpx",
        "urllib",
        "aiohttp",
        "stripe",
    }
    for before, after in zip(first, second, strict=True):
        assert before["Onceproxy-Outcome"] == "sent", before
        assert after["Onceproxy-Outcome"] == "replayed", after
        assert after["Idempotent-Replayed"] == "true"
        assert after["body"] == before["body"]
        assert after["Onceproxy-Operation"] == before["Onceproxy-Operation"]
    for client in ("requests", "httpx", "urllib", "aiohttp"):
        assert len(w.upstream.came(f"/v1/things/py/{client}")) == 1


@pytest.mark.skipif(NODE is None, reason="Node is not installed")
def test_node_needs_neither_proxy_support_nor_trust_in_the_ca(w: World) -> None:
    at = w.upstream["things"]
    command = (
        str(NODE),
        str(AGENTS / "twice.mjs"),
        *(f"{u}/v1/things/js" for u in (at.http, at.https)),
    )
    first, second = lines(w, "node", "auto", *command)
    assert [line["client"] for line in first] == ["fetch-http", "fetch-https", "http", "https"]
    for before, after in zip(first, second, strict=True):
        assert (before["status"], before["onceproxy-outcome"]) == (201, "sent"), before
        assert (after["status"], after["onceproxy-outcome"]) == (201, "replayed"), after
        assert after["idempotent-replayed"] == "true"
        assert after["body"] == before["body"]
    arrivals = [
        a for name in ("fetch", "http", "https") for a in w.upstream.came(f"/v1/things/js/{name}")
    ]
    assert len(arrivals) == 4
    hosts = {host for arrival in arrivals for host in arrival.values("Host")}
    assert hosts == set(at.hosts)


@pytest.mark.skipif(NODE is None, reason="Node is not installed")
def test_node_in_one_named_step(w: World) -> None:
    at = w.upstream["things"].https + "/v1/things/one-step"
    script = (
        "fetch(process.argv[1], {method: 'POST', body: '1'}).then(async (a) => console.log("
        "JSON.stringify([a.headers.get('onceproxy-operation'), await a.text()])))"
    )
    first, second = (w.run("node/1", "issue refund", str(NODE), "-e", script, at) for _ in "12")
    assert first == second
    assert first[0][0] == "node%2F1/issue%20refund/things.create/v1"
    assert len(w.upstream.came("/v1/things/one-step")) == 1
