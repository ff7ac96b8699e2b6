"""Secrets everywhere a caller, a service or an operator can put one, through every end of a call,
with the log at its most talkative and a kill in the middle: none is found afterwards (S9).
"""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest
import yaml

from tests import canaries, reliability
from tests.canaries import MARK, secret
from tests.fakes.rawclient import Got, RawClient
from tests.fakes.rawserver import Connection, RawServer, Received
from tests.fakes.served import Served, onceproxy, served
from tests.fakes.whole import ANY_PORT, post

RULES = """
service: shop
hosts: ["127.0.0.1:{port}"]
source: https://docs.test
confidence: documented
auth: {{header: X-Shop-Key, value: "Key {{secret}}", secret_env: SHOP_KEY}}
redact: [body.card, answer.client_secret]
key: {{in: header, name: Idempotency-Key, valid_for: 24h, keeps: all}}
answers: [{{status: 409, means: rejected}}]
endpoints:
  charges.create: {{match: POST /charges, external_id: id, wording: [body.note]}}
  lost.create: {{match: POST /lost, key: none}}
  rejected.create: {{match: POST /rejected, external_id: id}}
"""


async def shop(received: Received, connection: Connection) -> None:
    """Tells its own secrets in cookies, fields and bodies, and takes everything as it comes."""
    assert received.all("x-shop-key") == [f"Key {secret('rule')}"]
    if received.target.startswith("/lost"):
        connection.close()
        return
    status = "409 Conflict" if received.target.startswith("/rejected") else "200 OK"
    body = json.dumps({"id": "ch_1", "client_secret": secret("answer")}).encode()
    await connection.send(
        f"HTTP/1.1 {status}\r\nSet-Cookie: session={secret('set-cookie')}\r\n"
        f"WWW-Authenticate: Bearer {secret('challenge')}\r\nX-Auth-Token: {secret('token')}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


CREDENTIALS = (
    f"Authorization: Bearer {secret('bearer')}",
    f"Cookie: a=1; session={secret('cookie')}",
    f"X-Api-Key: {secret('api-key')}",
    f"X-Amz-Security-Token: {secret('amz')}",
    f"Api-Key: {secret('api')}",
)
QUERY = f"?api_key={secret('query')}&access_token={secret('query-2')}&page=1"


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def test_no_secret_reaches_ledger_log_metrics_errors_or_commands(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "operator").write_text(secret("operator"))
    async with RawServer(shop) as server:
        (tmp_path / "rules" / "shop.yaml").write_text(RULES.format(port=server.port))
        config = tmp_path / "onceproxy.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "listen": ANY_PORT,
                    "control": {
                        "listen": ANY_PORT,
                        "operator_token_file": "operator",
                        "agent_token": secret("agent"),
                    },
                    "rules": ["rules"],
                    "identity": {"secret": [secret("identity"), secret("identity-2")]},
                    "patience": "200ms",
                    "log": {"level": "debug"},
                }
            )
        )
        state = tmp_path / "state"
        errors: list[Got] = []
        shown: list[str] = []
        for life in range(2):
            with served(state, "--config", str(config), SHOP_KEY=secret("rule")) as proxy:
                errors += await calls(proxy, server.port, life)
                shown += await asyncio.to_thread(looked_at, proxy, config)
                proxy.process.kill()  # the WAL stays as it is
                proxy.process.wait()
            log = proxy.log.read_text()
            proxy.log.rename(tmp_path / f"life-{life}.log")
        assert (state / "ledger.db-wal").stat().st_size > 0
        assert "Traceback" not in log
    assert len(server.requests) >= 3  # the secrets did go where they belong
    assert any(
        secret("bearer") in value for r in server.requests for value in r.all("authorization")
    )
    assert len(errors) > 20
    for got in errors:
        head = " ".join([got.reason, *(f"{n}: {v}" for n, v in got.fields)])
        assert MARK not in head, head
        assert not any(mark in got.body for mark in canaries.MARKS), got.body
    for text in shown:
        assert not any(mark in text.encode() for mark in canaries.MARKS), text[:2000]
    files = [*canaries.watched(tmp_path), *(f for f in state.rglob("*") if f.is_file())]
    assert len(files) >= 8
    assert canaries.leaks(files) == []
    reliability.figure(
        "S9",
        "secrets in 23 places, calls of every end, two kills",
        part="Security",
        error_bodies=len(errors),
        texts=len(shown),
        hits=0,
    )


