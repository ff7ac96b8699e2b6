"""@microsoft/microsoft-graph-client: extended properties, transactionId, drafts."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.clients.words import Answer, Arrival
from tests.sdks.support import LOST, Sdk, needs_node, reply

pytestmark = needs_node("@microsoft/microsoft-graph-client")

HOST = "graph.microsoft.com"
NAME = "String {00020329-0000-0000-C000-000000000046} Name onceproxy"
SCRIPT = """
const { Client } = await import('@microsoft/microsoft-graph-client')
const client = Client.init({ authProvider: (done) => done(null, 'eyJ.c4n4ry') })
const answer = %s
console.log(JSON.stringify(answer ?? null))
"""
SEND = """await client.api('/me/sendMail').post({ message: { subject: 'Refund',
  body: { contentType: 'Text', content: 'Done.' },
  toRecipients: [{ emailAddress: { address: 'a@example.test' } }] } })"""
PLAN = """await client.api('/me/events').post({ subject: 'Review' })"""
REPLY = """await client.api('/me/messages/AAMk1/reply').post({ comment: 'Done.' })"""
COMMIT = """await client.api('/me/messages/AAkA1/send').post({})"""


def body_of(arrival: Arrival) -> Any:
    return json.loads(arrival.body)


def filter_of(arrival: Arrival) -> str:
    [asked] = parse_qs(urlsplit(arrival.target).query)["$filter"]
    return asked


def wanted(value: str) -> str:
    return f"singleValueExtendedProperties/Any(ep: ep/id eq '{NAME}' and ep/value eq '{value}')"


def test_a_mail_is_sent_once_and_found_by_its_property(sdk: Sdk) -> None:
    api, made = sdk.api(HOST), f"AAMk{sdk.number}"
    api.on("POST /v1.0/me/sendMail", LOST, Answer(202, {}, b""))
    api.on("GET /v1.0/me/mailFolders/sentitems/messages", {"value": [{"id": made}]})
    first, second = sdk.twice("mail", sdk.node(SCRIPT % SEND))
    [arrival] = api.came("POST /v1.0/me/sendMail")
    assert first == second == sdk.call("another", sdk.node(SCRIPT % SEND))  # as if answered by it
    [mark] = body_of(arrival)["message"]["singleValueExtendedProperties"]
    assert (mark["id"], len(mark["value"])) == (NAME, 64)
    [look] = api.came("GET /v1.0/me/mailFolders/sentitems/messages")
    assert filter_of(look) == wanted(mark["value"])
    assert look.values("Authorization") == ["Bearer eyJ.c4n4ry"]
    sdk.assert_reconciled("mail", "microsoft-graph.mail.send", external_id=made)


def test_an_event_carries_a_transaction_and_is_made_once(sdk: Sdk) -> None:
    api, made = sdk.api(HOST), f"AAMk{sdk.number}"
    api.on("POST /v1.0/me/events", reply({"id": made, "subject": "Review"}, 201))
    first, second = sdk.twice("plan", sdk.node(SCRIPT % PLAN))
    assert first == second == [{"id": made, "subject": "Review"}]
    [arrival] = api.came("POST /v1.0/me/events")
    assert len(body_of(arrival)["transactionId"]) == 36
    sdk.assert_once("plan", "microsoft-graph.events.create", external_id=made)


def test_a_draft_whose_sending_was_lost_is_found_by_its_message_id(sdk: Sdk) -> None:
    """It has another id in Sent Items; its Message-ID was asked for while it was a draft."""
    api, made = sdk.api(HOST), f"AAMk{sdk.number}"
    api.on("POST /v1.0/me/messages/AAkA1/send", LOST)
    api.on("GET /v1.0/me/messages/AAkA1", {"id": "AAkA1", "internetMessageId": f"<{made}@a.test>"})
    api.on("GET /v1.0/me/messages", {"value": [{"id": made, "isDraft": False}]})
    first, second = sdk.twice("commit", sdk.node(SCRIPT % COMMIT))
    assert first == second
    assert len(api.came("POST /v1.0/me/messages/AAkA1/send")) == 1
    [look] = api.came("GET /v1.0/me/messages")
    assert filter_of(look) == f"internetMessageId eq '<{made}@a.test>'"
    sdk.assert_reconciled("commit", "microsoft-graph.drafts.send", external_id=made)


@pytest.mark.slow
def test_a_lost_reply_is_found_in_its_conversation(sdk: Sdk) -> None:
    api, made = sdk.api(HOST), f"AAMk{sdk.number}"
    sent = {"id": made, "bodyPreview": "Done. From: Ada", "sentDateTime": "2999-01-01T00:00:00Z"}
    api.on("POST /v1.0/me/messages/AAMk1/reply", LOST)
    api.on("GET /v1.0/me/messages/AAMk1", {"id": "AAMk1", "conversationId": "AAQk1"})
    api.on("GET /v1.0/me/mailFolders/sentitems/messages", {"value": [sent]})
    first, second = sdk.twice("reply", sdk.node(SCRIPT % REPLY))
    assert first == second
    assert len(api.came("POST /v1.0/me/messages/AAMk1/reply")) == 1
    [look] = api.came("GET /v1.0/me/mailFolders/sentitems/messages")
    assert filter_of(look) == "conversationId eq 'AAQk1'"
    sdk.assert_reconciled("reply", "microsoft-graph.messages.reply", external_id=made)
