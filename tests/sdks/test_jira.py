"""The jira package: an entity property that people do not see, found among one's own new issues."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sdks.support import LOST, Api, Sdk, reply

HOST = "acme.atlassian.net"
ISSUE, COMMENT = "/rest/api/2/issue", "/rest/api/2/issue/SHOP-24/comment"


def client() -> Any:
    jira = pytest.importorskip("jira")
    return jira.JIRA(
        f"https://{HOST}", basic_auth=("mona", "t1"), get_server_info=False, max_retries=0
    )


def open_issue() -> Any:
    fields = {"project": {"key": "SHOP"}, "issuetype": {"name": "Bug"}, "summary": "Refund fails"}
    return client().create_issue(fields=fields, prefetch=False).key


def comment() -> Any:
    return client().add_comment("SHOP-24", "The refund is on its way.").id


def found(api: Api, key: str) -> Any:
    [sent] = [json.loads(one.body) for one in api.came(f"POST {ISSUE}")]
    properties = {one["key"]: one["value"] for one in sent["properties"]}
    return {"issues": [{"id": "1", "key": key, "properties": properties}], "isLast": True}


def test_an_issue_is_opened_once(sdk: Sdk) -> None:
    api, key = sdk.api(HOST), f"SHOP-{sdk.number}"
    api.on(f"POST {ISSUE}", reply({"id": "1", "key": key, "self": "x"}, 201))
    assert sdk.twice("open", open_issue) == (key, key)
    [arrival] = api.came(f"POST {ISSUE}")
    sdk.assert_once("open", "jira.issues.create", external_id=key)
    [mark] = json.loads(arrival.body)["properties"]
    assert mark["key"] == "onceproxy"


def test_a_lost_issue_is_found_by_its_property(sdk: Sdk) -> None:
    api, key = sdk.api(HOST), f"SHOP-{sdk.number}"
    api.on(f"POST {ISSUE}", LOST)
    api.on("POST /rest/api/3/search/jql", lambda _: found(api, key))
    assert sdk.twice("open", open_issue) == (key, key)
    sdk.assert_reconciled("open", "jira.issues.create", external_id=key)
    asked = json.loads(api.came("POST /rest/api/3/search/jql")[0].body)
    assert asked["properties"] == ["onceproxy"]


def test_a_lost_comment_is_found_by_its_text(sdk: Sdk) -> None:
    api, number = sdk.api(HOST), str(sdk.number)
    api.on(f"POST {COMMENT}", LOST)
    made = {"id": number, "body": "The refund is on its way.", "created": "2099-01-01T00:00:00Z"}
    api.on(f"GET {COMMENT}", {"comments": [made]}, {"comments": []})
    assert sdk.twice("comment", comment) == (number, number)
    assert len(api.came(f"POST {COMMENT}")) == 1
    sdk.assert_reconciled("comment", "jira.comments.create", external_id=number)
