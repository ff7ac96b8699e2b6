"""hubspot-api-client, simple-salesforce, docusign_esign, todoist_api_python.

HubSpot's and DocuSign's clients do not look at proxy variables: they are given a base URL.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.clients.words import Arrival
from tests.sdks.support import LOST, Sdk, reply


def body_of(arrival: Arrival) -> Any:
    return json.loads(arrival.body)


def asked(arrival: Arrival) -> dict[str, list[str]]:
    return parse_qs(urlsplit(arrival.target).query)


def through(sdk: Sdk, step: str, host: str) -> str:
    """The address that leads to a host and names run and step."""
    return f"http://{sdk.proxy.listen}/as/{sdk.run_id}/{step}/via/https/{host}"


# HubSpot

HUBSPOT = "api.hubapi.com"
NOW = "2999-01-01T00:00:00Z"  # later than any call


def hubspot(sdk: Sdk, step: str) -> Any:
    module = pytest.importorskip("hubspot")
    return module.HubSpot(access_token="pat-c4n4ry", host=through(sdk, step, HUBSPOT))


def test_a_contact_is_made_once_and_found_by_its_mail(sdk: Sdk) -> None:
    api, made = sdk.api(HUBSPOT), str(sdk.number)
    contact = {"id": made, "createdAt": NOW, "properties": {"email": "a@example.test"}}
    api.on("POST /crm/v3/objects/contacts", LOST)
    api.on("GET /crm/v3/objects/contacts/a@example.test", contact)

    def create() -> Any:
        from hubspot.crm.contacts import SimplePublicObjectInputForCreate

        given = SimplePublicObjectInputForCreate(
            properties={"email": "a@example.test"}, associations=[]
        )
        return hubspot(sdk, "contact").crm.contacts.basic_api.create(given).id

    first, second = sdk.twice("contact", create)
    assert first == second == made
    assert len(api.came("POST /crm/v3/objects/contacts")) == 1
    [look] = api.came("GET /crm/v3/objects/contacts/*")
    assert asked(look)["idProperty"] == ["email"]
    assert look.values("Authorization") == ["Bearer pat-c4n4ry"]
    sdk.assert_reconciled("contact", "hubspot.contacts.create", external_id=made)


@pytest.mark.slow
def test_a_ticket_is_found_in_the_search(sdk: Sdk) -> None:
    api, made = sdk.api(HUBSPOT), str(sdk.number)
    ticket = {"id": made, "createdAt": NOW, "properties": {"subject": "Refund"}}
    api.on("POST /crm/v3/objects/tickets", LOST)
    api.on("POST /crm/v3/objects/tickets/search", {"total": 1, "results": [ticket]})

    def create() -> Any:
        from hubspot.crm.tickets import SimplePublicObjectInputForCreate

        given = SimplePublicObjectInputForCreate(properties={"subject": "Refund"}, associations=[])
        return hubspot(sdk, "ticket").crm.tickets.basic_api.create(given).id

    first, second = sdk.twice("ticket", create)
    assert first == second == made
    [look] = api.came("POST /crm/v3/objects/tickets/search")
    [group] = body_of(look)["filterGroups"]
    assert group["filters"] == [{"propertyName": "subject", "operator": "EQ", "value": "Refund"}]
    sdk.assert_reconciled("ticket", "hubspot.tickets.create", external_id=made)


def test_a_single_send_carries_the_operations_id(sdk: Sdk) -> None:
    api, made = sdk.api(HUBSPOT), f"s{sdk.number}"
    send = "POST /marketing/v3/transactional/single-email/send"
    api.on(send, LOST, {"statusId": made, "status": "PENDING", "eventId": None})

    def mail() -> Any:
        from hubspot.marketing.transactional import (
            PublicSingleSendEmail,
            PublicSingleSendRequestEgg,
        )

        message = PublicSingleSendEmail(to="a@example.test")
        egg = PublicSingleSendRequestEgg(
            email_id=7, message=message, custom_properties={}, contact_properties={}
        )
        api_ = hubspot(sdk, "mail").marketing.transactional.single_send_api
        return api_.send_email(egg).status_id

    first, second = sdk.twice("mail", mail)
    assert first == second == made
    ids = [body_of(arrival)["message"]["sendId"] for arrival in api.came(send)]
    assert len(ids) == 2
    assert len(set(ids)) == 1
    assert sdk.operation(sdk.key("mail", "hubspot.single_send.v3"))["state"] == "succeeded"


# Salesforce

INSTANCE = "acme.my.salesforce.com"


def salesforce() -> Any:
    module = pytest.importorskip("simple_salesforce")
    return module.Salesforce(instance=INSTANCE, session_id="00D!c4n4ry")


def test_a_record_is_found_by_its_name_among_the_new_ones(sdk: Sdk) -> None:
    api, made = sdk.api(INSTANCE), f"001{sdk.number}"
    records = [{"Id": "001X", "Name": "Other"}, {"Id": made, "Name": "O'Brien & Sons"}]
    api.on("POST /services/data/v59.0/sobjects/Account/", LOST)
    api.on("GET /services/data/v59.0/query", {"done": True, "records": records})
    first, second = sdk.twice("account", lambda: salesforce().Account.create(NAMED))
    assert dict(first) == dict(second) == {"id": made, "success": True, "errors": []}
    assert len(api.came("POST /services/data/v59.0/sobjects/Account/")) == 1
    [look] = api.came("GET /services/data/v59.0/query")
    [query] = asked(look)["q"]
    assert query.startswith("SELECT Id, Name FROM Account WHERE CreatedDate >= 20")
    sdk.assert_reconciled("account", "salesforce.records.create_slash", external_id=made)


NAMED = {"Name": "O'Brien & Sons"}


def test_an_upsert_is_sent_again_after_a_lost_answer(sdk: Sdk) -> None:
    api = sdk.api(INSTANCE)
    upsert = "PATCH /services/data/v59.0/sobjects/Account/Order__c/o-1"
    api.on(upsert, LOST, reply("", 204))
    first, second = sdk.twice(
        "upsert", lambda: salesforce().Account.upsert("Order__c/o-1", {"Name": "Acme"})
    )
    assert first == second == 204
    assert len(api.came(upsert)) == 2
    key = sdk.key("upsert", "salesforce.records.upsert")
    assert sdk.operation(key)["state"] == "succeeded"


# DocuSign

SIGNING = "demo.docusign.net"
ENVELOPES = "POST /restapi/v2.1/accounts/a1/envelopes"


def envelope(sdk: Sdk) -> Any:
    module = pytest.importorskip("docusign_esign")
    client = module.ApiClient(host=through(sdk, "sign", SIGNING) + "/restapi")
    client.set_default_header("Authorization", "Bearer eyJ.c4n4ry")
    document = module.Document(document_id="1", name="a.pdf", document_base64="JVBERg==")
    definition = module.EnvelopeDefinition(
        email_subject="Please sign", status="sent", documents=[document]
    )
    made = module.EnvelopesApi(client).create_envelope("a1", envelope_definition=definition)
    return made.envelope_id, made.status


def test_an_envelope_is_sent_once(sdk: Sdk) -> None:
    api, made = sdk.api(SIGNING), f"e{sdk.number}"
    api.on(ENVELOPES, reply({"envelopeId": made, "status": "sent"}, 201))
    first, second = sdk.twice("sign", lambda: envelope(sdk))
    assert first == second == (made, "sent")
    [arrival] = api.came(ENVELOPES)
    assert body_of(arrival)["emailSubject"] == "Please sign"
    sdk.assert_once("sign", "docusign.envelopes.create", external_id=made)


def test_a_lost_envelope_is_found_by_its_transaction(sdk: Sdk) -> None:
    api, made = sdk.api(SIGNING), f"e{sdk.number}"
    found = {"envelopeId": made, "status": "sent", "envelopeUri": f"/envelopes/{made}"}
    api.on(ENVELOPES, LOST)
    api.on("GET /restapi/v2.1/accounts/a1/envelopes", {"envelopes": [found]})
    first, second = sdk.twice("sign", lambda: envelope(sdk))
    assert first == second == (made, "sent")
    [arrival], [look] = api.came(ENVELOPES), api.came("GET /restapi/v2.1/accounts/a1/envelopes")
    assert asked(look)["transaction_ids"] == [body_of(arrival)["transactionId"]]
    sdk.assert_reconciled("sign", "docusign.envelopes.create", external_id=made)


# Todoist

TASKS = "POST /api/v1/tasks"


def task(made: str) -> dict[str, Any]:
    flags = {"is_collapsed": False, "checked": False, "is_deleted": False}
    times = {"added_at": NOW, "updated_at": NOW, "completed_at": None}
    named = {"content": "Call Ada", "description": "", "project_id": "p1", "section_id": None}
    people = {"added_by_uid": "u1", "assigned_by_uid": None, "responsible_uid": None}
    rest = {"parent_id": None, "labels": [], "priority": 1, "due": None, "deadline": None}
    more = {"duration": None, "child_order": 1, "day_order": 1, "user_id": "u1"}
    return {"id": made, **named, **flags, **times, **people, **rest, **more}


def add() -> Any:
    module = pytest.importorskip("todoist_api_python.api")
    with module.TodoistAPI("c4n4ry") as api:
        return api.add_task("Call Ada", project_id="p1").id


def test_the_id_that_the_sdk_makes_up_is_replaced(sdk: Sdk) -> None:
    api, made = sdk.api("api.todoist.com"), f"t{sdk.number}"
    api.on(TASKS, task(made))
    first, second = sdk.twice("task", add)
    assert first == second == made
    [arrival] = api.came(TASKS)
    sdk.assert_once("task", "todoist.tasks.create", external_id=made)
    [sent] = arrival.values("X-Request-Id")
    assert (len(sent), sent[14]) == (36, "5")  # a UUID of the operation's name, no random one


@pytest.mark.slow
def test_a_lost_task_is_found_in_its_project(sdk: Sdk) -> None:
    api, made = sdk.api("api.todoist.com"), f"t{sdk.number}"
    api.on(TASKS, LOST)
    api.on("GET /api/v1/tasks", {"results": [task(made)], "next_cursor": None})
    first, second = sdk.twice("task", add)
    assert first == second == made
    sent = {tuple(arrival.values("X-Request-Id")) for arrival in api.came(TASKS)}
    assert len(sent) == 1
    assert sdk.operation(sdk.key("task", "todoist.tasks.create"))["external_id"] == made
