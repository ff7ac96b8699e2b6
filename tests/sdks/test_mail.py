"""Resend, SendGrid, Postmark and Mailgun: their own clients, for Python and Node."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from proxy.core.multipart import read_parts
from tests.clients.words import Arrival
from tests.sdks.support import LOST, Sdk, needs_node, reply


def body(arrival: Arrival) -> Any:
    return json.loads(arrival.body)


# Resend: a key


def resend_mail() -> Any:
    resend = pytest.importorskip("resend")
    resend.api_key = "re_1"
    sent = resend.Emails.send(
        {"from": "a@acme.test", "to": ["bob@example.test"], "subject": "Refund", "text": "Done"}
    )
    return sent["id"]


def test_resend_gets_a_key(sdk: Sdk) -> None:
    api, made = sdk.api("api.resend.com"), f"mail-{sdk.number}"
    api.on("POST /emails", {"id": made})
    assert sdk.twice("mail", resend_mail) == (made, made)
    [arrival] = api.came("POST /emails")
    key = sdk.assert_once("mail", "resend.emails.send", external_id=made)
    assert arrival.values("Idempotency-Key") == [key]


def test_resend_is_sent_again_under_the_same_key(sdk: Sdk) -> None:
    """The first answer is lost; under a key that Resend honours the proxy sends again itself."""
    api, made = sdk.api("api.resend.com"), f"mail-{sdk.number}"
    api.on("POST /emails", LOST, {"id": made})
    assert sdk.call("mail", resend_mail) == made
    first, second = api.came("POST /emails")
    assert first.values("Idempotency-Key") == second.values("Idempotency-Key")
    assert first.body == second.body


RESEND_NODE = """
const { Resend } = await import('resend')
const { data, error } = await new Resend('re_1').emails.send(
  { from: 'a@acme.test', to: ['bob@example.test'], subject: 'Refund', html: '<p>Done</p>' })
console.log(JSON.stringify([data && data.id, error]))
"""


@needs_node("resend")
def test_resend_for_node_reads_a_refusal(sdk: Sdk) -> None:
    """Another text in the same step, in the same run: the SDK shows what to do next."""
    api, made = sdk.api("api.resend.com"), f"mail-{sdk.number}"
    api.on("POST /emails", {"id": made})
    assert sdk.call("mail", sdk.node(RESEND_NODE)) == [[made, None]]
    other = RESEND_NODE.replace("bob@", "eve@")
    [[nothing, error]] = sdk.call("mail", sdk.node(other))
    assert nothing is None
    assert error["name"] == "onceproxy_operation-mismatch"
    assert "same intent" in error["message"].lower() or "repeat" in error["message"].lower()
    assert len(api.came("POST /emails")) == 1


# SendGrid: a mark that goes along, and that the Email Activity is queried for


def sendgrid_mail() -> Any:
    sendgrid = pytest.importorskip("sendgrid")
    mail = sendgrid.helpers.mail.Mail("a@acme.test", "bob@example.test", "Refund", "Done")
    return sendgrid.SendGridAPIClient("SG.1").send(mail).status_code


def test_sendgrid_carries_a_mark(sdk: Sdk) -> None:
    api, made = sdk.api("api.sendgrid.com"), f"mail-{sdk.number}"
    api.on("POST /v3/mail/send", reply(None, 202, {"X-Message-Id": made}))
    assert sdk.twice("mail", sendgrid_mail) == (202, 202)
    [arrival] = api.came("POST /v3/mail/send")
    sdk.assert_once("mail", "sendgrid.mail.send", external_id=made)
    assert len(body(arrival)["custom_args"]["operation_key"]) == 64


def test_sendgrid_is_found_by_its_mark(sdk: Sdk) -> None:
    api = sdk.api("api.sendgrid.com")
    api.on("POST /v3/mail/send", LOST)
    api.on("GET /v3/messages", {"messages": [{"msg_id": f"mail-{sdk.number}.filter0001"}]})
    assert sdk.twice("mail", sendgrid_mail) == (202, 202)
    [arrival] = api.came("POST /v3/mail/send")
    sdk.assert_reconciled("mail", "sendgrid.mail.send")
    mark = body(arrival)["custom_args"]["operation_key"]
    query = parse_qs(urlsplit(api.came("GET /v3/messages")[0].target).query)["query"]
    assert query == [f"(unique_args['operation_key']=\"{mark}\")"]


# Postmark: a mark that the search filters by

POSTMARK = """
const postmark = await import('postmark')
const client = new postmark.ServerClient('t1')
const one = { From: 'a@acme.test', To: 'bob@example.test', Subject: 'Refund', TextBody: 'Done' }
const two = { ...one, To: 'eve@example.test' }
const batch = process.argv[1] === 'batch'
const answer = batch ? await client.sendEmailBatch([one, two]) : await client.sendEmail(one)
console.log(JSON.stringify([answer].flat().map((each) => each.MessageID)))
"""


@needs_node("postmark")
def test_postmark_carries_a_mark(sdk: Sdk) -> None:
    api, made = sdk.api("api.postmarkapp.com"), f"mail-{sdk.number}"
    api.on("POST /email", {"To": "bob@example.test", "MessageID": made, "ErrorCode": 0})
    first, second = sdk.twice("mail", sdk.node(POSTMARK))
    assert first == second == [[made]]
    [arrival] = api.came("POST /email")
    sdk.assert_once("mail", "postmark.emails.send", external_id=made)
    assert len(body(arrival)["Metadata"]["operation_key"]) == 64


@needs_node("postmark")
def test_postmark_is_found_by_its_mark(sdk: Sdk) -> None:
    api = sdk.api("api.postmarkapp.com")

    def found(arrival: Arrival) -> Any:
        sent = [one for each in api.came("POST /email/batch") for one in body(each)]
        marks = [one["Metadata"]["operation_key"] for one in sent]
        [place] = [
            n for n, mark in enumerate(marks) if f"metadata_operation_key={mark}" in arrival.target
        ]
        return {"TotalCount": 1, "Messages": [{"MessageID": f"mail-{sdk.number}-{place}"}]}

    api.on("POST /email/batch", LOST)
    api.on("GET /messages/outbound", found)
    first, second = sdk.twice("mail", sdk.node(POSTMARK, "batch"))
    assert first == second == [[f"mail-{sdk.number}-0", f"mail-{sdk.number}-1"]]
    assert len(api.came("POST /email/batch")) == 1
    sdk.assert_reconciled("mail", "postmark.emails.batch")


# Mailgun: a variable that each event gives back


def mailgun_mail() -> Any:
    mailgun = pytest.importorskip("mailgun.client")
    data = {"from": "a@acme.test", "to": "bob@example.test", "subject": "Refund", "text": "Done"}
    with mailgun.Client(auth=("api", "key-1")) as client:
        return client.messages.create(data=data, domain="mg.acme.test").json()["id"]


def test_mailgun_carries_a_variable(sdk: Sdk) -> None:
    api, made = sdk.api("api.mailgun.net"), f"<{sdk.number}@mg.acme.test>"
    api.on("POST /v3/mg.acme.test/messages", {"id": made, "message": "Queued. Thank you."})
    assert sdk.twice("mail", mailgun_mail) == (made, made)
    [arrival] = api.came("POST /v3/mg.acme.test/messages")
    sdk.assert_once("mail", "mailgun.messages.send", external_id=made)
    assert len(arrival.form()["v:operation_key"][0]) == 64


MAILGUN = """
const { default: Mailgun } = await import('mailgun.js')
const client = new Mailgun(FormData).client({ username: 'api', key: 'key-1' })
const made = await client.messages.create('mg.acme.test', { from: 'a@acme.test',
  to: ['bob@example.test'], subject: 'Refund', text: 'Done',
  attachment: { data: Buffer.from([0, 255, 13, 10]), filename: 'a.bin' } })
