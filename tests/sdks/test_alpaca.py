"""alpaca-py: an order's own id in the body; a second order of that id is refused, and the first one
is read by it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sdks.support import LOST, Api, Sdk, reply

HOST = "paper-api.alpaca.markets"
ORDERS, BY_ID = "POST /v2/orders", "GET /v2/orders:by_client_order_id"
SCRIPT = """
import json
from alpaca.trading.client import TradingClient
from alpaca.trading.enums import OrderSide, TimeInForce
from alpaca.trading.requests import MarketOrderRequest
client = TradingClient("key", "secret", paper=True, raw_data=True)
order = MarketOrderRequest(
    symbol="AAPL", qty=1, side=OrderSide.BUY, time_in_force=TimeInForce.DAY
)
print(json.dumps(client.submit_order(order)["id"]))
"""


@pytest.fixture(autouse=True)
def _installed() -> None:
    pytest.importorskip("alpaca")


def order(api: Api, made: str) -> Any:
    sent = json.loads(api.came(ORDERS)[0].body)
    return {"id": made, "status": "accepted", "client_order_id": sent["client_order_id"]}


def test_an_order_is_placed_once(sdk: Sdk) -> None:
    api, made = sdk.api(HOST), f"o-{sdk.number}"
    api.on(ORDERS, lambda _: order(api, made))
    first, second = sdk.twice("buy", sdk.python(SCRIPT))
    assert first == second == [made]
    [arrival] = api.came(ORDERS)
    sdk.assert_once("buy", "alpaca.orders.create", external_id=made)
    assert len(json.loads(arrival.body)["client_order_id"]) <= 48


@pytest.mark.slow  # two processes of an SDK that is long in starting
def test_an_order_whose_answer_was_lost_is_found_by_its_id(sdk: Sdk) -> None:
    api, made = sdk.api(HOST), f"o-{sdk.number}"
    taken = {"code": 40010001, "message": "client_order_id must be unique"}
    api.on(ORDERS, LOST, reply(taken, 422))
    api.on(BY_ID, lambda _: order(api, made))
    first, second = sdk.twice("buy", sdk.python(SCRIPT))
    assert first == second == [made]
    asked = api.came(BY_ID)[0]
    sent = json.loads(api.came(ORDERS)[0].body)["client_order_id"]
    assert asked.target.endswith(f"?client_order_id={sent}")
    assert asked.values("APCA-API-KEY-ID") == ["key"]
