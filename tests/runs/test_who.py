"""Who may decide, and who is told what: an agent cannot approve its own call, and an outcome is for
the run and the account that made it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp

from tests.fakes.rawclient import Got, RawClient
from tests.fakes.served import Api, api
from tests.fakes.whole import Door, post, whole

RULES = """
service: shop
hosts: ["{host}"]
source: https://shop.test/docs
confidence: documented
account: {{header: X-Account}}
key: {{in: header, name: Idempotency-Key, valid_for: 24h, keeps: all}}
endpoints:
  refunds.create: {{match: POST /refunds, external_id: id}}
  payouts.create:
    match: POST /payouts
    external_id: id
    approval: {{required: true}}
"""
REFUND, PAYOUT = {"amount": 5}, {"amount": 50}


def secret(name: str) -> str:
    return f"{name}-0123456789abcdefghijklmnopqrstuvwxyz"


def rules(at: Api) -> str:
    return RULES.format(host=at.url.removeprefix("http://"))


def options() -> dict[str, Any]:
    named = {"ann": "operator", "bob": "operator", "reader": "agent"}
    tokens = [{"name": n, "role": role, "token": secret(n)} for n, role in named.items()]
    control = {"listen": "127.0.0.1:0", "tokens": tokens}
    return {"control": control, "identity": {"tokens": "required"}}


async def ask(
    door: Door, token: str | None, path: str, body: object = None, method: str = "POST"
) -> tuple[int, Any]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    url = f"http://127.0.0.1:{door.control}{path}"
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, url, json=body if body is not None else {}) as answer,
    ):
        return answer.status, await answer.json()


async def call(
    door: Door, url: str, body: object, run: str, token: str | None, account: str = "a1"
) -> Got:
    fields = [f"X-Account: {account}", *([f"X-Run-Token: {token}"] if token else [])]
    async with RawClient(door.port) as client:
        return await client.ask(post(url, body, run, "step", *fields))


def code(got: Got) -> str:
    return str(json.loads(got.body)["type"]).removeprefix("urn:onceproxy:")


async def test_h6e_what_an_agent_holds_approves_raises_and_permits_nothing(tmp_path: Path) -> None:
    """S1."""
    with api() as at:
        async with whole(tmp_path, rules(at), **options()) as door:
            _, begun = await ask(door, secret("ann"), "/v1/runs", {"run": "mine"})
            _, other = await ask(door, secret("ann"), "/v1/runs", {"run": "other"})
            own = begun["token"]
            url = at.url + "/payouts"
            assert code(await call(door, url, PAYOUT, "mine", own)) == "approval-required"
            path = "/v1/approvals?state=waiting"
            _, found = await ask(door, secret("bob"), path, method="GET")
            number = found["approvals"][0]["id"]
            acts: list[tuple[str, object]] = [
                (f"/v1/approvals/{number}/grant", {}),
                (f"/v1/approvals/{number}/deny", {"note": "n"}),
                (f"/v1/approvals/{number}/revoke", {}),
                ("/v1/runs/mine/restore", {}),
                ("/v1/runs/mine/revoke", {}),
                ("/v1/rules/reload", {}),
            ]
            for holder in (own, other["token"], secret("reader"), "wrong", None):
                for act, body in acts:
                    status, _ = await ask(door, holder, act, body)
                    assert status in (401, 403), (act, holder)
            await ask(door, secret("ann"), "/v1/runs/mine/budget", {"writes": 5}, "PUT")
            raised, _ = await ask(door, own, "/v1/runs/mine/budget", {"writes": 6}, "PUT")
            assert raised == 403
            assert code(await call(door, url, PAYOUT, "mine", own)) == "approval-required"
            assert at.writes() == []
            # Nor whoever began the run; another operator may, and is written down.
            assert (await ask(door, secret("ann"), f"/v1/approvals/{number}/grant"))[0] == 403
            said = {"by": "the night shift"}
            status, told = await ask(door, secret("bob"), f"/v1/approvals/{number}/grant", said)
            assert (status, told["by"]) == (200, "the night shift (bob)")
            assert (await call(door, url, PAYOUT, "mine", own)).status == 200
            assert len(at.writes()) == 1


async def test_an_outcome_is_for_its_run_and_its_account(tmp_path: Path) -> None:
    """S6: two runs, two tokens, two accounts."""
    with api() as at:
        async with whole(tmp_path, rules(at), **options()) as door:
            tokens = {}
            for run in ("one", "two"):
                _, begun = await ask(door, secret("ann"), "/v1/runs", {"run": run})
                tokens[run] = begun["token"]
            url = at.url + "/refunds"
            effects: dict[tuple[str, str], bytes] = {}
            for run, account in (("one", "a1"), ("two", "a2")):
                got = await call(door, url, REFUND, run, tokens[run], account)
                assert got.status == 200
                effects[run, account] = got.body
            assert len(at.writes()) == 2
            for run in ("one", "two"):
                for holder in ("one", "two", None):
                    for account in ("a1", "a2"):
                        got = await call(
                            door, url, REFUND, run, tokens[holder] if holder else None, account
                        )
                        about = (run, holder, account, got.status, got.body)
                        if holder == run and (run, account) in effects:
                            assert (got.status, got.body) == (200, effects[run, account]), about
                            assert got.all("idempotent-replayed") == ["true"]
                            continue
                        wanted = "account-mismatch" if holder == run else "authority-revoked"
                        assert code(got) == ("missing-identity" if holder is None else wanted)
                        # Nothing of what was done is told, nor that anything was.
                        assert b"made-" not in got.body, about
                        if holder != run:
                            assert json.loads(got.body)["state"] is None, about
            assert len(at.writes()) == 2


async def test_why_a_run_was_stopped_is_not_told_to_a_stranger(tmp_path: Path) -> None:
    with api() as at:
        async with whole(tmp_path, rules(at), **options()) as door:
            _, begun = await ask(door, secret("ann"), "/v1/runs", {"run": "mine"})
            _, other = await ask(door, secret("ann"), "/v1/runs", {"run": "other"})
            await ask(door, secret("ann"), "/v1/runs/mine/revoke", {"reason": "suspected fraud"})
            url = at.url + "/refunds"
            assert b"fraud" in (await call(door, url, REFUND, "mine", begun["token"])).body
            for token in (other["token"], None):
                assert b"fraud" not in (await call(door, url, REFUND, "mine", token)).body
            assert at.writes() == []
