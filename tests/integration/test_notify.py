"""Webhooks of a real proxy to a real receiver, over kills and restarts."""

from __future__ import annotations

import base64
import http.server
import json
import re
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes.served import ROOT, Served, api, served, until
from tests.fakes.whole import configure

SECRET = "whsec_" + base64.b64encode(b"the key of the receiver").decode()
TOKEN = "the-path-is-a-secret"
SHOP = """
service: shop
hosts: ["{host}"]
source: https://shop.test/docs
confidence: documented
checked: "2026-11-30"
key: none
endpoints:
  payouts.create:
    match: POST /payouts
    approval: {required: true, summary: "Pay {body.amount}"}
  lost.create: {match: POST /lost}
"""


@dataclass
class Hook:
    """``status``: its answer; None: it takes the request and says nothing."""

    url: str
    status: int | None = 200
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]


@contextmanager
def receiver() -> Iterator[Hook]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.got.append(({n.lower(): v for n, v in self.headers.items()}, body))
            if hook.status is not None:
                self.send_response(hook.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook = Hook(f"http://127.0.0.1:{server.server_address[1]}/{TOKEN}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hook
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def verifier() -> Callable[..., bool]:
    """What the document tells a receiver to do."""
    text = (ROOT / "docs" / "operating.md").read_text()
    [snippet] = re.findall(r"```python\n(import base64.*?)```", text, re.S)
    names: dict[str, Any] = {}
    exec(snippet, names)
    found = names["verified"]
    assert callable(found)
    return found  # type: ignore[no-any-return]


def of_host(url: str) -> str:
    return SHOP.replace("{host}", url.removeprefix("http://"))


def notify(hook: Hook, **more: Any) -> dict[str, Any]:
    return {"url": hook.url, "secret": SECRET, **more}


def log_of(proxy: Served) -> str:
    return proxy.log.read_text()


def test_a_kill_at_any_moment_loses_no_webhook_and_the_secret_never_shows(tmp_path: Path) -> None:
    with api() as service, receiver() as hook:
        hook.status = None  # it takes what it gets, and the proxy never hears so
        options = {"notify": notify(hook, console="https://once.test")}
        file = configure(tmp_path, of_host(service.url), **options)
        body = b'{"amount": 50, "iban": "DE02"}'
        with served(tmp_path / "state", "--config", str(file)) as proxy:
            status, _ = proxy.call(f"{service.url}/payouts", body, "run-1:step-1")
            assert status == 403
            until(lambda: hook.got)
            proxy.stop(signal.SIGKILL)
        first = hook.told[0]
        hook.status = 503
        with served(tmp_path / "state", "--config", str(file)) as proxy:
            until(lambda: len(hook.got) > 1)
            assert proxy.call(f"{service.url}/lost", b"{}", "run-1:step-2")[0] == 424
            assert "it answered 503" in log_of(proxy)
            proxy.stop(signal.SIGKILL)
            text = log_of(proxy)
        hook.status = 200
        with served(tmp_path / "state", "--config", str(file)) as proxy:
            until(lambda: "operation.unresolved" in [told["type"] for told in hook.told])
            labels = '{result="delivered",type="operation.unresolved"}'
            until(lambda: f"onceproxy_notifications_total{labels} 1.0" in _scrape(proxy))
            assert proxy.stop() == 0
            text += log_of(proxy)
        assert {told["id"] for told in hook.told if told["type"] == first["type"]} == {first["id"]}
        assert all(told == first for told in hook.told if told["id"] == first["id"])
        assert first["link"] == f"https://once.test/approval?id={first['approval']['id']}"
        assert hook.told[-1]["blocked_by"] == "no_query"
        for headers, sent in hook.got:
            assert verifier()(headers, sent, SECRET)
            assert not verifier()(headers, sent + b" ", SECRET)
            assert not verifier()(headers, sent, SECRET.replace("dGhl", "dGhm"))
            assert not verifier()(headers, sent, SECRET, tolerance=-1)
            assert b"DE02" not in sent
            assert headers["user-agent"].startswith("onceproxy/")
        for secret in (SECRET, SECRET.removeprefix("whsec_"), TOKEN, "the key of the receiver"):
            assert secret not in text
        assert len(service.writes()) == 1, "only the lost one was sent"


def _scrape(proxy: Served) -> str:
    with urllib.request.urlopen(f"http://{proxy.control}/metrics", timeout=10) as response:
        found = response.read().decode()
    assert isinstance(found, str)
    return found


def test_metadata_services_stay_closed_and_a_dead_receiver_holds_up_nobody(tmp_path: Path) -> None:
    with api() as service:
        where = {"url": "http://169.254.169.254/latest", "secret": SECRET}
        file = configure(tmp_path, of_host(service.url), notify=where)
        with served(tmp_path / "state", "--config", str(file)) as proxy:
            assert proxy.call(f"{service.url}/payouts", b"{}", "run-1:step-1")[0] == 403
            until(lambda: "webhook not delivered" in log_of(proxy))
            assert "metadata" in log_of(proxy)
            assert proxy.call(f"{service.url}/other", b"{}", "run-1:step-2")[0] == 200
            assert proxy.stop() == 0