async def calls(proxy: Served, port: int, life: int) -> list[Got]:
    """Calls with every kind of end; the answers that are not the service's own."""
    base = f"http://127.0.0.1:{port}"
    errors: list[Got] = []
    body = {"amount": 1, "card": secret("card"), "note": "x"}

    async def ask(data: bytes | str) -> Got:
        async with RawClient(int(proxy.listen.rpartition(":")[2])) as client:
            return await client.ask(data)

    async def call(path: str, content: object, step: str, *fields: str) -> Got:
        url = base + path + QUERY
        return await ask(post(url, content, f"run-{life}", step, *CREDENTIALS, *fields))

    first = await call("/charges", body, "a")
    again = await call("/charges", body, "a")
    assert (first.status, again.status) == (200, 200)
    assert again.all("onceproxy-outcome") == ["replayed"]
    assert again.all("set-cookie") == []
    errors.append(await call("/charges", body | {"card": secret("other-card")}, "a"))
    errors.append(await call("/charges", body | {"amount": 2}, "a"))
    errors.append(await call("/charges", b"{not json " + secret("broken").encode(), "b"))
    errors.append(await call("/lost", body, "c"))
    errors.append(await call("/lost", body, "c"))
    rejected = await call("/rejected", body, "d")
    assert rejected.status == 409
    errors.append(await ask(post(base + "/charges" + QUERY, body, "", "", *CREDENTIALS)))
    errors.append(await ask(post("http://127.0.0.1:1/x" + QUERY, body, "run-x", "s", *CREDENTIALS)))
    errors.append(await call("/charges", body, "e", f"X-Run-Id: {secret('run')}"))
    # What is not even a request, with a secret in each part of it.
    s = secret("malformed")
    for text in (
        f"GET http://u:{s}@127.0.0.1:{port}/ HTTP/1.1\r\nHost: a\r\n\r\n",
        f"CONNECT u:{s}@127.0.0.1:{port} HTTP/1.1\r\nHost: a\r\n\r\n",
        f"GET http://127.0.0.1:{port}/#{s} HTTP/1.1\r\nHost: a\r\n\r\n",
        f"GET {s}://127.0.0.1/ HTTP/1.1\r\nHost: a\r\n\r\n",
        f"GET /{s} HTTP/1.1\r\nHost: a\r\n\r\n",
        f"GET /via/https/{s}..x/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        f"GET /via/https/a.test/ HTTP/1.1\r\nHost: {s}\r\n\r\n",
        f"{s} / HTTP/1.1\r\nHost: a\r\n\r\n",
        f"GET http://a.test/ HTTP/{s}\r\nHost: a\r\n\r\n",
        f"GET http://a.test/ HTTP/1.1\r\nHost: a\r\nAuthorization : {s}\r\n\r\n",
        f"GET http://a.test/ HTTP/1.1\r\nHost: a\r\n {s}: folded\r\n\r\n",
        f"GET http://a.test/ HTTP/1.1\r\nHost: a\r\nContent-Length: {s}\r\n\r\n",
        f"GET http://a.test/ HTTP/1.1\r\nHost: a\r\nExpect: {s}\r\n\r\n",
        f"GET http://a.test/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: {s}\r\n\r\n",
        f"GET http://a.test/ HTTP/1.1\r\nHost: a\r\nConnection: {s}, Host\r\n\r\n",
        f"GET http://a.test/ HTTP/1.1\r\nHost: a\r\nProxy-Authorization: Bearer {s}\r\n\r\n",
        "GET http://a.test/ HTTP/1.1\r\nHost: a\r\n"
        f"Proxy-Authorization: {basic(s + '%ff', 'x')}\r\n\r\n",
        f"POST {base}/charges HTTP/1.1\r\nHost: a\r\nX-Run-Id: {s}\r\nX-Run-Id: 2\r\n"
        "Content-Length: 0\r\n\r\n",
    ):
        errors.append(await ask(text))
    return [got for got in errors if got.status >= 400]


