"""The drill against servers that were written by others and know nothing of it.

localstripe is a stateful imitation of Stripe that ignores Idempotency-Key, json-server turns a JSON
file into a REST API. Both have no key, so their rules say ``key: none`` and a lookup by a marker.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.drill.drill import Options, drill
from proxy.drill.targets import Foreign, reachable

# Longer than other tests: the first one on a machine installs json-server.
pytestmark = pytest.mark.timeout(300)

POINTS = ("during_call", "after_effect")  # the effect is made, and nothing of it recorded
JSON_SERVER = "0.17.4"  # the last 0.x; later ones are betas with other queries
STARTS_WITHIN = 30.0

LOCALSTRIPE_RULES = """\
service: localstripe
hosts: ["{host}"]
source: https://pypi.org/project/localstripe/
confidence: inferred
checked: "2026-11-30"
mode: enforce
key: none
endpoints:
  refunds.create:
    match: POST /v1/refunds
    external_id: id
    marker: {in: form, name: "metadata[operation_key]"}
    reconcile:
      request: GET /v1/refunds?charge={body.charge}&limit=100
      items: data
      where: {metadata.operation_key: "{key}"}
      pages: {after_id: starting_after, max: 5}
      running: 1s
      settle: 200ms
"""

JSON_SERVER_RULES = """\
service: jsonserver
hosts: ["{host}"]
source: https://www.npmjs.com/package/json-server
confidence: inferred
checked: "2026-11-30"
mode: enforce
key: none
endpoints:
  invoices.create:
    match: POST /invoices
    external_id: id
    marker: {in: json, name: metadata.operation_key}
    reconcile:
      request: GET /invoices?customer={body.customer}
      where: {metadata.operation_key: "{key}"}
      running: 1s
      settle: 200ms
      answer: {status: 201, body: "{item}"}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def server(command: Sequence[str], url: str, log: Path) -> AsyncIterator[str]:
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            assert await reachable(url, STARTS_WITHIN), log.read_text(errors="replace")
            yield url
        finally:
            process.kill()


def rules(folder: Path, text: str, url: str) -> Path:
    folder.mkdir()
    host = url.removeprefix("http://")
    (folder / "service.yaml").write_text(text.replace("{host}", host), encoding="utf-8")
    return folder


async def lines(foreign: Foreign) -> list[dict[str, Any]]:
    told: list[str] = []
    await drill(Options(points=POINTS, json=True, foreign=foreign), told.append)
    shown: list[dict[str, Any]] = json.loads(told[-1])["lines"]
    return shown


def assert_once(lines: list[dict[str, Any]]) -> None:
    assert [line["point"] for line in lines] == list(POINTS)
    assert [line["why"] for line in lines] == [[], []]
    assert [line["effects"] for line in lines] == [1, 1]
    assert [line["state"] for line in lines] == ["succeeded", "succeeded"]


AUTH = {"Authorization": "Bearer sk_test_c4n4ry5ecret"}


@pytest.fixture
async def localstripe(tmp_path: Path) -> AsyncIterator[str]:
    if importlib.util.find_spec("localstripe") is None:
        pytest.skip("localstripe is not installed: it is in the development requirements")
    if not _listens_on_ipv6():
        pytest.skip("localstripe listens on IPv6 only, which this machine does not have")
    port = free_port()
    command = [sys.executable, "-m", "localstripe", "--port", str(port), "--from-scratch"]
    async with server(command, f"http://127.0.0.1:{port}", tmp_path / "localstripe.log") as url:
        yield url


def _listens_on_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::", 0))
    except OSError:
        return False
    return True


async def _charge(url: str) -> str:
    """A paid charge to refund; made straight, as something that was there before."""
    card = {
        "card[number]": "4242424242424242",
        "card[exp_month]": "12",
        "card[exp_year]": "2040",
        "card[cvc]": "123",
    }
    async with aiohttp.ClientSession(headers=AUTH) as session:
        async with session.post(f"{url}/v1/tokens", data=card) as response:
            token = (await response.json())["id"]
        async with session.post(f"{url}/v1/customers", data={"source": token}) as response:
            customer = (await response.json())["id"]
        charge = {"amount": "100000", "currency": "eur", "customer": customer}
        async with session.post(f"{url}/v1/charges", data=charge) as response:
            assert response.status == 200, await response.text()
            return str((await response.json())["id"])


async def test_localstripe_refunds_once(localstripe: str, tmp_path: Path) -> None:
    charge = await _charge(localstripe)
    foreign = Foreign(
        localstripe,
        rules(tmp_path / "rules", LOCALSTRIPE_RULES, localstripe),
        kind="query",
        send="POST /v1/refunds",
        body=f"charge={charge}&amount=4200&metadata[case]={{reference}}",
        count_by="GET /v1/refunds?limit=100",
        items="data",
        headers=AUTH,
    )
    assert_once(await lines(foreign))


@pytest.fixture(scope="session")
def json_server_command() -> Callable[[int, Path], list[str]]:
    """How json-server is started; installed into a cache folder on first use."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("json-server needs npm and node, which are not on this machine")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "onceproxy-tests" / f"json-server-{JSON_SERVER}"
    program = home / "node_modules" / "json-server" / "lib" / "cli" / "bin.js"
    if not program.exists():
        home.mkdir(parents=True, exist_ok=True)
        install = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(home)]
        done = subprocess.run(
            [*install, f"json-server@{JSON_SERVER}"], capture_output=True, text=True, timeout=100
        )
        if done.returncode != 0 or not program.exists():
            pytest.skip(f"json-server could not be installed: {done.stderr.strip()[-200:]}")
    return lambda port, data: [node, str(program), "--port", str(port), str(data)]


async def test_json_server_makes_one_invoice(
    json_server_command: Callable[[int, Path], list[str]], tmp_path: Path
) -> None:
    data = tmp_path / "db.json"
    data.write_text('{"invoices": []}', encoding="utf-8")
    port = free_port()
    command = [*json_server_command(port, data), "--host", "127.0.0.1", "--quiet"]
    async with server(command, f"http://127.0.0.1:{port}", tmp_path / "json.log") as url:
        foreign = Foreign(
            url,
            rules(tmp_path / "rules", JSON_SERVER_RULES, url),
            kind="query",
            send="POST /invoices",
            body='{"customer": "{reference}", "amount": 4200}',
            count_by="GET /invoices?customer={reference}",
        )
        assert_once(await lines(foreign))
        made = json.loads(data.read_text(encoding="utf-8"))["invoices"]
        assert len(made) == len(POINTS)


async def test_localstripe_does_not_deduplicate_by_itself(localstripe: str) -> None:
    """Not even under one key: what the test above shows is the work of the proxy."""
    charge = await _charge(localstripe)

    async def refund(session: aiohttp.ClientSession) -> Any:
        form = {"charge": charge, "amount": "100"}
        key = {"Idempotency-Key": "the-same"}
        async with session.post(f"{localstripe}/v1/refunds", data=form, headers=key) as response:
            return (await response.json())["id"]

    async with aiohttp.ClientSession(headers=AUTH) as session:
        first, second = await asyncio.gather(refund(session), refund(session))
    assert first != second
