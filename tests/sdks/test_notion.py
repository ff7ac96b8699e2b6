"""notion_client: nothing can be marked; a page is found by its title among those made since."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sdks.support import LOST, Sdk

HOST, PAGES, QUERY = "api.notion.com", "POST /v1/pages", "POST /v1/data_sources/d1/query"


def page() -> Any:
    notion = pytest.importorskip("notion_client")
    title = {"Name": {"title": [{"text": {"content": "Case 1842"}}]}}
    with notion.Client(auth="secret_1") as client:
        return client.pages.create(parent={"data_source_id": "d1"}, properties=title)["id"]


def test_a_page_is_made_once_and_as_it_was_sent(sdk: Sdk) -> None:
    api, number = sdk.api(HOST), str(sdk.number)
    api.on(PAGES, {"object": "page", "id": number})
    assert sdk.twice("page", page) == (number, number)
    [arrival] = api.came(PAGES)
    sdk.assert_once("page", "notion.pages.create", external_id=number)
    assert set(json.loads(arrival.body)) == {"parent", "properties"}


def test_a_lost_page_is_found_in_its_data_source(sdk: Sdk) -> None:
    api, number = sdk.api(HOST), str(sdk.number)
    title = {"Name": {"title": [{"plain_text": "Case 1842"}]}}
    found = {"object": "page", "id": number, "properties": title}
    api.on(PAGES, LOST)
    api.on(QUERY, {"results": [found], "has_more": False, "next_cursor": None})
    assert sdk.twice("page", page) == (number, number)
    assert len(api.came(PAGES)) == 1
    sdk.assert_reconciled("page", "notion.pages.create", external_id=number)
    [asked] = api.came(QUERY)
    assert asked.values("Notion-Version") == api.came(PAGES)[0].values("Notion-Version")
    assert json.loads(asked.body)["filter"]["timestamp"] == "created_time"
