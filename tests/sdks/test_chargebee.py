"""chargebee: a header with a window of half an hour, and an id that the caller may choose."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.sdks.support import LOST, Sdk, reply

HOST = "acme-test.chargebee.com"
CUSTOMERS = "POST /api/v2/customers"


def create() -> Any:
    chargebee = pytest.importorskip("chargebee")
    chargebee.Chargebee.ca_cert_path = os.environ["SSL_CERT_FILE"]  # it brings roots of its own
    client = chargebee.Chargebee(api_key="key", site="acme-test")
    answer = client.Customer.create({"first_name": "Ada", "email": "ada@example.test"})
    return answer.customer.id, answer.customer.first_name


def made_of(arrival: Any) -> Any:
    return {"customer": {"id": arrival.form()["id"][0], "first_name": "Ada"}}


def test_a_customer_is_created_once_under_an_id_of_ours(sdk: Sdk) -> None:
    api = sdk.api(HOST)
    api.on(CUSTOMERS, made_of)
    first, second = sdk.twice("sign-up", create)
    [arrival] = api.came(CUSTOMERS)
    assert first == second == (arrival.form()["id"][0], "Ada")
    key = sdk.assert_once("sign-up", "chargebee.customers.create", external_id=first[0])
    assert len(first[0]) == 50
    assert len(arrival.values("chargebee-idempotency-key")) == 1
    assert arrival.form()["email"] == ["ada@example.test"], key


def test_an_id_that_is_taken_is_our_own_customer(sdk: Sdk) -> None:
    api = sdk.api(HOST)
    taken = {"api_error_code": "duplicate_entry", "param": "id", "message": "already exists"}
    api.on(CUSTOMERS, LOST, reply(taken, 400))
    api.on("GET /api/v2/customers/*", lambda _: made_of(api.came(CUSTOMERS)[0]))
    first, second = sdk.twice("sign-up", create)
    assert first == second == (api.came(CUSTOMERS)[0].form()["id"][0], "Ada")
    known = sdk.operation(sdk.key("sign-up", "chargebee.customers.create"))
    assert (known["state"], known["how"]) == ("succeeded", "found")
