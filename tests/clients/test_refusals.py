"""Every refusal through every SDK: none is taken for a success, what must not be sent again is not,
and the error says what to do next as far as the SDK shows anything of an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pytest

from proxy.core.refusal import CODES
from proxy.net.problem import phrase
from tests.clients.fleet import FLEET, PROGRAMS, Client, needing
from tests.clients.refuser import HOSTS, Refuser, refusal, refuser
from tests.clients.senders import by_requests
from tests.clients.world import World, lines

RETRIES = 2  # what SDKs do by themselves where a refusal allows it
FINAL = ("missing-identity", "budget-exhausted", "outcome-unresolved", "operation-mismatch")
STRICT = {"openai", "stripe", "@slack/web-api"}  # those that send a 4xx or 5xx again by themselves


@pytest.fixture(scope="module")
def refusing() -> Iterator[Refuser]:
    with refuser() as made:
        yield made


def ask(refusing: Refuser, client: Client, codes: Iterable[str]) -> None:
    codes, site = list(codes), client.site if client.site in HOSTS else ""
    before = refusing.came.copy()
    named = [f"{client.name}={refusing.at(client.site, code)}" for code in codes]
    told_lines = lines({}, *PROGRAMS[client.language], "refused", "1", *named)
    for code, line in zip(codes, told_lines, strict=True):
        assert "error" in line, f"{code} was taken for a success"
        told = refusal(code, client.site)
        shown = {"next": told.next, "phrase": phrase(told), "code": code, "nothing": ""}
        assert shown.get(client.shows, str(told.meaning.status)) in line["text"], code
        came = refusing.came[site, code] - before[site, code]
        assert 1 <= came <= (1 + RETRIES if CODES[code].retryable else 1), code


@pytest.mark.slow
@pytest.mark.parametrize("client", needing(FLEET))
def test_every_refusal_is_an_error_that_says_what_to_do(refusing: Refuser, client: Client) -> None:
    ask(refusing, client, CODES)


@pytest.mark.parametrize("client", needing(tuple(one for one in FLEET if one.name in STRICT)))
def test_x07_a_final_refusal_is_asked_for_once(refusing: Refuser, client: Client) -> None:
    ask(refusing, client, FINAL)


def test_slacks_shape_is_kept_where_no_endpoint_is_known(w: World) -> None:
    """Two parties name two runs: refused before anything looks for the rule. Slack's Node client
    would send anything but a 200 again for half an hour."""
    target = "/api/chat.postMessage"
    url, before = (
        w.way("gateway", "one", "pay", "slack").base + target,
        len(w.upstream.came(target)),
    )
    answer = by_requests(url, {"X-Run-Id": "another"})
    assert answer.status == 200
    said = json.loads(answer.body)
    assert (said["ok"], said["error"]) == (False, "onceproxy_bad-request")
    assert "set-up error" in said["next"]
    assert len(w.upstream.came(target)) == before


def test_slacks_shape_is_kept_for_methods_without_an_endpoint(w: World) -> None:
    """A method that the rule does not know has its effect, and its answer is lost: a person
    decides."""
    target = "/api/files.upload"
    url = w.way("gateway", "lost-slack", "pay", "slack").base + target
    w.upstream.lose(target)
    answer = by_requests(url)
    assert answer.status == 200
    assert json.loads(answer.body)["error"] == "onceproxy_outcome-unresolved"
    assert len(w.upstream.came(target)) == 1