console.log(JSON.stringify(made.id))
"""


@needs_node("mailgun.js")
def test_mailgun_for_node_sends_parts_and_they_carry_the_variable(sdk: Sdk) -> None:
    """Another boundary each time: still the same call."""
    api, made = sdk.api("api.mailgun.net"), f"<{sdk.number}@mg.acme.test>"
    api.on("POST /v3/mg.acme.test/messages", {"id": made, "message": "Queued. Thank you."})
    first, second = sdk.twice("mail", sdk.node(MAILGUN))
    assert first == second == [made]
    [arrival] = api.came("POST /v3/mg.acme.test/messages")
    sdk.assert_once("mail", "mailgun.messages.send", external_id=made)
    parts = read_parts(arrival.values("Content-Type")[0], arrival.body)
    assert parts is not None
    data = {part.name: part.data for part in parts}
    assert data["attachment"] == b"\x00\xff\r\n"
    assert re.fullmatch(b"[0-9a-f]{64}", data["v:operation_key"])


def test_mailgun_is_found_among_the_events(sdk: Sdk) -> None:
    api, made = sdk.api("api.mailgun.net"), f"{sdk.number}@mg.acme.test"

    def events(arrival: Arrival) -> Any:
        [sent] = api.came("POST /v3/mg.acme.test/messages")
        event = {
            "id": f"e{sdk.number}",
            "user-variables": {"operation_key": sent.form()["v:operation_key"][0]},
            "message": {"headers": {"message-id": made}},
        }
        return {"items": [event], "paging": {"next": "https://api.mailgun.net/v3/x"}}

    api.on("POST /v3/mg.acme.test/messages", LOST)
    api.on("GET /v3/mg.acme.test/events", events)
    assert sdk.twice("mail", mailgun_mail) == (f"<{made}>", f"<{made}>")
    assert len(api.came("POST /v3/mg.acme.test/messages")) == 1
    sdk.assert_reconciled("mail", "mailgun.messages.send", external_id=f"<{made}>")
