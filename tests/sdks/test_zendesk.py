"""Zenpy: an Idempotency-Key and an external id; an update is found among the ticket's audits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sdks.support import LOST, Sdk, reply

HOST = "acme.zendesk.com"
TICKETS, TICKET = "/api/v2/tickets.json", "/api/v2/tickets/35.json"


def client() -> Any:
    zenpy = pytest.importorskip("zenpy")
    return zenpy.Zenpy(subdomain="acme", email="mona@acme.example", token="t1")


def open_ticket() -> Any:
    objects = pytest.importorskip("zenpy.lib.api_objects")
    audit = client().tickets.create(objects.Ticket(subject="Refund", description="Where is it?"))
    return audit.ticket.id


def answer_ticket() -> Any:
    objects = pytest.importorskip("zenpy.lib.api_objects")
    ticket = objects.Ticket(id=35, comment=objects.Comment(body="Refunded.", public=True))
    return client().tickets.update(ticket).ticket.id


def test_a_ticket_is_opened_once_under_the_operations_key(sdk: Sdk) -> None:
    api = sdk.api(HOST)
    made = {"ticket": {"id": sdk.number, "subject": "Refund"}, "audit": {"id": 1, "events": []}}
    api.on(f"POST {TICKETS}", reply(made, 201, {"x-idempotency-lookup": "miss"}))
    assert sdk.twice("open", open_ticket) == (sdk.number, sdk.number)
    [arrival] = api.came(f"POST {TICKETS}")
    key = sdk.assert_once("open", "zendesk.tickets.create_json", external_id=str(sdk.number))
    assert arrival.values("Idempotency-Key") == [key]
    assert len(json.loads(arrival.body)["ticket"]["external_id"]) == 64


def test_a_lost_ticket_is_opened_again_under_the_same_key(sdk: Sdk) -> None:
    api = sdk.api(HOST)
    made = {"ticket": {"id": sdk.number}, "audit": {"id": 1, "events": []}}
    api.on(f"POST {TICKETS}", LOST, reply(made, 201, {"x-idempotency-lookup": "hit"}))
    assert sdk.call("open", open_ticket) == sdk.number
    keys = {one.values("Idempotency-Key")[0] for one in api.came(f"POST {TICKETS}")}
    assert keys == {sdk.key("open", "zendesk.tickets.create_json")}


def test_a_lost_reply_is_found_in_the_audits(sdk: Sdk) -> None:
    api = sdk.api(HOST)
    api.on(f"PUT {TICKET}", LOST)

    def audits(_: Any) -> Any:
        sent = [json.loads(one.body)["ticket"] for one in api.came(f"PUT {TICKET}")]
        found = [
            {"id": sdk.number, "ticket_id": 35, "metadata": {"custom": one["metadata"]}}
            for one in sent
        ]
        return {"audits": found, "next_page": None}

    api.on("GET /api/v2/tickets/35/audits.json", audits)
    assert sdk.twice("reply", answer_ticket) == (35, 35)
    assert len(api.came(f"PUT {TICKET}")) == 1
    sdk.assert_reconciled("reply", "zendesk.tickets.update_json", external_id=str(sdk.number))
