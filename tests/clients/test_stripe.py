"""stripe-python, with the shipped rule file: its CA setting, its made-up keys, its retries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
import stripe
from stripe import _api_requestor as requestor

from tests.clients.conftest import Enter
from tests.clients.upstream import Arrival
from tests.clients.world import WAYS, Seen, World, seen

TARGET = "/v1/refunds"


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The module keeps one client, with its connections: a new one for each test."""
    monkeypatch.setattr(stripe, "api_key", "sk_test_c4n4ry5ecret")
    monkeypatch.setattr(stripe, "default_http_client", None)
    monkeypatch.setattr(requestor, "_generate_idempotency_key", _made_up)
    yield
    if stripe.default_http_client is not None:
        stripe.default_http_client.close()


_generate = requestor._generate_idempotency_key


def _made_up() -> str:
    """The SDK's own: 16 random bytes. One in nine happens to be a UUID of a version that may be a
    business key, and is kept as one; not in these tests."""
    return next(key for key in iter(_generate, None) if UUID(key).version in (None, 4))


def lead(monkeypatch: pytest.MonkeyPatch, base: str, environ: dict[str, str]) -> None:
    monkeypatch.setattr(stripe, "api_base", base)
    if "SSL_CERT_FILE" in environ:  # what docs/clients.md says to do
        monkeypatch.setattr(stripe, "ca_bundle_path", environ["SSL_CERT_FILE"])


def refund(charge: str, **more: Any) -> Seen:
    made = stripe.Refund.create(charge=charge, amount=500, **more)
    answer = made.last_response
    assert answer is not None
    return seen(answer.code, answer.headers, answer.body.encode())


def arrived(w: World, charge: str) -> list[Arrival]:
    return [one for one in w.upstream.came(TARGET) if one.form().get("charge") == [charge]]


@pytest.mark.parametrize("way", WAYS)
def test_a_key_the_sdk_made_up_is_replaced_by_the_operations(
    w: World, enter: Enter, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    run, charge = f"stripe-{way}", f"ch_{way}"
    route = w.way(way, run, "issue-refund", "stripe")
    lead(monkeypatch, enter(route), dict(route.environ))
    first, second = refund(charge), refund(charge)
    assert (second.status, second.body) == (first.status, first.body)
    assert [first.outcome, second.outcome] == ["sent", "replayed"]
    assert second.headers["idempotent-replayed"] == "true"
    key = f"{run}/issue-refund/stripe.refunds.create/v1"
    [arrival] = arrived(w, charge)
    assert arrival.values("Idempotency-Key") == [key]
    assert arrival.form()["metadata[operation_key]"] == [key]
    assert arrival.values("Authorization") == ["Bearer sk_test_c4n4ry5ecret"]
    [operation] = w.operations(run)
    assert (operation["key"], operation["state"]) == (key, "succeeded")
    assert operation["external_id"].startswith("re_")


def test_the_client_object_through_the_gateway(w: World) -> None:
    """StripeClient takes no CA setting: the gateway needs none."""
    base = w.way("gateway", "stripe-client", "issue-refund", "stripe").base
    for _ in range(2):
        client = stripe.StripeClient("sk_test_c4n4ry5ecret", base_addresses={"api": base})
        made = client.v1.refunds.create({"charge": "ch_client", "amount": 500})
        assert made.amount == 500
    assert len(arrived(w, "ch_client")) == 1


def test_a_business_key_is_kept(w: World, enter: Enter, monkeypatch: pytest.MonkeyPatch) -> None:
    route = w.way("tunnel", "stripe-business", "issue-refund", "stripe")
    lead(monkeypatch, enter(route), dict(route.environ))
    outcomes = [refund("ch_own", idempotency_key="invoice-42").outcome for _ in range(2)]
    assert outcomes == ["sent", "replayed"]
    [arrival] = arrived(w, "ch_own")
    assert arrival.values("Idempotency-Key") == ["invoice-42"]


def test_a_lost_answer_is_settled_under_the_same_key_before_the_sdk_notices(
    w: World, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = w.way("tunnel", "stripe-lost", "issue-refund", "stripe")
    lead(monkeypatch, enter(route), dict(route.environ))
    w.upstream.lose(TARGET)
    answer = refund("ch_lost")
    assert answer.status == 200
    keys = [arrival.values("Idempotency-Key") for arrival in arrived(w, "ch_lost")]
    assert keys == [["stripe-lost/issue-refund/stripe.refunds.create/v1"]] * 2
    effects = [one for one in w.upstream.done(TARGET) if one.form()["charge"] == ["ch_lost"]]
    assert len(effects) == 1


def test_drift_is_an_error_the_sdk_raises_once_and_names_the_field(
    w: World, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = w.way("tunnel", "stripe-drift", "issue-refund", "stripe")
    lead(monkeypatch, enter(route), dict(route.environ))
    monkeypatch.setattr(stripe, "max_network_retries", 2)
    refund("ch_first")
    refused = w.refusals()
    with pytest.raises(stripe.StripeError, match="repeat the earlier values") as caught:
        refund("ch_second")
    assert caught.value.http_status == 422
    assert "charge" in str(caught.value.http_body)
    assert w.refusals() == refused + 1
    assert arrived(w, "ch_second") == []