def looked_at(proxy: Served, config: Path) -> list[str]:
    """What people see: metrics, the control API (also when they err), and commands."""
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, Request, build_opener

    opener = build_opener(ProxyHandler({}))
    texts: list[str] = []

    def get(path: str, token: str, data: bytes | None = None, method: str | None = None) -> str:
        request = Request(f"http://{proxy.control}{path}", data, method=method)
        request.add_header("Authorization", f"Bearer {token}")
        try:
            with opener.open(request, timeout=30) as answer:
                return f"{answer.headers}\n{answer.read().decode()}"
        except HTTPError as error:
            with error:
                return f"{error.headers}\n{error.read().decode()}"

    operations = get("/v1/operations", secret("operator"))
    texts += [operations, get("/metrics", ""), get("/v1/events", secret("agent"))]
    keys = [line["key"] for line in json.loads(operations.partition("\n\n")[2])["operations"]]
    assert len(keys) >= 3
    for key in keys:
        from urllib.parse import quote

        path = f"/v1/operations/{quote(key, safe='')}"
        texts += [get(path, secret("agent")), get(f"{path}/history", secret("agent"))]
    wrong = secret("wrong-token")
    texts += [
        get("/v1/operations", wrong),
        get(f"/v1/operations/{wrong}", secret("agent")),
        get(f"/v1/{wrong}", secret("agent")),
        get(f"/v1/operations?state={wrong}", secret("agent")),
        get(
            f"/v1/operations/{quote(keys[0], safe='')}/resolve",
            secret("operator"),
            b"{" + wrong.encode(),
        ),
    ]
    said = {"messages": [secret("message")], "state": {secret("member"): secret("state")}}
    checkpoint, saved = "/v1/runs/run-0/checkpoint", json.dumps(said).encode()
    put = [get(checkpoint, secret("agent"), data, "PUT") for data in (saved, saved[:-1], b"[1]")]
    assert '{"version":' in put[0]
    assert secret("state") in get(checkpoint, secret("agent"))
    texts += [*put, get(f"{checkpoint}s", secret("agent")), get("/v1/events", secret("agent"))]
    arguments = ["--config", str(config), "--state-dir", str(proxy.state_dir)]
    for command in (["check"], ["ops", "--json"], ["show", keys[0], "--json"]):
        done = onceproxy(*command, *arguments)
        texts += [done.stdout, done.stderr]
    return texts


# The control: what the scan is for, it finds


def test_a_planted_leak_is_found_however_it_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "planted"
    folder.mkdir()
    raw = secret("x").encode()
    plants = {
        "a.log": b"Authorization: Bearer " + raw,
        "ledger.db": b"\0\1" + raw + b"\2",
        "ledger.db-wal": b"cookie=" + raw.hex().encode(),
        "b.log": base64.b64encode(b"user:" + raw),
        "c.log": base64.b64encode(b"u:" + raw),
        "d.log": base64.b64encode(b"us:" + raw),
    }
    for name, data in plants.items():
        (folder / name).write_bytes(data)
    (folder / "clean.log").write_bytes(b"nothing here")
    files, found = canaries.scan(tmp_path)
    assert files == len(plants) + 1
    assert sorted(leak.split(" at ")[0] for leak in found) == sorted(
        str(folder / name) for name in plants
    )


def test_a_proxys_own_secrets_are_looked_for(tmp_path: Path) -> None:
    folder = tmp_path / "planted" / "state"
    (folder / "ca").mkdir(parents=True)
    (folder / "ledger.key").write_text("ab" * 32 + "\n")
    (folder / "tokens.json").write_text(json.dumps({"agent": "t" * 43, "operator": "o" * 43}))
    (folder / "ca" / "ca-key.pem").write_text(f"-----BEGIN-----\n{'k' * 64}\n-----END-----\n")
    for name, data in {"1.log": "t" * 43, "2.log": "k" * 64, "3.log": "ab" * 32}.items():
        (folder / name).write_text(f"so it is {data} .")
    (folder / "4.log").write_bytes(b"raw " + bytes.fromhex("ab" * 32))
    assert len(canaries.scan(tmp_path)[1]) == 4


@pytest.mark.parametrize("name", ["note", "q"])
async def test_a_secret_in_a_place_that_is_none_is_found_in_the_ledger(
    tmp_path: Path, name: str
) -> None:
    """The whole way: a call that puts one where no proxy can know of it is caught by the scan."""
    from tests.fakes.whole import whole

    folder = tmp_path / "planted"
    folder.mkdir()
    async with RawServer() as server:
        rules = RULES.format(port=server.port).replace("auth:", "# auth:")
        async with whole(folder, rules) as door:
            url = f"http://127.0.0.1:{server.port}/charges?{name}={secret('misplaced')}"
            assert (await door.call(url, {"amount": 1})).status == 200
        found = canaries.scan(folder)[1]
    assert any("ledger.db" in leak for leak in found)
    reliability.control(
        "S9",
        "a secret in a query parameter of another name",
        "found in the ledger",
        part="Security",
    )
