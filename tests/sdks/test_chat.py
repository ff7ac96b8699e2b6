"""Twilio, PagerDuty, Discord and Matrix: their own clients, for Python and Node."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tests.clients.words import Arrival
from tests.sdks.support import LOST, Sdk, needs_node, reply


def body(arrival: Arrival) -> Any:
    return json.loads(arrival.body)


# Twilio: no key; the list is compared

MESSAGES = "/2010-04-01/Accounts/AC1/Messages.json"


def text_message(to: str = "+15550100") -> Any:
    rest = pytest.importorskip("twilio.rest")
    client = rest.Client("AC1", "t1")
    with client.http_client.session:
        return client.messages.create(to=to, from_="+15550199", body="Refund done").sid


def test_a_text_message_is_sent_once(sdk: Sdk) -> None:
    api, sid = sdk.api("api.twilio.com"), f"SM{sdk.number}"
    api.on(f"POST {MESSAGES}", reply({"sid": sid, "status": "queued"}, 201))
    assert sdk.twice("text", text_message) == (sid, sid)
    assert len(api.came(f"POST {MESSAGES}")) == 1
    sdk.assert_once("text", "twilio.messages.create", external_id=sid)


def test_a_lost_text_message_is_found_in_the_list(sdk: Sdk) -> None:
    api, sid = sdk.api("api.twilio.com"), f"SM{sdk.number}"
    seen = {"sid": sid, "body": "Refund done", "date_created": formatdate(time.time())}
    earlier = {**seen, "sid": "SM0", "date_created": formatdate(time.time() - 3600)}
    api.on(f"POST {MESSAGES}", LOST)
    api.on(f"GET {MESSAGES}", {"messages": [seen, earlier], "next_page_uri": None})
    assert sdk.twice("text", text_message) == (sid, sid)
    assert len(api.came(f"POST {MESSAGES}")) == 1
    sdk.assert_reconciled("text", "twilio.messages.create", external_id=sid)
    asked = parse_qs(urlsplit(api.came(f"GET {MESSAGES}")[0].target).query)
    assert (asked["To"], asked["From"]) == (["+15550100"], ["+15550199"])


def test_a_refusal_is_read_by_twilios_client(sdk: Sdk) -> None:
    """Another recipient in the same step."""
    api, sid = sdk.api("api.twilio.com"), f"SM{sdk.number}"
    api.on(f"POST {MESSAGES}", reply({"sid": sid, "status": "queued"}, 201))
    assert sdk.call("text", text_message) == sid
    exceptions = pytest.importorskip("twilio.base.exceptions")
    with pytest.raises(exceptions.TwilioRestException) as refused:
        sdk.call("text", lambda: text_message("+15550101"))
    assert refused.value.status == 422
    assert refused.value.code == "onceproxy_operation-mismatch"
    assert "same intent" in refused.value.msg.lower()
    assert len(api.came(f"POST {MESSAGES}")) == 1


# PagerDuty: a key among what is open, and the list of incidents


def alert() -> Any:
    pagerduty = pytest.importorskip("pagerduty")
    with pagerduty.EventsApiV2Client("r1") as client:
        return client.trigger("Refunds fail", "agent", severity="error")


def test_an_alert_has_a_key(sdk: Sdk) -> None:
    api = sdk.api("events.pagerduty.com")
    api.on("POST /v2/enqueue", lambda one: reply({"dedup_key": body(one)["dedup_key"]}, 202))
    first, second = sdk.twice("alert", alert)
    [arrival] = api.came("POST /v2/enqueue")
    key = sdk.assert_once("alert", "pagerduty.events.trigger", external_id=first)
    assert first == second == key == body(arrival)["dedup_key"]


def incident() -> Any:
    pagerduty = pytest.importorskip("pagerduty")
    made = {"type": "incident", "title": "Refunds fail", "service": {"id": "PS1"}}
    with pagerduty.RestApiV2Client("t1", default_from="a@acme.test") as client:
        return client.rpost("/incidents", json={"incident": made})["id"]


def test_a_lost_incident_is_found_by_its_key(sdk: Sdk) -> None:
    """In the held call it is sent again under its key; that there is one already is no refusal."""
    api, made = sdk.api("api.pagerduty.com"), f"PT{sdk.number}"

    def listed(arrival: Arrival) -> Any:
        key = parse_qs(urlsplit(arrival.target).query)["incident_key"][0]
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return {"incidents": [{"id": made, "incident_key": key, "created_at": now}], "more": False}

    there = {"error": {"code": 2002, "message": "Open incident with matching dedup key"}}
    api.on("POST /incidents", LOST, reply(there, 400))
    api.on("GET /incidents", listed)
    assert sdk.twice("incident", incident) == (made, made)
    first, second = api.came("POST /incidents")
    assert first.body == second.body
    key = sdk.key("incident", "pagerduty.incidents.create")
    assert body(first)["incident"]["incident_key"] == key
    known = sdk.operation(key)
    assert (known["state"], known["external_id"]) == ("succeeded", made)


# Discord: a nonce that Discord enforces

DISCORD = """
const { REST } = await import('@discordjs/rest')
const makeRequest = (url, init) => fetch(url, init)
const rest = new REST({ version: '10', makeRequest }).setToken('t1')
const body = { content: 'Refund done' }
const message = await rest.post('/channels/41771983423143937/messages', { body })
console.log(JSON.stringify(message.id))
"""
CHANNEL = "/api/v10/channels/41771983423143937/messages"


@needs_node("@discordjs/rest")
def test_a_message_has_a_nonce(sdk: Sdk) -> None:
    api, made = sdk.api("discord.com"), f"90{sdk.number}"
    api.on(f"POST {CHANNEL}", {"id": made, "content": "Refund done"})
    first, second = sdk.twice("post", sdk.node(DISCORD))
    assert first == second == [made]
    [arrival] = api.came(f"POST {CHANNEL}")
    sdk.assert_once("post", "discord.messages.create", external_id=made)
    assert body(arrival)["enforce_nonce"] is True
    assert len(body(arrival)["nonce"]) == 25


# Matrix: the transaction id in the path

ROOM = "/_matrix/client/v3/rooms/!room:acme.test"


def room_message() -> Any:
    nio = pytest.importorskip("nio")

    async def send() -> Any:
        client = nio.AsyncClient(
            "https://matrix.acme.test",
            config=nio.AsyncClientConfig(max_timeouts=1),
            proxy=os.environ["HTTPS_PROXY"],
            ssl=ssl.create_default_context(),
        )
        client.access_token, client.user_id = "t1", "@agent:acme.test"
        try:
            content = {"msgtype": "m.text", "body": "Refund done"}
            answer = await client.room_send("!room:acme.test", "m.room.message", content)
            assert isinstance(answer, nio.RoomSendResponse), answer
            return answer.event_id
        finally:
            await client.close()

    return asyncio.run(send())


def test_a_room_gets_a_message_once(sdk: Sdk) -> None:
    api, made = sdk.api("matrix.acme.test"), f"$e{sdk.number}"
    api.on(f"PUT {ROOM}/send/m.room.message/*", {"event_id": made})
    assert sdk.twice("post", room_message) == (made, made)
    [arrival] = api.came(f"PUT {ROOM}/send/m.room.message/*")
    sdk.assert_once("post", "matrix.messages.send", external_id=made)
    assert len(transaction(arrival)) == 40


def test_a_lost_room_message_is_sent_again_under_its_transaction(sdk: Sdk) -> None:
    api, made = sdk.api("matrix.acme.test"), f"$e{sdk.number}"
    api.on(f"PUT {ROOM}/send/m.room.message/*", LOST, {"event_id": made})
    assert sdk.twice("post", room_message) == (made, made)
    first, second = api.came(f"PUT {ROOM}/send/m.room.message/*")
    assert (first.target, first.body) == (second.target, second.body)


def transaction(arrival: Arrival) -> str:
    return unquote(arrival.target.partition("?")[0].rpartition("/")[2])
