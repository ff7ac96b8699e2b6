"""Every client by every way in: the call is made twice, the effect is there once."""

from __future__ import annotations

import httpx
import pytest

from tests.clients.conftest import Enter
from tests.clients.senders import CURL, SENDERS, by_curl
from tests.clients.world import WAYS, World

needs_curl = pytest.mark.skipif(CURL is None, reason="curl is not installed")
CLIENTS = [
    pytest.param(name, marks=needs_curl if name == "curl" else (), id=name.replace(" ", "-"))
    for name in SENDERS
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_repeated_call_is_answered_from_the_ledger(
    w: World, enter: Enter, client: str, way: str
) -> None:
    run, target = f"{client} {way}", f"/v1/things/{client.replace(' ', '-')}/{way}"
    url = enter(w.way(way, run, "pay")) + target
    first, second = SENDERS[client](url), SENDERS[client](url)
    key = f"{run.replace(' ', '%20')}/pay/things.create/v1"
    w.assert_once(first, second, key=key, target=target)
    [arrival] = w.upstream.came(target)
    assert arrival.values("Idempotency-Key") == [key]


@pytest.mark.parametrize("client", ["requests", "httpx", "aiohttp", "urllib"])
def test_a_gateway_address_works_where_the_proxy_variables_are_set_too(
    w: World, enter: Enter, client: str
) -> None:
    """A client under ``onceproxy run`` that was given the gateway sends through the proxy to it."""
    run, target = f"{client}-both", f"/v1/things/{client.replace(' ', '-')}/both"
    enter(w.way("absolute", run, "pay"))
    url = w.way("gateway", run, "pay").base + target
    first, second = SENDERS[client](url), SENDERS[client](url)
    key = f"{run.replace(' ', '%20')}/pay/things.create/v1"
    w.assert_once(first, second, key=key, target=target)


@needs_curl
def test_x01_all_ways_to_one_https_address_lead_to_one_operation(
    w: World, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = "/v1/things/one-https"
    gateway = w.way("gateway", "one-https", "pay").base + target
    direct = by_curl(gateway)
    assert direct.outcome == "sent"
    https = w.upstream["things"].https
    who = {"X-Run-Id": "one-https", "X-Step-Id": "pay"}
    host = https.removeprefix("https://")
    others = {
        "listener for one origin": by_curl(f"http://{w.gateway}{target}", who),
        "clear text, as old axios sends it": by_curl(
            f"http://{w.proxy.listen}/",
            {**who, "Host": host},
            *("--request-target", https + target),
        ),
    }
    others["tunnel"] = by_curl(enter(w.way("tunnel", "one-https", "pay")) + target)
    for way, answer in others.items():
        assert answer.outcome == "replayed", way
        assert answer.body == direct.body, way
    assert len(w.upstream.came(target)) == 1


@needs_curl
def test_x02_plain_http_inside_a_tunnel_is_the_same_call_as_without_one(
    w: World, enter: Enter
) -> None:
    """undici's way."""
    target = "/v1/things/one-http"
    url = enter(w.way("absolute", "one-http", "pay")) + target
    tunnelled, plain = by_curl(url, None, "--proxytunnel"), by_curl(url)
    w.assert_once(tunnelled, plain, key="one-http/pay/things.create/v1", target=target)


def test_x06_a_client_that_gave_up_finds_the_answer_when_it_asks_again(
    w: World, enter: Enter
) -> None:
    """The caller's time-out ends neither the send nor its record."""
    target = "/v1/things/gave-up"
    url = enter(w.way("tunnel", "gave-up", "pay")) + target
    with w.upstream.hold(target), pytest.raises(httpx.ReadTimeout):
        httpx.post(url, json={"amount": 5}, timeout=0.5)
    again = httpx.post(url, json={"amount": 5}, timeout=20)
    assert again.status_code == 201
    assert again.headers["Onceproxy-Outcome"] in ("coalesced", "replayed")
    assert len(w.upstream.came(target)) == 1
