"""increase: an SDK that makes a key up for every call, and lists that filter by it."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.sdks.support import LOST, Sdk

HOST = "api.increase.com"
TRANSFERS = "/ach_transfers"


def transfer() -> Any:
    increase = pytest.importorskip("increase")
    with increase.Increase(api_key="key", max_retries=0) as client:
        made = client.ach_transfers.create(
            account_id="account_1",
            amount=100,
            statement_descriptor="Rent",
            external_account_id="external_account_1",
        )
    return made.id, made.amount


def test_a_transfer_is_made_once_under_a_key_that_can_be_made_again(sdk: Sdk) -> None:
    api, made = sdk.api(HOST), f"ach_{sdk.number}"
    api.on(f"POST {TRANSFERS}", {"id": made, "amount": 100})
    first, second = sdk.twice("pay-rent", transfer)
    assert first == second == (made, 100)
    [arrival] = api.came(f"POST {TRANSFERS}")
    key = sdk.assert_once("pay-rent", "increase.ach_transfers.create", external_id=made)
    assert arrival.values("Idempotency-Key") == [key]


@pytest.mark.slow  # the key is tried first, for 7 s
def test_what_stays_lost_is_found_by_the_key(sdk: Sdk) -> None:
    api, made = sdk.api(HOST), f"ach_{sdk.number}"
    api.on(f"POST {TRANSFERS}", LOST)

    def found(arrival: Any) -> Any:
        [key] = parse_qs(urlsplit(arrival.target).query)["idempotency_key"]
        assert [key] == api.came(f"POST {TRANSFERS}")[0].values("Idempotency-Key")
        return {"data": [{"id": made, "amount": 100, "idempotency_key": key}], "next_cursor": None}

    api.on(f"GET {TRANSFERS}", found)
    first, second = sdk.twice("pay-rent", transfer)
    assert first == second == (made, 100)
    known = sdk.operation(sdk.key("pay-rent", "increase.ach_transfers.create"))
    assert (known["state"], known["how"], known["external_id"]) == ("succeeded", "found", made)
