"""The ways in which clients say who is calling, and that none of it goes on to the API."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import httpx
import pytest

from tests.clients.conftest import Enter
from tests.clients.senders import by_httpx, by_requests
from tests.clients.world import Seen, World, seen

NOBODY = ("-", None)


def test_urllib_with_user_and_password_in_the_proxy_address(w: World) -> None:
    """Set in the program, not in the environment; a colon is written %253A."""
    target = "/v1/things/urllib-credential"
    proxy = f"http://case%253A7:step%20one@{w.proxy.listen}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": proxy}))

    def post() -> Seen:
        request = urllib.request.Request(w.upstream["things"].http + target, b"amount=5")
        with opener.open(request, timeout=30) as answer:
            return seen(answer.status, answer.headers, answer.read())

    first, second = post(), post()
    w.assert_once(first, second, key="case:7/step%20one/things.create/v1", target=target)
    [arrival] = w.upstream.came(target)
    assert arrival.values("Authorization") == []


@pytest.mark.parametrize("way", ["absolute", "tunnel"])
def test_run_and_step_as_headers(w: World, enter: Enter, way: str) -> None:
    run, target = f"headers-{way}", f"/v1/things/headers/{way}"
    url = enter(w.way(way, *NOBODY)) + target
    who = {
        "X-Run-Id": run,
        "X-Step-Id": "call_1",
        "Authorization": "Bearer c4n4ry5ecret-for-the-api",
    }
    first, second = by_requests(url, who), by_requests(url, who)
    w.assert_once(first, second, key=f"{run}/call_1/things.create/v1", target=target)
    [arrival] = w.upstream.came(target)
    assert arrival.values("Authorization") == ["Bearer c4n4ry5ecret-for-the-api"]


def test_headers_name_the_step_where_the_gateway_path_names_none(w: World) -> None:
    target = "/v1/things/headers/gateway"
    url = w.way("gateway", "unused", None).base + target
    who = {"X-Run-Id": "headers-gateway", "X-Step-Id": "call_1"}
    first, second = by_httpx(url, who), by_httpx(url, who)
    w.assert_once(first, second, key="headers-gateway/call_1/things.create/v1", target=target)


def test_run_and_step_as_baggage(w: World, enter: Enter) -> None:
    target = "/v1/things/baggage"
    url = enter(w.way("tunnel", *NOBODY)) + target
    who = {"baggage": "tenant=7, run.id=traced,step.id=call%201"}
    first, second = by_httpx(url, who), by_httpx(url, who)
    w.assert_once(first, second, key="traced/call%201/things.create/v1", target=target)
    [arrival] = w.upstream.came(target)
    assert arrival.values("baggage") == ["tenant=7"]


def test_an_operation_id_makes_two_effects_of_one_step(w: World, enter: Enter) -> None:
    target = "/v1/things/operation-id"
    url = enter(w.way("tunnel", "two-of-one", "pay")) + target
    one, other = (by_httpx(url, {"X-Operation-Id": name}) for name in ("a", "b"))
    again = by_httpx(url, {"X-Operation-Id": "a"})
    assert [one.outcome, other.outcome, again.outcome] == ["sent", "sent", "replayed"]
    assert again.body == one.body != other.body
    assert len(w.upstream.done(target)) == 2


def test_parties_that_disagree_are_refused_and_nothing_is_sent(w: World, enter: Enter) -> None:
    target = "/v1/things/disagreement"
    url = enter(w.way("tunnel", "one-run", "pay")) + target
    refused = by_httpx(url, {"X-Run-Id": "another-run"})
    assert refused.status == 400
    assert json.loads(refused.body)["type"] == "urn:onceproxy:bad-request"
    assert w.upstream.came(target) == []


def test_a_write_that_names_nobody_is_refused_in_words_a_model_understands(
    w: World, enter: Enter
) -> None:
    target = "/v1/things/nobody"
    url = enter(w.way("absolute", *NOBODY)) + target
    with pytest.raises(httpx.HTTPStatusError, match="400 This is a set-up error"):
        httpx.post(url, json={}).raise_for_status()
    with pytest.raises(urllib.error.HTTPError, match="This is a set-up error") as caught:
        urllib.request.build_opener().open(url, b"{}", timeout=30)
    caught.value.close()
    assert w.upstream.came(target) == []
