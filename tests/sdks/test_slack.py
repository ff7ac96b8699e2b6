"""slack_sdk and @slack/web-api: no key; a marker in the metadata, found in the history."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.clients.words import Arrival
from tests.sdks.support import LOST, Api, Sdk, needs_node

HOST, OPERATION = "slack.com", "slack.chat.postMessage"
POST, HISTORY = "POST /api/chat.postMessage", "GET /api/conversations.history"
NODE_SCRIPT = """
const { WebClient, LogLevel } = await import('@slack/web-api')
const client = new WebClient('xoxb-1', { logLevel: LogLevel.ERROR })
const { ok, ts } = await client.chat.postMessage({ channel: 'C024BE91L', text: 'Refund done' })
console.log(JSON.stringify({ ok, ts }))
"""


def post() -> Any:
    slack_sdk = pytest.importorskip("slack_sdk")
    client = slack_sdk.WebClient("xoxb-1")
    answer = client.chat_postMessage(channel="C024BE91L", text="Refund done")
    return [{"ok": answer["ok"], "ts": answer["ts"]}]


def metadata_of(arrival: Arrival) -> Any:
    """Of a JSON body, or of a form, where it is JSON in a field."""
    if "json" in arrival.values("Content-Type")[0]:
        return json.loads(arrival.body)["metadata"]
    return json.loads(arrival.form()["metadata"][0])


def history(api: Api, ts: str) -> Any:
    """As Slack shows what was posted."""
    messages = [{"ts": ts, "metadata": metadata_of(one)} for one in api.came(POST)]
    return {"ok": True, "messages": messages, "has_more": False}


SDKS = [
    pytest.param(lambda sdk: post, id="python"),
    pytest.param(lambda sdk: sdk.node(NODE_SCRIPT), id="node", marks=needs_node("@slack/web-api")),
]


@pytest.mark.parametrize("client", SDKS)
def test_a_message_is_posted_once(sdk: Sdk, client: Any) -> None:
    api, ts = sdk.api(HOST), f"17.{sdk.number}"
    api.on(POST, {"ok": True, "channel": "C024BE91L", "ts": ts})
    first, second = sdk.twice("post", client(sdk))
    assert first == second == [{"ok": True, "ts": ts}]
    [arrival] = api.came(POST)
    sdk.assert_once("post", OPERATION, external_id=ts)
    assert metadata_of(arrival)["event_type"] == "onceproxy"
    assert len(metadata_of(arrival)["event_payload"]["operation_key"]) == 64


@pytest.mark.parametrize("client", SDKS)
def test_a_lost_answer_is_found_in_the_history(sdk: Sdk, client: Any) -> None:
    api, ts = sdk.api(HOST), f"17.{sdk.number}"
    api.on(POST, LOST)
    api.on(HISTORY, lambda _: history(api, ts))
    first, second = sdk.twice("post", client(sdk))
    assert first == second == [{"ok": True, "ts": ts}]
    assert len(api.came(POST)) == 1
    sdk.assert_reconciled("post", OPERATION, external_id=ts)
    assert api.came(HISTORY)[0].values("Authorization") == ["Bearer xoxb-1"]
