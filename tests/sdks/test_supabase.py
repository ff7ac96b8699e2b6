"""postgrest: an upsert may be repeated, and a row that brings its id is found by it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sdks.support import LOST, Sdk, reply

HOST, TABLE = "acme.supabase.co", "/rest/v1/refunds"


def client() -> Any:
    postgrest = pytest.importorskip("postgrest")
    return postgrest.SyncPostgrestClient(f"https://{HOST}/rest/v1", headers={"apikey": "k1"})


def test_an_insert_is_made_once_and_a_lost_one_is_found_by_its_id(sdk: Sdk) -> None:
    api, row = sdk.api(HOST), {"id": sdk.number, "case_id": 1842}

    def insert() -> Any:
        with client() as opened:
            return opened.from_("refunds").insert(row).execute().data

    api.on(f"POST {TABLE}", LOST)
    api.on(f"GET {TABLE}", [row])
    assert sdk.twice("insert", insert) == ([row], [row])
    assert len(api.came(f"POST {TABLE}")) == 1
    sdk.assert_reconciled("insert", "supabase.rows.insert_shown", external_id=str(sdk.number))
    assert api.came(f"GET {TABLE}")[0].target == f"{TABLE}?id=eq.{sdk.number}"


def test_a_lost_upsert_is_sent_again(sdk: Sdk) -> None:
    api, row = sdk.api(HOST), {"id": sdk.number, "case_id": 1842}

    def upsert() -> Any:
        with client() as opened:
            return opened.from_("refunds").upsert(row).execute().data

    api.on(f"POST {TABLE}", LOST, reply([row], 200))
    assert sdk.twice("upsert", upsert) == ([row], [row])
    assert len(api.came(f"POST {TABLE}")) == 2
    key = sdk.key("upsert", "supabase.rows.upsert")
    assert sdk.operation(key)["state"] == "succeeded"
