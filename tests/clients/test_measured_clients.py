"""What was measured of HTTP clients, by the numbers of those measurements, X01 to X09.

X01, X02 and X06 are in test_every_client.py, X07 in test_refusals.py.
"""

from __future__ import annotations

import base64
import http.client
import os
import sys
import urllib.request
from pathlib import Path

import httpx
import pytest
import requests

from proxy.cli.environ import child_environment
from proxy.config import parse_address
from tests.clients.conftest import Enter
from tests.clients.senders import CURL, by_requests
from tests.clients.world import HELPERS, World, free_port, lines, output
from tests.fakes.served import api, served

MINTED = """
import json, os, sys, uuid, requests
key = str(uuid.uuid4())
answer = requests.post(sys.argv[1], json={"amount": 5}, headers={"Idempotency-Key": key})
print(json.dumps([key, answer.json()["id"], answer.headers["Onceproxy-Outcome"]]))
"""


@pytest.mark.parametrize("way", ["absolute", "tunnel"])
def test_x03_a_credential_names_the_caller_and_goes_no_further(
    w: World, enter: Enter, way: str
) -> None:
    run, target = f"secretive-{way}", f"/v1/things/x03/{way}"
    url = enter(w.way(way, run, "pay")) + target
    first, second = by_requests(url), by_requests(url)
    w.assert_once(first, second, key=f"{run}/pay/things.create/v1", target=target)
    [arrival] = w.upstream.came(target)
    assert arrival.values("Proxy-Authorization") == []
    sent = base64.b64encode(f"{run}:pay".encode()).decode()
    assert sent not in w.proxy.log.read_text()
    assert sent not in str(arrival)


def test_x04_two_processes_with_keys_of_their_own_are_one_operation(w: World) -> None:
    target = "/v1/things/x04"
    way = w.way("tunnel", "two-processes", "pay")
    [first], [second] = (
        lines(way.environ, sys.executable, "-c", MINTED, way.base + target) for _ in range(2)
    )
    assert first[0] != second[0]
    assert first[1] == second[1]
    assert (first[2], second[2]) == ("sent", "replayed")
    [arrival] = w.upstream.came(target)
    assert arrival.values("Idempotency-Key") == ["two-processes/pay/things.create/v1"]


@pytest.mark.parametrize("warm", [False, True], ids=["fresh", "warm"])
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_x05_each_send_of_the_ledger_is_one_delivery(
    w: World, enter: Enter, method: str, warm: bool
) -> None:
    """The API reads the request and closes without an answer; as the method may be repeated, a new
    send follows, each with a line of its own in the history."""
    run, target = f"x05-{method}-{warm}", f"/plain/x05/{method}/{warm}"
    url = enter(w.way("absolute", run, "pay", "resend")) + target  # a host without a rule
    if warm:
        assert httpx.get(url).status_code == 200
    w.upstream.lose(target)
    assert httpx.request(method, url, timeout=30).status_code == 200
    [operation] = w.operations(run)
    sends = [each for each in w.history(operation["key"]) if each["event"] == "AttemptStarted"]
    writes = [one for one in w.upstream.came(target) if one.method == method]
    assert len(writes) == len(sends) == operation["attempts"] == 2


def test_x08_a_restart_between_two_calls_of_one_connection(tmp_path: Path) -> None:
    """The second request goes onto a dead socket: an error, or a repeat by the client; never a
    second effect."""
    with api() as upstream:
        host = upstream.url.removeprefix("http://")
        config = tmp_path / "config.yaml"
        config.write_text(f'egress: {{allow: ["{host}"]}}\n')
        ports = ("--listen", f"127.0.0.1:{free_port()}", "--control", f"127.0.0.1:{free_port()}")
        started = ("--config", str(config), *ports)
        with served(tmp_path / "state", *started) as proxy:
            address = parse_address(proxy.listen)
            connection = http.client.HTTPConnection(address.host, address.port, timeout=30)
            who = {"X-Run-Id": "restarted", "X-Step-Id": "pay"}

            def post(body: str) -> bytes:
                connection.request("POST", f"{upstream.url}/things", body, who)
                return connection.getresponse().read()

            first = post("amount=1")
            assert proxy.stop() == 0
        with served(tmp_path / "state", *started):
            with pytest.raises((http.client.HTTPException, OSError)):
                post("amount=2")
            connection.close()
            second = post("amount=2")
            assert post("amount=2") == second
            assert post("amount=1") == first != second
            connection.close()
        assert len(upstream.writes()) == 2


def test_x09_the_control_port_is_reached_past_the_proxy(
    w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the user's own NO_PROXY for loopback, and with none. requests and curl do not know a
    port in NO_PROXY: they come through the proxy, which refuses its own ports."""
    for own in ("127.0.0.1,localhost", ""):
        environ = child_environment(
            {"NO_PROXY": own},
            listen=parse_address(w.proxy.listen),
            control=parse_address(w.proxy.control),
            run="x09",
            step="pay",
            bundle=None,
            helpers=HELPERS,
        )
        for name, value in environ.items():
            if name.lower().endswith("_proxy"):
                monkeypatch.setenv(name, value)
        url = f"http://{w.proxy.control}/healthz"
        with urllib.request.build_opener().open(url, timeout=30) as answer:
            assert answer.status == 200
        assert httpx.get(url, timeout=30).status_code == 200
        if CURL is not None:
            shown = [CURL, "-sS", "-o", os.devnull, "-w", "%{http_code}"]
            assert output([*shown, url], dict(os.environ)) == (b"200" if own else b"403")
            assert output([*shown, "--noproxy", "*", url], dict(os.environ)) == b"200"
        assert requests.get(url, timeout=30).status_code == (200 if own else 403)
        through = f"http://{w.proxy.listen}/via/http/{w.proxy.control}/healthz"
        assert httpx.get(through, timeout=30, trust_env=False).status_code == 403
    assert w.operations("x09") == []
