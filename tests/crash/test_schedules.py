"""The step-by-step schedules that broke earlier drafts, each by its id.

Judged by what the service had on the wire, then by what the caller was told.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from proxy.core.call import Policy
from proxy.core.model import Body, Request
from proxy.core.operation import Kind, State
from proxy.core.runs import next_epoch
from proxy.engine import Settings
from proxy.net.exchange import Arrival, Incomplete
from tests.crash.support import (
    IMPATIENT,
    KEYED,
    OK,
    QUERIED,
    REFUND,
    REPLAYED,
    Cut,
    failing,
    invoice,
    key_of,
    keyed,
    note,
    note_key,
    queried,
    refund,
)
from tests.fakes.scripted import LOST, REFUSED, Proxy, Scripted, answer, code, fields, ruleset
from tests.fakes.world import Opened, body_of, outcome, post

# -- C1 --------------------------------------------------------------------------------------------


async def test_c1a_a_throttled_resend_does_not_close_the_first_attempt() -> None:
    proxy = keyed(LOST, answer(429, {}), answer(429, {}), answer(200, OK, **REPLAYED))
    assert (await proxy.call(refund())).status == 200
    assert {key_of(r) for r in proxy.api.writes} == {f"{REFUND}/v1"}


@pytest.mark.parametrize("status", [401, 403, 404, 412])
async def test_c1a_a_refusal_of_the_resend_does_not_close_the_first_attempt(status: int) -> None:
    proxy = keyed(LOST, answer(status, {"error": "no"}))
    reply = await proxy.call(refund())
    assert reply.status in (409, 424)
    assert proxy.operation(REFUND).state is State.UNKNOWN
    assert proxy.ledger.get(f"{REFUND}/v2") is None
    await proxy.restart(seconds=60)
    proxy.api.sends = [answer(200, OK, **REPLAYED)]
    assert (await proxy.call(refund())).status == 200
    assert {key_of(r) for r in proxy.api.writes} == {f"{REFUND}/v1"}


async def test_c1b_a_resend_that_was_not_sent_frees_nothing() -> None:
    proxy = Proxy(ruleset(QUERIED), Scripted([LOST]))
    await proxy.call(post("/plain", {"n": 1}))
    await proxy.restart(seconds=86_400)
    reply = await proxy.call(post("/plain", {"n": 1}))
    assert reply.status == 424
    assert len(proxy.api.writes) == 1

    proxy = keyed(LOST, *[REFUSED] * 4)
    await proxy.call(refund())
    assert proxy.operation(REFUND).state is State.UNKNOWN


# -- C2 --------------------------------------------------------------------------------------------


async def test_c2_a_mismatch_on_the_first_send_is_unknown_and_never_a_new_version() -> None:
    proxy = keyed(answer(400, {"error": "idempotency_error"}))
    reply = await proxy.call(refund())
    assert (reply.status, code(reply)) == (424, "outcome-unresolved")
    reply = await proxy.call(refund())
    assert reply.status == 424
    assert len(proxy.api.writes) == 1
    assert proxy.ledger.get(f"{REFUND}/v2") is None


async def test_c2_a_call_still_running_is_asked_again_under_the_same_key() -> None:
    proxy = keyed(answer(409, {"error": "in_progress"}), answer(200, OK))
    reply = await proxy.call(refund())
    assert reply.status == 200
    assert len({key_of(r) for r in proxy.api.writes}) == 1


async def test_c2_with_a_key_an_unlisted_409_is_unknown() -> None:
    proxy = keyed(*[answer(409, {"error": "surprise"})] * 5)
    await proxy.call(refund())
    assert proxy.operation(REFUND).state is State.UNKNOWN


# -- C3 --------------------------------------------------------------------------------------------

EMPTY_LIST = {"data": [], "next": None}


async def test_c3i_nothing_found_before_the_service_can_be_done_permits_no_send() -> None:
    """The zombie: the service commits 40 s after our connection broke."""
    proxy = queried(LOST, lookups=(answer(200, EMPTY_LIST),) * 40)
    reply = await proxy.call(note())
    assert (reply.status, code(reply)) == (409, "outcome-unknown")
    for _ in range(4):
        proxy.clock.advance(10)
        await proxy.recovery.settle_all()
    assert len(proxy.api.writes) == 1
    mark = f"{note_key(proxy)}/v1"
    proxy.api.lookups = [answer(200, {"data": [{"id": "n1", "mark": mark}], "next": None})]
    proxy.clock.advance(30)
    reply = await proxy.call(note())
    assert reply.status == 201
    assert len(proxy.api.writes) == 1


async def test_c3_a_conclusive_absence_leads_to_one_more_send() -> None:
    proxy = queried(LOST, lookups=(answer(200, EMPTY_LIST),) * 60)
    await proxy.call(note())
    for _ in range(40):
        proxy.clock.advance(5)
        await proxy.recovery.settle_all()
    assert proxy.operation(note_key(proxy)).state is State.NOT_APPLIED
    assert len(proxy.api.writes) == 1
    proxy.api.sends = [answer(201, {"id": "n1"})]
    assert (await proxy.call(note())).status == 201
    assert len(proxy.api.writes) == 2


async def _unknown_after(lookup: Opened, rounds: int = 40) -> Proxy:
    proxy = queried(LOST, lookups=(lookup,) * 200)
    await proxy.call(note())
    for _ in range(rounds):
        proxy.clock.advance(30)
        await proxy.recovery.settle_all()
    assert len(proxy.api.writes) == 1
    assert proxy.operation(note_key(proxy)).state is State.UNKNOWN
    return proxy


async def test_c3ii_a_last_page_that_was_not_reached_proves_nothing() -> None:
    await _unknown_after(answer(200, {"data": [{"id": "x", "mark": "other"}], "next": "more"}))


async def test_c3iii_a_template_value_that_is_missing_proves_nothing() -> None:
    rules = QUERIED.replace("GET /notes?list={body.list}", "GET /lists/{body.other}/notes")
    proxy = Proxy(ruleset(rules), Scripted([LOST], [answer(200, EMPTY_LIST)] * 100))
    await proxy.call(note())
    for _ in range(10):
        proxy.clock.advance(60)
        await proxy.recovery.settle_all()
    assert len(proxy.api.writes) == 1
    assert proxy.operation(note_key(proxy)).state is State.UNKNOWN


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500])
async def test_c3iv_a_lookup_that_failed_proves_nothing(status: int) -> None:
    await _unknown_after(answer(status, {"error": "no"}))


async def test_c3iv_an_answer_without_a_list_proves_nothing() -> None:
    await _unknown_after(answer(200, {"message": "welcome"}))


async def test_c3vi_a_marker_that_was_not_sent_proves_nothing() -> None:
    unmarked = QUERIED.replace("    marker: {in: json, name: mark}\n", "").replace(
        '"{key}"', '"{body.text}"'
    )
    proxy = Proxy(ruleset(unmarked), Scripted([LOST], [answer(200, EMPTY_LIST)] * 100))
    await proxy.call(note())
    proxy.rules = ruleset(QUERIED)
    await proxy.restart()
    for _ in range(20):
        proxy.clock.advance(30)
        await proxy.recovery.settle_all()
    assert len(proxy.api.writes) == 1
    assert proxy.operation(note_key(proxy)).state is State.UNKNOWN


# -- C4 --------------------------------------------------------------------------------------------


async def test_c4_a_resend_uses_the_stored_key_whatever_secret_is_in_force() -> None:
    first = Settings(policy=Policy(digest_key=b"d"), secrets=(b"one",), patience=0.1)
    proxy = keyed(LOST, settings=first)
    await proxy.call(refund())
    proxy.settings = replace(first, secrets=(b"two", b"one"))
    await proxy.restart(seconds=600)
    proxy.api.sends = [answer(200, OK)]
    assert (await proxy.call(refund())).status == 200
    assert len({key_of(r) for r in proxy.api.writes}) == 1


async def test_c4_a_resend_uses_the_stored_key_after_the_rule_has_changed() -> None:
    proxy = keyed(LOST, settings=IMPATIENT)
    await proxy.call(refund())
    proxy.rules = ruleset(KEYED.replace("in: header,", "in: header, as: uuid5,"))
    await proxy.restart(seconds=600)
    proxy.api.sends = [answer(200, OK)]
    assert (await proxy.call(refund())).status == 200
    assert {key_of(r) for r in proxy.api.writes} == {f"{REFUND}/v1"}


async def test_c4_what_was_observed_without_a_key_is_not_resent_under_one() -> None:
    observing = Settings(policy=Policy(mode="observe", digest_key=b"d"))
    proxy = keyed(LOST, settings=observing)
    await proxy.call(refund())
    assert key_of(proxy.api.writes[0]) is None
    proxy.settings = Settings(policy=Policy(digest_key=b"d"))
    await proxy.restart()
    reply = await proxy.call(refund())
    assert reply.status == 424
    assert len(proxy.api.writes) == 1


@pytest.mark.parametrize("mode", ["observe", "pass"])
async def test_c4_what_was_enforced_is_honoured_in_every_mode(mode: str) -> None:
    proxy = keyed(answer(200, OK))
    await proxy.call(refund())
    proxy.settings = Settings(policy=Policy(mode=mode, digest_key=b"d"))
    await proxy.restart()
    reply = await proxy.call(refund())
    assert outcome(reply) == "replayed"
    assert len(proxy.api.writes) == 1


# -- C5 --------------------------------------------------------------------------------------------


async def test_c5_a_rule_that_is_added_later_does_not_make_a_new_operation() -> None:
    proxy = Proxy(ruleset(QUERIED), Scripted([answer(200, OK)]))
    await proxy.call(refund())
    proxy.rules = ruleset(KEYED)
    await proxy.restart()
    assert outcome(await proxy.call(refund())) == "replayed"
    assert len(proxy.api.writes) == 1


async def test_c5_a_renamed_endpoint_keeps_its_operations() -> None:
    proxy = keyed(answer(200, OK))
    await proxy.call(refund())
    renamed = KEYED.replace("refunds.create:", "refund.make:\n    was: [refunds.create]")
    proxy.rules = ruleset(renamed)
    await proxy.restart()
    assert outcome(await proxy.call(refund())) == "replayed"
    assert outcome(await proxy.call(refund(501))) == "refused"
    assert len(proxy.api.writes) == 1


async def test_c5_an_operation_id_that_is_added_later_does_not_repeat_the_call() -> None:
    proxy = keyed(answer(200, OK))
    await proxy.call(refund())
    assert outcome(await proxy.call(refund(operation_id="a"))) == "replayed"


async def test_c5_two_operation_ids_are_two_operations() -> None:
    proxy = keyed(answer(200, OK), answer(200, {"id": "re_2"}))
    await proxy.call(refund(operation_id="a"))
    reply = await proxy.call(refund(operation_id="b"))
    assert outcome(reply) == "sent"
    assert len(proxy.api.writes) == 2


async def test_c5_endpoints_of_one_name_in_two_services_do_not_meet() -> None:
    other = KEYED.replace("service: pay", "service: post").replace(
        "api.world.test", "api.other.test"
    )
    proxy = Proxy(ruleset(KEYED, other), Scripted([answer(200, OK), answer(200, {"id": "x"})]))
    await proxy.call(refund())
    reply = await proxy.call(refund(host="api.other.test"))
    assert outcome(reply) == "sent"


# -- C6 --------------------------------------------------------------------------------------------

DECLINED = {"error": "card_declined"}


async def test_c6a_a_twin_gets_the_refusal_of_its_version_and_starts_no_other() -> None:
    async def slowly(request: Request) -> Opened:
        await proxy.clock.sleep(3)
        return answer(402, DECLINED)

    proxy = keyed(slowly)
    twins = [asyncio.create_task(proxy.call(refund())) for _ in range(2)]
    first, second = await asyncio.gather(*twins)
    assert (first.status, second.status) == (402, 402)
    assert len(proxy.api.writes) == 1


async def test_c6b_a_refusal_nobody_heard_answers_the_next_call_and_only_then_comes_v2() -> None:
    proxy = keyed(answer(402, DECLINED), answer(200, OK))
    await proxy.call(refund(), heard=False)
    reply = await proxy.call(refund())
    assert (reply.status, outcome(reply)) == (402, "replayed")
    reply = await proxy.call(refund())
    assert reply.status == 200
    assert [key_of(r) for r in proxy.api.writes] == [f"{REFUND}/v1", f"{REFUND}/v2"]


async def test_c6c_where_the_api_keeps_successes_only_the_key_stays() -> None:
    rules = KEYED.replace("keeps: all", "keeps: success")
    proxy = keyed(answer(402, DECLINED), answer(200, OK), rules=rules)
    await proxy.call(refund())
    reply = await proxy.call(refund())
    assert reply.status == 200
    assert [key_of(r) for r in proxy.api.writes] == [f"{REFUND}/v1"] * 2


async def test_c6e_an_expired_credential_makes_no_new_version() -> None:
    proxy = keyed(answer(401, {"error": "expired"}), answer(200, OK))
    assert (await proxy.call(refund())).status == 401
    assert (await proxy.call(refund())).status == 200
    assert [key_of(r) for r in proxy.api.writes] == [f"{REFUND}/v1"] * 2


# -- C7 --------------------------------------------------------------------------------------------


def put(x: int, step: str) -> Arrival:
    return post("/thing", {"x": x}, step=step, method="PUT")


async def test_c7_an_older_put_is_never_sent_again_over_a_newer_one() -> None:
    quick = IMPATIENT
    proxy = Proxy(ruleset(KEYED), Scripted([LOST]), settings=quick)
    await proxy.call(put(1, "a"))
    proxy.api.sends = [answer(200, {"x": 2})]
    proxy.clock.advance(1)
    await proxy.call(put(2, "b"))
    await proxy.restart()
    await proxy.recovery.settle_all()
    reply = await proxy.call(put(1, "a"))
    assert reply.status == 424
    assert len(proxy.api.writes) == 2


async def test_c7_a_held_put_is_sent_again_by_default() -> None:
    proxy = Proxy(ruleset(KEYED), Scripted([LOST, answer(200, {"x": 1})]))
    assert (await proxy.call(put(1, "a"))).status == 200


async def test_c7_gone_is_success_only_after_an_own_undecided_delete() -> None:
    proxy = Proxy(ruleset(KEYED), Scripted([LOST, answer(404, {})]))
    reply = await proxy.call(post("/thing/1", None, method="DELETE"))
    assert reply.status == 404
    assert proxy.operation(note_key(proxy)).state is State.SUCCEEDED

    proxy = Proxy(ruleset(KEYED), Scripted([answer(404, {})]))
    await proxy.call(post("/thing/1", None, method="DELETE"))
    assert proxy.operation(note_key(proxy)).state is State.FAILED


# -- C8 --------------------------------------------------------------------------------------------


async def test_c8_the_background_sends_no_stale_order() -> None:
    proxy = keyed(LOST, settings=IMPATIENT)
    await proxy.call(refund())
    await proxy.restart(seconds=20 * 3600)
    await proxy.recovery.settle_all()
    assert len(proxy.api.writes) == 1
    proxy.api.sends = [answer(200, OK)]
    assert (await proxy.call(refund())).status == 200


# -- C9 --------------------------------------------------------------------------------------------


async def test_c9_a_business_key_names_one_operation_over_all_runs() -> None:
    proxy = keyed(answer(200, OK))
    await proxy.call(invoice("invoice-42", "run-1"))
    reply = await proxy.call(invoice("invoice-42", "run-2"))
    assert outcome(reply) == "replayed"
    assert [key_of(r) for r in proxy.api.writes] == ["invoice-42"]


async def test_c9_a_business_key_with_another_request_is_refused() -> None:
    proxy = keyed(answer(200, OK))
    await proxy.call(invoice("invoice-42", "run-1"))
    reply = await proxy.call(invoice("invoice-42", "run-2", 501))
    assert (reply.status, code(reply)) == (422, "key-reused")
    assert "body.amount" in fields(reply)["next"]
    assert len(proxy.api.writes) == 1


async def test_c9_a_key_that_an_sdk_made_up_is_replaced() -> None:
    proxy = keyed(LOST, answer(200, OK))
    await proxy.call(invoice("0b9f8c1e-7c43-4b5e-9d2a-4f1f3f1a2b3c", "run-1"))
    assert {key_of(r) for r in proxy.api.writes} == {f"{REFUND}/v1"}


# -- C10 -------------------------------------------------------------------------------------------

ACCOUNTED = KEYED.replace("key: {in", "account: {header: Pay-Account}\nkey: {in")


async def test_c10_another_account_gets_no_replay_query_or_resend() -> None:
    proxy = keyed(LOST, rules=ACCOUNTED, settings=Settings(patience=0.1))
    await proxy.call(refund(headers=[("Pay-Account", "a")]))
    reply = await proxy.call(refund(headers=[("Pay-Account", "b")]))
    assert (reply.status, code(reply)) == (422, "account-mismatch")
    proxy.api.sends = [answer(200, OK)]
    await proxy.call(refund(headers=[("Pay-Account", "a")]))
    reply = await proxy.call(refund(headers=[("Pay-Account", "b")]))
    assert code(reply) == "account-mismatch"
    assert {r.header("Pay-Account") for r in proxy.api.writes} == {"a"}


async def test_c10_without_a_word_on_accounts_a_changed_credential_is_recorded() -> None:
    proxy = keyed(answer(200, OK))
    await proxy.call(refund(headers=[("Authorization", "Bearer one")]))
    assert (
        outcome(await proxy.call(refund(headers=[("Authorization", "Bearer two")]))) == "replayed"
    )
    history = await proxy.ledger.history(f"{REFUND}/v1")
    assert Kind.CREDENTIAL_CHANGED in [e.event.kind for e in history]


async def test_c10_credentials_are_in_no_stored_byte_and_still_lent_to_the_resend() -> None:
    proxy = keyed(LOST, answer(200, OK))
    await proxy.call(refund(headers=[("Authorization", "Bearer canary-secret")]))
    assert [r.header("Authorization") for r in proxy.api.writes] == ["Bearer canary-secret"] * 2
    stored = await proxy.ledger.request_of(f"{REFUND}/v1")
    assert stored is not None
    assert "canary-secret" not in repr(stored)


async def test_c10_after_a_restart_nothing_goes_out_with_fewer_credentials() -> None:
    proxy = queried(LOST, settings=Settings(patience=0.1), lookups=(answer(500),) * 3)
    await proxy.call(note(headers=[("Authorization", "Bearer x")]))
    await proxy.restart(seconds=60)
    looked = len(proxy.api.on_wire)
    await proxy.recovery.settle_all()
    assert len(proxy.api.on_wire) == looked
    assert proxy.operation(note_key(proxy)).blocked_by == "credentials"


# -- H1 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (303, State.SUCCEEDED),
        (302, State.UNKNOWN),
        (301, State.UNKNOWN),
        (304, State.UNKNOWN),
        (307, State.FAILED),
        (308, State.FAILED),
    ],
)
async def test_h1_redirects_are_judged_and_never_followed(status: int, state: State) -> None:
    proxy = Proxy(
        ruleset(QUERIED),
        Scripted([answer(status, {}, Location="https://api.world.test/elsewhere")]),
    )
    await proxy.call(post("/plain", {"n": 1}))
    assert proxy.operation("run-1/step-1/notes.plain.create").state is state
    assert len(proxy.api.writes) == 1


# -- H2 --------------------------------------------------------------------------------------------


async def test_h2i_a_success_that_broke_off_is_unknown_where_the_body_has_the_verdict() -> None:
    rules = KEYED.replace(
        "answers:\n", "answers:\n  - {status: 200, body: {ok: false}, means: rejected}\n"
    )
    cut = Cut(200, "", (("Content-Type", "application/json"),), b'{"ok": true, "id": "re_1"}')
    proxy = keyed(cut, answer(200, {"ok": True, "id": "re_1"}, **REPLAYED), rules=rules)
    reply = await proxy.call(refund())
    assert reply.status == 200
    assert b"re_1" in body_of(reply)
    assert len(proxy.api.writes) == 2


async def test_h2ii_an_object_that_records_a_refusal_is_not_a_success() -> None:
    def found(request: Request) -> Opened:
        mark = f"{note_key(proxy)}/v1"
        return answer(200, {"data": [{"id": "n1", "mark": mark, "state": "failed"}], "next": None})

    proxy = queried(LOST, lookups=(found,))
    await proxy.call(note())
    assert proxy.operation(note_key(proxy)).state is State.FAILED


async def test_h2iii_somebody_elses_object_is_no_success() -> None:
    rules = QUERIED.replace(
        "endpoints:\n", "answers:\n  - {status: 409, means: exists}\nendpoints:\n", 1
    )
    foreign = answer(200, {"data": [{"id": "n9", "mark": "foreign"}], "next": None})
    proxy = Proxy(ruleset(rules), Scripted([answer(409, {})], [foreign] * 50))
    reply = await proxy.call(note())
    assert reply.status in (409, 424)
    assert proxy.operation(note_key(proxy)).state is State.UNKNOWN


# -- H3 --------------------------------------------------------------------------------------------


async def test_h3_a_second_message_of_one_step_is_not_swallowed() -> None:
    proxy = queried(answer(201, {"id": "n1"}))
    await proxy.call(note("Deploy started"))
    reply = await proxy.call(note("Deploy failed"))
    assert (reply.status, code(reply)) == (422, "operation-mismatch")
    assert "body.text" in fields(reply)["next"]


async def test_h3_a_rewording_is_replayed_when_nobody_had_the_answer() -> None:
    proxy = queried(answer(201, {"id": "n1"}))
    await proxy.call(note("Deploy started"), heard=False)
    reply = await proxy.call(note("Deployment has begun"))
    assert (reply.status, outcome(reply)) == (201, "replayed")
    assert len(proxy.api.writes) == 1


async def test_h3_a_rewording_is_replayed_in_a_later_epoch() -> None:
    proxy = queried(answer(201, {"id": "n1"}))
    await proxy.call(note("Deploy started"))
    await proxy.ledger.amend("run-1", next_epoch(0.0))
    reply = await proxy.call(note("Deployment has begun"))
    assert (reply.status, outcome(reply)) == (201, "replayed")
    assert len(proxy.api.writes) == 1


# -- H4 --------------------------------------------------------------------------------------------


async def test_h4_a_request_that_never_left_may_be_corrected() -> None:
    proxy = keyed(REFUSED, answer(200, OK))
    reply = await proxy.call(refund(500))
    assert (reply.status, code(reply)) == (502, "upstream-not-reached")
    reply = await proxy.call(refund(50))
    assert reply.status == 200
    assert [(key_of(r), r.body.data) for r in proxy.api.writes] == [
        (f"{REFUND}/v1", b'{"amount": 50}')
    ]


async def test_h4_a_throttled_request_that_changes_goes_out_under_another_key() -> None:
    proxy = keyed(answer(429, {}), answer(200, OK))
    assert (await proxy.call(refund(500))).status == 429
    assert (await proxy.call(refund(50))).status == 200
    assert [key_of(r) for r in proxy.api.writes] == [f"{REFUND}/v1", f"{REFUND}/v2"]


# -- H9 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "resent"), [(20 * 3600, True), (22 * 3600, False), (30 * 3600, False)]
)
async def test_h9_the_key_is_used_only_well_within_its_window(seconds: float, resent: bool) -> None:
    proxy = keyed(LOST, settings=IMPATIENT)
    await proxy.call(refund())
    await proxy.restart(seconds=seconds)
    proxy.api.sends = [answer(200, OK)]
    reply = await proxy.call(refund())
    assert (reply.status == 200) is resent
    assert len(proxy.api.writes) == (2 if resent else 1)


async def test_h9_a_clock_set_back_gives_no_time_back() -> None:
    proxy = keyed(LOST, settings=IMPATIENT)
    await proxy.call(refund())
    proxy.clock.step(-86_400)
    await proxy.restart(seconds=23 * 3600)
    proxy.clock.step(86_400)
    proxy.api.sends = [answer(200, OK)]
    assert (await proxy.call(refund())).status == 424
    assert len(proxy.api.writes) == 1


async def test_h9_an_unstated_window_holds_only_within_the_held_call() -> None:
    rules = KEYED.replace("valid_for: 24h", "valid_for: unstated")
    proxy = keyed(LOST, answer(200, OK), rules=rules)
    assert (await proxy.call(refund())).status == 200

    proxy = keyed(LOST, rules=rules, settings=Settings(patience=0.1))
    await proxy.call(refund())
    assert (await proxy.call(refund())).status == 424
    assert len(proxy.api.writes) == 1


# -- M ---------------------------------------------------------------------------------------------


async def test_m2_a_changed_body_is_never_answered_from_the_ledger() -> None:
    proxy = keyed(answer(200, OK))
    await proxy.call(refund(500))
    reply = await proxy.call(refund(501))
    assert (reply.status, code(reply)) == (422, "operation-mismatch")
    assert fields(reply)["external_id"] == "re_1"
    assert "body.amount" in fields(reply)["next"]


async def test_m3_a_body_that_broke_off_leaves_no_intent() -> None:
    class Broken:
        gone = True

        async def read(self, limit: int) -> Body:
            raise Incomplete

        def stream(self) -> Any:
            raise Incomplete

    proxy = keyed()
    arrival = refund()
    arrival.inlet = Broken()
    reply = await proxy.call(arrival)
    assert (reply.status, code(reply)) == (400, "bad-request")
    assert proxy.ledger.get(f"{REFUND}/v1") is None


@pytest.mark.parametrize(
    ("method", "headers", "recorded"),
    [
        ("GET", (), False),
        ("GET", (("X-HTTP-Method-Override", "DELETE"),), True),
        ("POST", (), True),
        ("PATCH", (), True),
        ("DELETE", (), True),
        ("REPORT", (), True),
    ],
)
async def test_m5_every_method_but_the_safe_ones_is_a_write(
    method: str, headers: tuple[tuple[str, str], ...], recorded: bool
) -> None:
    api = Scripted([answer(200, {})], [answer(200, {})])
    proxy = Proxy(ruleset(KEYED), api)
    await proxy.call(post("/other", {"a": 1}, method=method, headers=headers))
    assert bool(proxy.ledger._operations) is recorded  # type: ignore[attr-defined]


async def test_m9_twins_share_a_throttle() -> None:
    async def slowly(request: Request) -> Opened:
        await proxy.clock.sleep(3)
        return answer(429, {"error": "slow down"}, Retry_After="3")

    proxy = keyed(slowly)
    twins = [asyncio.create_task(proxy.call(refund())) for _ in range(5)]
    replies = await asyncio.gather(*twins)
    assert {r.status for r in replies} == {429}
    assert len(proxy.api.writes) == 1


async def test_m10_a_failed_intent_that_landed_was_not_sent() -> None:
    proxy = keyed()
    ledger = failing(proxy)
    ledger.fail, ledger.landed = 1, True
    reply = await proxy.call(refund())
    assert (reply.status, code(reply)) == (503, "ledger-unavailable")
    assert proxy.api.writes == []
    proxy.api.sends = [answer(200, OK)]
    assert (await proxy.call(refund())).status == 200
    assert len(proxy.api.writes) == 1
    kinds = [e.event.kind for e in await ledger.history(f"{REFUND}/v1")]
    assert Kind.ATTEMPT_NOT_SENT in kinds


async def test_a_ledger_that_fails_before_the_send_sends_nothing() -> None:
    proxy = keyed()
    ledger = failing(proxy)
    ledger.fail = 1
    reply = await proxy.call(refund())
    assert (reply.status, code(reply)) == (503, "ledger-unavailable")
    assert proxy.api.writes == []


async def test_a_ledger_that_fails_after_the_send_gives_the_true_answer_and_owes_the_record() -> (
    None
):
    proxy = keyed()
    ledger = failing(proxy)

    def breaks(request: Request) -> Opened:
        ledger.fail = 1
        return answer(200, OK)

    proxy.api.sends = [breaks]
    reply = await proxy.call(refund())
    assert (reply.status, outcome(reply)) == (200, "sent")
    assert proxy.operation(REFUND).state is State.IN_FLIGHT
    reply = await proxy.call(refund())
    assert reply.status == 200
    assert len(proxy.api.writes) == 1
    assert proxy.operation(REFUND).state is State.SUCCEEDED


async def test_a_record_still_owed_when_the_process_ends_is_an_unknown_operation() -> None:
    proxy = keyed()
    ledger = failing(proxy)

    def breaks(request: Request) -> Opened:
        ledger.fail = 1
        return answer(200, OK)

    proxy.api.sends = [breaks]
    await proxy.call(refund())
    await proxy.restart()
    assert proxy.operation(REFUND).state is State.UNKNOWN
    proxy.api.sends = [answer(200, OK, **REPLAYED)]
    reply = await proxy.call(refund())
    assert reply.status == 200
    assert len({key_of(r) for r in proxy.api.writes}) == 1
