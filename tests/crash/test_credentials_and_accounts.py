"""Whose credential goes out with what, and what an answer to another one proves: nothing."""

from __future__ import annotations

from dataclasses import replace

from proxy.core.model import Request
from proxy.core.operation import State
from proxy.ledger.base import Query
from tests.crash.support import (
    IMPATIENT,
    KEYED,
    OK,
    QUERIED,
    REFUND,
    basic,
    bearer,
    invoice,
    keyed,
    note,
    note_key,
    only_for,
    page,
    plain,
    queried,
    refund,
    saying,
    settle_often,
)
from tests.fakes.scripted import LOST, Proxy, Scripted, answer, code, fields, ruleset
from tests.fakes.world import Opened, body_of, outcome, post

BY_USER = "account: {basic: user}"
KEYED_BY_USER = saying(KEYED, BY_USER)
QUERIED_BY_USER = saying(QUERIED, BY_USER)

# -- a refused account lends nothing -----------------------------------------------------------


async def test_a_refused_accounts_credential_is_used_for_no_lookup() -> None:
    proxy = queried(LOST, rules=QUERIED_BY_USER, settings=IMPATIENT, lookups=[page()] * 60)
    await proxy.call(note(headers=basic("alice")))
    reply = await proxy.call(note(headers=basic("mallory")))
    before = len(proxy.api.on_wire)
    await settle_often(proxy)
    looked = proxy.api.on_wire[before:]
    assert looked
    assert {r.header("Authorization") for r in looked} == {basic("alice")[0][1]}
    assert code(reply) == "account-mismatch"


async def test_a_refused_account_that_sees_nothing_does_not_free_the_operation() -> None:
    proxy = queried(LOST, rules=QUERIED_BY_USER, settings=IMPATIENT, lookups=[answer(500)] * 3)
    await proxy.call(note(headers=basic("alice")))
    await proxy.restart()
    proxy.api.lookups = [only_for(proxy, basic("alice"))] * 60
    await proxy.call(note(headers=basic("mallory")))
    await settle_often(proxy)
    reply = await proxy.call(note(headers=basic("alice")))
    assert len(proxy.api.writes) == 1
    assert (reply.status, outcome(reply)) == (201, "reconciled")


async def test_a_refused_accounts_credential_goes_out_with_no_resend() -> None:
    proxy = keyed(LOST, rules=KEYED_BY_USER, settings=IMPATIENT)
    await proxy.call(refund(headers=basic("alice")))
    reply = await proxy.call(refund(headers=basic("mallory")))
    proxy.api.sends = [answer(200, OK)]
    await proxy.recovery.settle_all()
    sent = [r.header("Authorization") for r in proxy.api.writes]
    assert sent == [basic("alice")[0][1]] * 2
    assert code(reply) == "account-mismatch"


# -- an absence counts only for the credential of the attempt ----------------------------------


async def test_another_credential_that_sees_nothing_proves_nothing() -> None:
    """No word on accounts in the rule: the run is trusted, its other credential's eyes are not."""
    proxy = queried(LOST, settings=IMPATIENT, lookups=[answer(500)] * 3)
    await proxy.call(note(headers=bearer("alice")))
    await proxy.restart()
    proxy.api.lookups = [only_for(proxy, bearer("alice"))] * 90
    await proxy.call(note(headers=bearer("bob")))
    await settle_often(proxy, rounds=60)
    assert len(proxy.api.writes) == 1
    assert proxy.operation(note_key(proxy)).state is State.UNKNOWN
    assert proxy.operation(note_key(proxy)).blocked_by == "credentials"


async def test_the_rules_own_account_that_sees_nothing_proves_nothing() -> None:
    auth = 'auth: {header: Authorization, value: "Basic {secret}", secret_env: X}'
    own = replace(IMPATIENT, secret_of=lambda auth: basic("proxy")[0][1].split()[1])
    rules = saying(QUERIED, BY_USER, auth)
    proxy = queried(LOST, rules=rules, settings=own, lookups=[answer(500)] * 3)
    await proxy.call(note(headers=basic("alice")))
    await proxy.restart()
    proxy.api.lookups = [page()] * 60
    await settle_often(proxy)
    assert len(proxy.api.writes) == 1
    assert proxy.operation(note_key(proxy)).state is State.UNKNOWN


async def test_gone_for_another_credential_is_no_success_of_a_delete() -> None:
    proxy = Proxy(ruleset(KEYED), Scripted([LOST]), settings=IMPATIENT)
    await proxy.call(post("/things/1", {}, method="DELETE", headers=bearer("alice")))
    await proxy.restart()
    proxy.api.sends = [answer(404, {})]
    reply = await proxy.call(post("/things/1", {}, method="DELETE", headers=bearer("nobody")))
    assert len(proxy.api.writes) == 2
    assert proxy.operation(note_key(proxy)).state is State.UNKNOWN
    assert (reply.status, outcome(reply)) == (424, "refused")


# -- "no account named" is an account too ------------------------------------------------------


async def test_the_platforms_answer_is_not_replayed_to_a_connected_account() -> None:
    proxy = keyed(answer(200, OK), rules=saying(KEYED, "account: {header: Pay-Account}"))
    await proxy.call(refund())
    reply = await proxy.call(refund(headers=[("Pay-Account", "acct_b")]))
    assert len(proxy.api.writes) == 1
    assert (reply.status, code(reply)) == (422, "account-mismatch")


