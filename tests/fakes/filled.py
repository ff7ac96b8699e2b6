"""A running proxy with something in every state: operations, approvals, runs, checkpoints."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.fakes.served import Api, Served, api, served
from tests.fakes.whole import configure

RULES = """
service: shop
hosts: ["{host}"]
source: https://shop.test/docs
confidence: documented
key: none
endpoints:
  refunds.create: {{match: POST /refunds, external_id: id}}
  declined.create: {{match: POST /declined}}
  lost.create: {{match: POST /lost}}
  payouts.create:
    match: POST /payouts
    external_id: id
    approval: {{required: true, summary: "Pay {{body.amount}}", expires: 1h}}
"""
NAMED = {"ann": "operator", "bob": "operator", "watcher": "agent"}
"""Tokens of the configuration: each is its name, made long."""


def secret(name: str) -> str:
    return f"{name}-0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass
class Filled:
    proxy: Served
    api: Api
    tokens: dict[str, str] = field(default_factory=dict)  # by name, and by run for its own
    approvals: dict[str, str] = field(default_factory=dict)  # ids by state

    def ask(
        self, method: str, path: str, body: object = None, token: str | None = None
    ) -> tuple[int, Any]:
        """One request to the control API; without a body if that is None."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        data = None if body is None else json.dumps(body).encode()
        url = f"http://{self.proxy.control}{path}"
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with _DIRECT.open(request, timeout=60) as response:
                return response.status, _read(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _read(error)

    def operator(self, method: str, path: str, body: object = None) -> Any:
        status, told = self.ask(method, path, body, self.tokens["operator"])
        assert status == 200, told
        return told

    def call(self, path: str, body: object, who: str) -> tuple[int, Any]:
        status, raw = self.proxy.call(self.api.url + path, json.dumps(body).encode(), who)
        return status, json.loads(raw)

    def keys(self) -> list[str]:
        return [one["key"] for one in self.operator("GET", "/v1/operations")["operations"]]

    def runs(self) -> list[str]:
        return [one["run"] for one in self.operator("GET", "/v1/runs")["runs"]]


@contextmanager
def filled(folder: Path) -> Iterator[Filled]:
    with api() as upstream:
        config = configure(
            folder,
            RULES.format(host=upstream.url.removeprefix("http://")),
            patience="100ms",
            control={
                "listen": "127.0.0.1:0",
                "tokens": [
                    {"name": name, "role": role, "token": secret(name)}
                    for name, role in NAMED.items()
                ],
            },
        )
        with served(folder / "state", "--config", str(config)) as proxy:
            made = Filled(proxy, upstream)
            made.tokens |= json.loads((proxy.state_dir / "tokens.json").read_text())
            made.tokens |= {name: secret(name) for name in NAMED}
            _fill(made)
            yield made


def _fill(made: Filled) -> None:
    for path, run in (("/refunds", "open"), ("/declined", "open"), ("/lost", "lost")):
        made.call(path, {"n": 1}, f"{run}:{path[1:]}")
    for run in ("guarded", "other", "revoked-token", "child"):
        body = {"run": run, "parent": "guarded"} if run == "child" else {"run": run}
        made.tokens[run] = made.operator("POST", "/v1/runs", body)["token"]
        made.call("/refunds", {"n": 1}, f"{run}:a%3A{made.tokens[run]}")
    stop = {"token": made.tokens["revoked-token"], "reason": "it got out"}
    made.operator("POST", "/v1/runs/revoked-token/revoke", stop)
    for run, act in (("closed", "close"), ("revoked", "revoke")):
        made.call("/lost" if run == "closed" else "/refunds", {"n": 1}, f"{run}:a")
        made.operator("POST", f"/v1/runs/{run}/{act}", {})
    for run in ("open", "guarded"):
        for n in range(2):
            made.operator("PUT", f"/v1/runs/{run}/checkpoint", {"step": "s", "state": {"n": n}})
        made.operator("PUT", f"/v1/runs/{run}/budget", {"writes": 50, "tool_calls": 60})
    for state in ("waiting", "granted", "denied", "revoked", "consumed"):
        body, who = {"amount": 5}, f"pays-{state}:a"
        made.call("/payouts", body, who)
        [one] = made.operator("GET", "/v1/approvals?state=waiting")["approvals"][:1]
        assert one["run"] == f"pays-{state}"
        number = made.approvals[state] = one["id"]
        at = f"/v1/approvals/{quote(number, safe='')}"
        if state != "waiting":
            made.operator("POST", f"{at}/{'deny' if state == 'denied' else 'grant'}", {"note": "n"})
        if state == "revoked":
            made.operator("POST", f"{at}/revoke", {})
        if state == "consumed":
            assert made.call("/payouts", body, who)[0] == 200


def _read(response: Any) -> Any:
    raw = response.read()
    return json.loads(raw) if "json" in response.headers.get("Content-Type", "") else raw


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
