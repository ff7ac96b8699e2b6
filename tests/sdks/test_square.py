"""squareup: a key in the body, which the SDK demands and its users draw; payments are found by
their reference, refunds by payment and amount."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.sdks.support import LOST, Api, Sdk, reply

HOST, PAYMENTS, REFUNDS = "connect.squareup.com", "/v2/payments", "/v2/refunds"


@contextmanager
def client() -> Iterator[Any]:
    square = pytest.importorskip("square")
    with httpx.Client(timeout=60) as http:
        yield square.Square(token="EAAA", httpx_client=http)


def pay() -> Any:
    with client() as square:
        answer = square.payments.create(
            source_id="cnon:card-nonce-ok",
            idempotency_key=str(uuid.uuid4()),
            amount_money={"amount": 1000, "currency": "USD"},
        )
    return answer.payment.id, answer.payment.status


def refund() -> Any:
    with client() as square:
        answer = square.refunds.refund_payment(
            idempotency_key=str(uuid.uuid4()),
            amount_money={"amount": 500, "currency": "USD"},
            payment_id="R2B",
            reason="Broken",
        )
    return answer.refund.id, answer.refund.status


def sent(api: Api, request: str) -> Any:
    [arrival] = api.came(request)
    return json.loads(arrival.body)


def test_a_payment_is_made_once_though_each_call_draws_a_key(sdk: Sdk) -> None:
    api, made = sdk.api(HOST), f"pay-{sdk.number}"
    api.on(f"POST {PAYMENTS}", {"payment": {"id": made, "status": "COMPLETED"}})
    first, second = sdk.twice("pay", pay)
    assert first == second == (made, "COMPLETED")
    body = sent(api, f"POST {PAYMENTS}")
    sdk.assert_once("pay", "square.payments.create", external_id=made)
    assert (len(body["idempotency_key"]), len(body["reference_id"])) == (45, 40)
    assert body["idempotency_key"].startswith(body["reference_id"])  # digests of one operation
    assert body["amount_money"] == {"amount": 1000, "currency": "USD"}


def test_a_lost_payment_is_asked_for_again_under_its_key(sdk: Sdk) -> None:
    api, made = sdk.api(HOST), f"pay-{sdk.number}"
    api.on(f"POST {PAYMENTS}", LOST, {"payment": {"id": made, "status": "COMPLETED"}})
    first, second = sdk.twice("pay", pay)
    assert first == second == (made, "COMPLETED")
    one, other = api.came(f"POST {PAYMENTS}")
    assert one.body == other.body  # so Square knows it again


@pytest.mark.slow  # the key is tried first, for 7 s
@pytest.mark.parametrize(
    ("path", "listed", "call", "operation"),
    [
        (PAYMENTS, "payments", pay, "square.payments.create"),
        (REFUNDS, "refunds", refund, "square.refunds.create"),
    ],
)
def test_what_stays_lost_is_found_in_the_list(
    sdk: Sdk, path: str, listed: str, call: Any, operation: str
) -> None:
    api, made = sdk.api(HOST), f"found-{sdk.number}"

    def page(_: Any) -> Any:
        body = json.loads(api.came(f"POST {path}")[0].body)
        own = {"id": made, "status": "COMPLETED", **body, "source_id": None}
        return {listed: [{**own, "id": "other", "reference_id": "7", "payment_id": "R7"}, own]}

    api.on(f"POST {path}", LOST)
    api.on(f"GET {path}", page)
    first, second = sdk.twice("step", call)
    assert first == second == (made, "COMPLETED")
    known = sdk.operation(sdk.key("step", operation))
    assert (known["state"], known["how"], known["external_id"]) == ("succeeded", "found", made)
    assert len({one.body for one in api.came(f"POST {path}")}) == 1


def test_a_declined_card_is_the_sdks_own_error(sdk: Sdk) -> None:
    square_error = pytest.importorskip("square.core.api_error").ApiError
    api = sdk.api(HOST)
    declined = {"errors": [{"category": "PAYMENT_METHOD_ERROR", "code": "GENERIC_DECLINE"}]}
    api.on(f"POST {PAYMENTS}", reply(declined, 400))
    with pytest.raises(square_error) as raised:
        sdk.call("pay", pay)
    assert raised.value.status_code == 400
    assert sdk.operation(sdk.key("pay", "square.payments.create"))["state"] == "failed"