async def test_the_account_that_was_let_in_is_the_operations_own() -> None:
    proxy = keyed(answer(401, {}), answer(200, {"id": "alices"}), rules=KEYED_BY_USER)
    assert (await proxy.call(refund())).status == 401
    assert (await proxy.call(refund(headers=basic("alice")))).status == 200
    reply = await proxy.call(refund(headers=basic("mallory")))
    assert len(proxy.api.writes) == 2
    assert (reply.status, code(reply)) == (422, "account-mismatch")


async def test_a_business_key_of_another_credential_is_another_operation() -> None:
    proxy = keyed(answer(200, {"id": "of-a"}), answer(200, {"id": "of-b"}))
    await proxy.call(invoice("invoice-42", "run-a", headers=bearer("tenant-a")))
    reply = await proxy.call(invoice("invoice-42", "run-b", headers=bearer("tenant-b")))
    assert len(proxy.api.writes) == 2
    assert b"of-b" in body_of(reply)


async def test_a_reused_business_key_tells_another_run_nothing_of_the_first() -> None:
    proxy = keyed(answer(200, {"id": "of-a"}))
    await proxy.call(invoice("invoice-42", "run-a"))
    reply = await proxy.call(invoice("invoice-42", "run-b", 501))
    assert len(proxy.api.writes) == 1
    assert (reply.status, code(reply)) == (422, "key-reused")
    assert not any(fields(reply).get(name) for name in ("operation", "state", "external_id"))
    assert b"of-a" not in body_of(reply)


# -- each call goes out with its own credential, whole -----------------------------------------


async def test_a_call_without_a_credential_is_not_served_with_anothers() -> None:
    proxy = keyed(answer(429, {}), answer(200, OK))
    await proxy.call(refund(headers=bearer("alice")))
    await proxy.call(refund())
    assert [r.header("Authorization") for r in proxy.api.writes] == ["Bearer alice", None]


async def test_a_call_with_another_kind_of_credential_is_sent_with_its_own() -> None:
    proxy = Proxy(ruleset(QUERIED), Scripted([answer(401, {}), answer(200, OK)]))
    await proxy.call(post("/plain?api_key=sk_1234567890abcdef", {"n": 1}))
    reply = await proxy.call(plain(headers=bearer("token")))
    assert [r.target for r in proxy.api.writes] == ["/plain?api_key=sk_1234567890abcdef", "/plain"]
    assert proxy.api.writes[1].header("Authorization") == "Bearer token"
    assert reply.status == 200


async def test_a_masked_credential_never_goes_out_in_its_place() -> None:
    proxy = keyed(answer(401, {}), answer(200, OK))
    await proxy.call(post("/refunds?api_key=sk_1234567890abcdef", {"amount": 1}))
    await proxy.restart()
    await proxy.call(post("/refunds", {"amount": 1}))
    assert [r.target for r in proxy.api.writes] == [
        "/refunds?api_key=sk_1234567890abcdef",
        "/refunds",
    ]


async def test_a_masked_credential_does_not_go_out_beside_the_rules_own() -> None:
    auth = 'auth: {header: X-Auth, value: "Bearer {secret}", secret_env: X}'
    own = replace(IMPATIENT, secret_of=lambda auth: "s3cr3t")
    proxy = keyed(LOST, rules=saying(KEYED, auth), settings=own)
    await proxy.call(post("/refunds?api_key=sk_1234567890abcdef", {"amount": 1}))
    await proxy.restart()
    await proxy.recovery.settle_all()
    assert len(proxy.api.writes) == 1
    assert proxy.operation(REFUND).state is State.UNKNOWN


async def test_the_first_credential_settles_what_another_could_not() -> None:
    proxy = queried(LOST, settings=IMPATIENT, lookups=[answer(500)] * 3)
    await proxy.call(note(headers=bearer("alice")))
    await proxy.restart()
    proxy.api.lookups = [only_for(proxy, bearer("alice"))] * 90
    await proxy.call(note(headers=bearer("bob")))
    await settle_often(proxy, rounds=3)
    await proxy.call(note(headers=bearer("alice")))
    await settle_often(proxy, rounds=20)
    assert len(proxy.api.writes) == 1
    assert proxy.operation(note_key(proxy)).state is State.SUCCEEDED


async def test_a_renewed_token_settles_what_the_expired_one_could_not() -> None:
    def look(request: Request) -> Opened:
        if request.header("Authorization") == "Bearer old":
            return answer(401, {})
        return page({"id": "n1", "mark": f"{note_key(proxy)}/v1"})

    proxy = queried(LOST, settings=IMPATIENT)
    proxy.api.lookups = [look] * 90
    await proxy.call(note(headers=bearer("old")))
    await settle_often(proxy, rounds=3)
    await proxy.call(note(headers=bearer("new")))
    await settle_often(proxy, rounds=20)
    assert proxy.operation(note_key(proxy)).state is State.SUCCEEDED


async def test_a_secret_in_the_path_is_in_no_key_header_or_row_and_still_goes_out() -> None:
    proxy = Proxy(ruleset(QUERIED), Scripted([answer(200, OK)]))
    target = "/bot123456:AAHsecretsecret/sendMessage"
    reply = await proxy.call(post(target, {"text": "hi"}, host="api.telegram.org"))
    assert [r.target for r in proxy.api.writes] == [target]
    (operation,) = await proxy.ledger.operations(Query())
    stored = await proxy.ledger.request_of(operation.key)
    assert "AAHsecret" not in repr((reply.headers, operation, stored))
