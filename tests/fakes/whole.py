"""The whole proxy over real sockets and a real SQLite ledger, in this process or in one of its own.

``async with whole(folder, rules) as door`` runs it here, ``door_of(served)`` reaches one that runs
as a process; what is called through a ``Door`` looks the same.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import yaml

from proxy.app import App
from proxy.configload import load
from proxy.drill.targets import TOY_HOST, TOY_RULES
from tests.fakes.rawclient import Got, RawClient
from tests.fakes.served import Served

ANY_PORT = "127.0.0.1:0"
PATIENCE = "3s"  # the toy API settles within one; a test that waits for its end stays short


@dataclass(frozen=True, slots=True)
class Door:
    """A running proxy: its ports, and the directory with its ledger and tokens."""

    port: int
    control: int
    state_dir: Path
    probe: int = 0

    async def call(
        self, url: str, body: Any, run: str = "run-1", step: str = "step-1", *fields: str
    ) -> Got:
        """One POST through it, on a connection of its own."""
        async with RawClient(self.port) as client:
            return await client.ask(post(url, body, run, step, *fields))

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request to the control API, as the operator."""
        tokens = json.loads((self.state_dir / "tokens.json").read_text())
        headers = {"Authorization": f"Bearer {tokens['operator']}"}
        url = f"http://127.0.0.1:{self.control}{path}"
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.request(method, url, json=body) as response,
        ):
            return response.status, await response.json()

    async def operation(self, key: str) -> dict[str, Any]:
        status, found = await self.ask("GET", f"/v1/operations/{quote(key, safe='')}")
        assert status == 200, found
        assert isinstance(found, dict)
        return found

    async def resolve(self, key: str, **body: Any) -> tuple[int, Any]:
        return await self.ask("POST", f"/v1/operations/{quote(key, safe='')}/resolve", body)

    def durable_state(self, key: str) -> str | None:
        """The state that the ledger's file has now, for whoever else may read it."""
        with closing(sqlite3.connect(self.state_dir / "ledger.db")) as db:
            row = db.execute("SELECT state FROM operations WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])


def post(
    url: str, body: Any, run: str = "run-1", step: str = "step-1", *fields: str, target: str = ""
) -> bytes:
    """The bytes of a call; ``run`` empty: it names nobody. ``body``: bytes, or what JSON shows."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    who = base64.b64encode(f"{quote(run, safe='')}:{quote(step, safe='')}".encode()).decode()
    lines = [
        f"POST {target or url} HTTP/1.1",
        f"Host: {urlsplit(url).netloc}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        *([f"Proxy-Authorization: Basic {who}"] if run else []),
        *fields,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + data


def toy_rules(url: str) -> str:
    """The rules of the toy API that listens there."""
    return TOY_RULES.read_text(encoding="utf-8").replace(TOY_HOST, urlsplit(url).netloc)


def configure(folder: Path, rules: str, **options: Any) -> Path:
    """Write a configuration with this one rule file; the state goes to ``folder / "state"``."""
    directory = folder / "rules"
    directory.mkdir(exist_ok=True)
    (directory / "service.yaml").write_text(rules, encoding="utf-8")
    config = {
        "listen": ANY_PORT,
        "control": {"listen": ANY_PORT},
        "state_dir": str(folder / "state"),
        "rules": [str(directory)],
        "patience": PATIENCE,
        **options,
    }
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


@asynccontextmanager
async def whole(folder: Path, rules: str, **options: Any) -> AsyncIterator[Door]:
    """One life of a proxy in this process, over the ledger in ``folder``."""
    app = App(load(configure(folder, rules, **options), environ={}))
    started = await app.start()
    try:
        probe = started.probe.port if started.probe else 0
        yield Door(started.listen.port, started.control.port, started.state_dir, probe)
    finally:
        await app.stop()


def door_of(proxy: Served) -> Door:
    """The way into a proxy that is a process of its own."""
    ports = (int(at.rpartition(":")[2]) for at in (proxy.listen, proxy.control))
    return Door(*ports, proxy.state_dir)


def problem(got: Got) -> dict[str, Any]:
    """The problem document of a refusal."""
    assert got.all("content-type") == ["application/problem+json"], (got.status, got.body)
    assert got.all("onceproxy-outcome") == ["refused"]
    found = json.loads(got.body)
    assert found["status"] == got.status
    assert found["error"]["message"] == found["next"]
    assert isinstance(found, dict)
    return found


def assert_refused(got: Got, status: int, code: str, *next_says: str) -> dict[str, Any]:
    found = problem(got)
    assert (got.status, found["type"]) == (status, f"urn:onceproxy:{code}"), found
    for words in next_says:
        assert words in found["next"]
    return found


def outcome(got: Got) -> str:
    [word] = got.all("onceproxy-outcome")
    return word
