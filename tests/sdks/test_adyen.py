"""Adyen's library: a header that it sends only if told to, and refusals that are a 200."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sdks.support import LOST, Sdk, reply

HOST = "checkout-test.adyen.com"
PAYMENTS, REFUNDS = "POST /v72/payments", "POST /v72/payments/P1/refunds"
AMOUNT = {"currency": "EUR", "value": 1000}


def checkout() -> Any:
    adyen = pytest.importorskip("Adyen").Adyen()
    adyen.client.xapikey = "key"
    adyen.client.platform = "test"
    return adyen.checkout


def pay() -> Any:
    return checkout().payments_api.payments(
        {
            "merchantAccount": "M",
            "reference": "order-7",
            "amount": AMOUNT,
            "paymentMethod": {"type": "scheme"},
        }
    )


def refund() -> Any:
    body = {"merchantAccount": "M", "amount": AMOUNT}
    api = checkout().modifications_api
    return api.refund_captured_payment(body, paymentPspReference="P1")


def test_a_refund_is_made_once(sdk: Sdk) -> None:
    api, made = sdk.api(HOST), f"R{sdk.number}"
    api.on(REFUNDS, reply({"pspReference": made, "status": "received"}, 201))
    first, second = sdk.twice("refund", refund)
    assert first.message == second.message == {"pspReference": made, "status": "received"}
    [arrival] = api.came(REFUNDS)
    sdk.assert_once("refund", "adyen.refunds.create", external_id=made)
    [key] = arrival.values("Idempotency-Key")
    assert len(key) <= 64


def test_a_payment_at_work_is_waited_for_under_one_key(sdk: Sdk) -> None:
    api, made = sdk.api(HOST), f"P{sdk.number}"
    busy = reply({"status": 422, "errorCode": "704", "message": "request in progress"}, 422)
    api.on(PAYMENTS, LOST, busy, {"pspReference": made, "resultCode": "Authorised"})
    first, second = sdk.twice("pay", pay)
    assert first.message == second.message == {"pspReference": made, "resultCode": "Authorised"}
    keys = {arrival.values("Idempotency-Key")[0] for arrival in api.came(PAYMENTS)}
    assert (len(keys), len(api.came(PAYMENTS))) == (1, 3)


def test_a_refused_payment_is_told_and_tried_again_under_a_new_key(sdk: Sdk) -> None:
    api = sdk.api(HOST)
    api.on(PAYMENTS, {"pspReference": "P9", "resultCode": "Refused"})
    assert sdk.call("pay", pay).message["resultCode"] == "Refused"
    assert sdk.operation(sdk.key("pay", "adyen.payments.create"))["state"] == "failed"
    sdk.call("pay", pay)
    one, other = api.came(PAYMENTS)
    assert one.values("Idempotency-Key") != other.values("Idempotency-Key")
