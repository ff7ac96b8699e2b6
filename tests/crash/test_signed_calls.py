"""Calls that are signed as a whole, with a token in the body or the address that their SDK made up:
the token of the first call is the one that the API goes by, and another start of the agent brings
another one.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from proxy.core.call import Policy
from proxy.core.model import Body, Request
from proxy.core.operation import State
from proxy.core.sigv4 import AccessKey, sign
from proxy.engine import Settings
from proxy.net.exchange import Arrival
from tests.crash.support import settle_often
from tests.fakes.scripted import LOST, Proxy, Scripted, answer, code, ruleset
from tests.fakes.world import outcome, post

RULES = """
service: tasks
hosts: [tasks.eu-west-1.amazonaws.com]
source: https://docs.test
confidence: sdk
checked: "2026-11-30"
signed: sigv4
auth: {sigv4: tasks}
endpoints:
  tasks.run:
    match: POST /run
    key: {in: json, name: clientToken, valid_for: 24h}
    external_id: id
  tasks.delete:
    match: DELETE /tasks/{id}
    key: {in: query, name: clientToken, valid_for: 24h}
  tasks.start:
    match: POST /start
    key: {in: json, name: clientToken}
    external_id: id
    reconcile:
      request: GET /tasks?token={key}
      items: tasks
      where: {token: "{key}"}
