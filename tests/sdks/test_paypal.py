"""paypal-server-sdk: a header that only some calls take, and another window for each."""

from __future__ import annotations

import pytest

from tests.sdks.support import LOST, Sdk, reply

HOST = "api-m.sandbox.paypal.com"
TOKEN = {"access_token": "A21", "token_type": "Bearer", "expires_in": 32400}
CAPTURE = "POST /v2/checkout/orders/5O1/capture"
REFUND = "POST /v2/payments/captures/2GG/refund"
SCRIPT = """
import json, sys
from paypalserversdk.configuration import Environment
from paypalserversdk.http.auth.o_auth_2 import ClientCredentialsAuthCredentials
from paypalserversdk.paypal_serversdk_client import PaypalServersdkClient
from paypalserversdk.models.refund_request import RefundRequest
from paypalserversdk.models.money import Money

credentials = ClientCredentialsAuthCredentials(o_auth_client_id="id", o_auth_client_secret="secret")
client = PaypalServersdkClient(
    client_credentials_auth_credentials=credentials, environment=Environment.SANDBOX
)
if sys.argv[1] == "capture":
    made = client.orders.capture_order({"id": "5O1", "prefer": "return=minimal"}).body
else:
    body = RefundRequest(amount=Money(currency_code="USD", value="10.00"), note_to_payer="Sorry")
    made = client.payments.refund_captured_payment({"capture_id": "2GG", "body": body}).body
print(json.dumps([made.id, made.status]))
"""


@pytest.fixture(autouse=True)
def _installed(sdk: Sdk) -> None:
    pytest.importorskip("paypalserversdk")
    sdk.api(HOST).on("POST /v1/oauth2/token", TOKEN)


def test_a_refund_is_made_once(sdk: Sdk) -> None:
    api, made = sdk.api(HOST), f"RF{sdk.number}"
    api.on(REFUND, reply({"id": made, "status": "COMPLETED"}, 201))
    first, second = sdk.twice("refund", sdk.python(SCRIPT, "refund"))
    assert first == second == [[made, "COMPLETED"]]
    [arrival] = api.came(REFUND)
    sdk.assert_once("refund", "paypal.captures.refund", external_id=made)
    [key] = arrival.values("PayPal-Request-Id")
    assert len(key) == 38
    assert len(api.came("POST /v1/oauth2/token")) == 2  # tokens are read, never replayed


@pytest.mark.slow  # two processes of an SDK that is long in starting
def test_a_capture_whose_answer_is_lost_is_asked_for_under_its_id(sdk: Sdk) -> None:
    api = sdk.api(HOST)
    api.on(CAPTURE, LOST, reply({"id": "5O1", "status": "COMPLETED"}, 201))
    first, second = sdk.twice("capture", sdk.python(SCRIPT, "capture"))
    assert first == second == [["5O1", "COMPLETED"]]
    one, other = api.came(CAPTURE)
    [key] = one.values("PayPal-Request-Id")
    assert (len(key), other.values("PayPal-Request-Id")) == (38, [key])
    assert one.body == other.body
