"""@linear/sdk: the operation's name is the new object's id, and finds it."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from tests.clients.words import Arrival
from tests.sdks.support import LOST, Api, Sdk, needs_node, reply

HOST, GRAPHQL = "api.linear.app", "POST /graphql"
pytestmark = needs_node("@linear/sdk")
SCRIPT = """
const { LinearClient } = await import('@linear/sdk')
const client = new LinearClient({ apiKey: 'lin_api_1' })
const made = await client.createIssue({ teamId: 't1', title: 'Refund fails' })
console.log(JSON.stringify({ success: made.success, id: made.issueId }))
"""


def is_mutation(arrival: Arrival) -> bool:
    return "issueCreate" in json.loads(arrival.body)["query"]


def mutations(api: Api) -> list[Any]:
    return [json.loads(one.body) for one in api.came(GRAPHQL) if is_mutation(one)]


def created(arrival: Arrival) -> Any:
    issue = {"id": json.loads(arrival.body)["variables"]["input"]["id"]}
    return {"data": {"issueCreate": {"success": True, "lastSyncId": 1, "issue": issue}}}


def test_an_issue_gets_its_id_from_the_operation(sdk: Sdk) -> None:
    api = sdk.api(HOST)
    api.on(GRAPHQL, created)
    first, second = sdk.twice("open", sdk.node(SCRIPT))
    [sent] = mutations(api)
    identifier = sent["variables"]["input"]["id"]
    assert first == second == [{"success": True, "id": identifier}]
    assert UUID(identifier).version == 4
    sdk.assert_once("open", "linear.issues.create", external_id=identifier)


def test_a_lost_issue_is_sent_again_under_its_id_and_then_found(sdk: Sdk) -> None:
    """The second send is refused, since the id is taken; that is no answer about the first."""
    api = sdk.api(HOST)
    lost = [LOST]

    def answer(arrival: Arrival) -> Any:
        if not is_mutation(arrival):
            wanted = json.loads(arrival.body)["variables"]["id"]
            made = [m["variables"]["input"]["id"] for m in mutations(api)]
            nodes = [{"id": wanted}] if wanted in made else []
            return {"data": {"issues": {"nodes": nodes}}}
        taken = {"message": "id taken", "extensions": {"type": "invalid input"}}
        return lost.pop() if lost else reply({"errors": [taken]}, 400)

    api.on(GRAPHQL, answer)
    first, second = sdk.twice("open", sdk.node(SCRIPT))
    identifiers = {sent["variables"]["input"]["id"] for sent in mutations(api)}
    assert len(identifiers) == 1
    assert first == second == [{"success": True, "id": identifiers.pop()}]
    key = sdk.key("open", "linear.issues.create")
    assert sdk.operation(key)["state"] == "succeeded"
    assert "EffectFound" in sdk.events(key)