"""
HOST = "tasks.eu-west-1.amazonaws.com"
KEY = AccessKey("AKIDEXAMPLE", "secret")
OTHER = AccessKey("AKIDOTHER", "secret")
RUN = "run-1/step-1/tasks.tasks.run"
OK = {"id": "t1"}


def life(*sends: Any, lookups: Any = (), own: AccessKey | None = None) -> Proxy:
    """A proxy that has, or has not, an access key of its own."""
    secret = f"{own.id}\n{own.secret}" if own is not None else None
    settings = Settings(policy=Policy(digest_key=b"d"), patience=0.1, secret_of=lambda auth: secret)
    return Proxy(ruleset(RULES), Scripted(list(sends), list(lookups)), settings=settings)


def call(proxy: Proxy, path: str = "/run", token: str | None = None, **more: Any) -> Arrival:
    """As an AWS SDK makes it at this moment: with a token of its own making, signed."""
    return signed(proxy, path, {"task": "a", "clientToken": token or str(uuid.uuid4())}, **more)


def signed(proxy: Proxy, path: str, value: Any, *, key: AccessKey = KEY, **more: Any) -> Arrival:
    arrival = post(path, value, host=HOST, **more)
    body = Body.of(json.dumps(value).encode())
    whole = sign(arrival.request.with_(body=body), key, "tasks", proxy.clock.time())
    arrival.request = whole.with_(body=arrival.request.body)
    return arrival


def token_of(request: Request) -> str:
    return str(json.loads(request.body.data or b"{}")["clientToken"])


def is_genuine(request: Request) -> bool:
    """Whether the signature is one that the API takes for this very request."""
    at = request.header("x-amz-date") or ""
    unsigned = request.with_(
        headers=tuple(pair for pair in request.headers if pair[0].lower() != "authorization")
    )
    moment = datetime.strptime(at, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    anew = sign(unsigned, KEY, "tasks", moment.timestamp())
    return anew.header("authorization") == request.header("authorization")


async def test_a_resumed_agent_with_another_token_is_answered_from_the_ledger() -> None:
    proxy = life(answer(200, OK))
    assert (await proxy.call(call(proxy))).status == 200
    await proxy.restart(seconds=3600)
    reply = await proxy.call(call(proxy))
    assert (reply.status, outcome(reply), len(proxy.api.writes)) == (200, "replayed", 1)
    assert is_genuine(proxy.api.writes[0])


async def test_a_token_with_a_meaning_is_part_of_the_request() -> None:
    proxy = life(answer(200, OK))
    await proxy.call(call(proxy, token="order-17"))
    reply = await proxy.call(call(proxy, token="order-18"))
    assert (reply.status, len(proxy.api.writes)) == (422, 1)


async def test_the_same_bytes_signed_anew_are_sent_again_under_their_token() -> None:
    proxy = life(LOST, answer(200, OK))
    token = str(uuid.uuid4())
    await proxy.call(call(proxy, token=token))
    await proxy.restart(seconds=30)
    reply = await proxy.call(call(proxy, token=token))
    assert reply.status == 200
    first, second = proxy.api.writes
    assert token_of(first) == token_of(second) == token
    assert first.header("x-amz-date") != second.header("x-amz-date")
    assert is_genuine(first)
    assert is_genuine(second)


@pytest.mark.parametrize("own", [None, OTHER], ids=["no key of its own", "another key"])
async def test_other_bytes_than_the_first_are_never_sent_while_that_is_undecided(
    own: AccessKey | None,
) -> None:
    proxy = life(LOST, own=own)
    await proxy.call(call(proxy))
    await proxy.restart()
    await settle_often(proxy, rounds=5)
    reply = await proxy.call(call(proxy))
    assert len(proxy.api.on_wire) == 1
    assert (reply.status, code(reply)) == (424, "outcome-unresolved")
    assert proxy.operation(RUN).blocked_by == "credentials"


async def test_with_the_callers_own_key_the_first_bytes_are_signed_anew() -> None:
    proxy = life(LOST, answer(200, OK), own=KEY)
    await proxy.call(call(proxy))
    await proxy.restart(seconds=3600)
    reply = await proxy.call(call(proxy))
    assert reply.status == 200
    first, second = proxy.api.writes
    assert first.body.data == second.body.data
    assert is_genuine(second)
    assert proxy.operation(RUN).state is State.SUCCEEDED


async def test_in_the_background_too_as_long_as_the_order_is_young() -> None:
    proxy = life(LOST, answer(200, OK), own=KEY)
    await proxy.call(call(proxy))
    await proxy.restart()
    await settle_often(proxy, rounds=3)
    first, second = proxy.api.writes
    assert first.body.data == second.body.data
    assert is_genuine(second)


async def test_the_key_signs_nothing_that_another_key_has_signed() -> None:
    """Neither a first call without a signature, nor one of another account."""
    proxy = life(answer(403, {"message": "Missing Authentication Token"}), own=KEY)
    bare = post("/run", {"task": "b"}, host=HOST, step="step-2")
    await proxy.call(bare)
    assert proxy.api.writes[0].header("authorization") is None
    proxy.api.sends = [LOST]
    await proxy.call(signed(proxy, "/run", {"task": "c"}, key=OTHER, step="step-3"))
    await proxy.restart()
    await settle_often(proxy, rounds=3)
    assert len(proxy.api.on_wire) == 2


@pytest.mark.parametrize("own", [None, KEY])
async def test_a_token_in_the_address_counts_as_one_in_the_body(own: AccessKey | None) -> None:
    proxy = life(LOST, answer(204), own=own)
    tokens = [str(uuid.uuid4()), str(uuid.uuid4())]
    for token in tokens:
        await proxy.call(signed(proxy, f"/tasks/9?clientToken={token}", {}, method="DELETE"))
        await proxy.restart()
    sent = [request.query for request in proxy.api.writes]
    assert sent == [f"clientToken={tokens[0]}"] * (1 if own is None else 2)


async def test_a_lookup_is_signed_with_the_same_key_or_not_made() -> None:
    def found(request: Request) -> Any:
        assert is_genuine(request)
        return answer(200, {"tasks": [{"id": "t1", "token": request.query.partition("=")[2]}]})

    proxy = life(LOST, lookups=[found], own=KEY)
    await proxy.call(call(proxy, "/start"))
    await proxy.restart(seconds=30)
    reply = await proxy.call(call(proxy, "/start"))
    assert (reply.status, outcome(reply)) == (200, "reconciled")
    assert len(proxy.api.writes) == 1

    blind = life(LOST)
    await blind.call(call(blind, "/start"))
    await blind.restart()
    reply = await blind.call(call(blind, "/start"))
    assert (reply.status, code(reply)) == (424, "outcome-unresolved")
    assert len(blind.api.on_wire) == 1
