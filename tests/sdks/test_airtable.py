"""pyairtable: an upsert may be repeated, and a record is found by its name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sdks.support import LOST, Sdk

HOST, TABLE = "api.airtable.com", "/v0/appA/Cases"
NOW = "2099-01-01T00:00:00.000Z"


def table() -> Any:
    return pytest.importorskip("pyairtable").Api("pat1").table("appA", "Cases")


def create() -> Any:
    return table().create({"Name": "Case 1842"})["id"]


def upsert() -> Any:
    made = table().batch_upsert([{"fields": {"Name": "Case 1842"}}], key_fields=["Name"])
    return made["records"][0]["id"]


def record(sdk: Sdk) -> Any:
    return {"id": f"rec{sdk.number}", "createdTime": NOW, "fields": {"Name": "Case 1842"}}


def test_a_record_is_made_once(sdk: Sdk) -> None:
    api, made = sdk.api(HOST), record(sdk)
    api.on(f"POST {TABLE}", made)
    assert sdk.twice("create", create) == (made["id"], made["id"])
    assert len(api.came(f"POST {TABLE}")) == 1
    sdk.assert_once("create", "airtable.records.create_one", external_id=made["id"])


def test_a_lost_record_is_found_by_its_name(sdk: Sdk) -> None:
    api, made = sdk.api(HOST), record(sdk)
    api.on(f"POST {TABLE}", LOST)
    api.on(f"GET {TABLE}", {"records": [made]})
    assert sdk.twice("create", create) == (made["id"], made["id"])
    assert len(api.came(f"POST {TABLE}")) == 1
    sdk.assert_reconciled("create", "airtable.records.create_one", external_id=made["id"])


def test_a_lost_upsert_is_sent_again(sdk: Sdk) -> None:
    api, made = sdk.api(HOST), record(sdk)
    done = {"records": [made], "createdRecords": [], "updatedRecords": [made["id"]]}
    api.on(f"PATCH {TABLE}", LOST, done)
    assert sdk.twice("upsert", upsert) == (made["id"], made["id"])
    assert len(api.came(f"PATCH {TABLE}")) == 2
    key = sdk.key("upsert", "airtable.records.upsert")
    assert sdk.operation(key)["external_id"] == made["id"]
