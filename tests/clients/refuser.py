"""A port for each refusal code: whatever is sent there is refused as the proxy refuses it."""

from __future__ import annotations

import http.server
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from proxy.core.model import Body
from proxy.core.refusal import CODES, Refusal
from proxy.net.problem import reply
from proxy.rulefile.loader import load
from tests.fakes.served import ROOT

RULES = load([ROOT / "rules"])
HOSTS = {"slack": "slack.com", "github": "api.github.com"}  # whose rule has a shape of its own
KEY = "support-case-1842/issue-refund/stripe.refunds.create/v1"


def refusal(code: str, site: str = "") -> Refusal:
    """As full as it can be."""
    return Refusal(
        code,
        "The reason, for people.",
        operation=KEY,
        state="unknown",
        external_id="re_1",
        retry_after=1 if CODES[code].retryable else None,
        fields=("body.amount",),
        shape=RULES.refusal_at(HOSTS[site], 443) if site in HOSTS else None,
    )


@dataclass
class Refuser:
    """``came``: requests by site and code."""

    # site: that of a shape of its own, else empty
    came: Counter[tuple[str, str]] = field(default_factory=Counter)
    _ports: dict[tuple[str, str], int] = field(default_factory=dict)

    def at(self, site: str, code: str) -> str:
        return f"http://127.0.0.1:{self._ports[site if site in HOSTS else '', code]}"


@contextmanager
def refuser() -> Iterator[Refuser]:
    made = Refuser()
    servers = []
    for site in ("", *HOSTS):
        for code in CODES:
            server = _Server(("127.0.0.1", 0), _Handler)
            server.made, server.site, server.code = made, site, code
            made._ports[site, code] = server.server_address[1]
            servers.append(server)
    threads = [
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        for server in servers
    ]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    made: Refuser
    site: str
    code: str

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        made, site, code = self.server.made, self.server.site, self.server.code
        made.came[site, code] += 1
        answer = reply(refusal(code, site), attempts=1)
        assert isinstance(answer.body, Body)
        assert answer.body.data is not None
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body.data)))
        self.end_headers()
        self.wfile.write(answer.body.data)

    def log_message(self, *_: Any) -> None:
        pass
