"""python-gitlab: no key; a line at the end of a description or note, found in the list."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sdks.support import LOST, Sdk, reply

HOST = "gitlab.com"
ISSUES = "/api/v4/projects/acme/shop/issues"  # the recorder sees the path decoded
NOTES = f"{ISSUES}/6/notes"


def project() -> Any:
    gitlab = pytest.importorskip("gitlab")
    return gitlab.Gitlab(private_token="glpat-1").projects.get("acme/shop", lazy=True)


def issue() -> Any:
    return project().issues.create({"title": "Refund fails", "description": "It answers 500."}).iid


def note() -> Any:
    return project().issues.get(6, lazy=True).notes.create({"body": "Refunded."}).id


def test_an_issue_is_opened_once(sdk: Sdk) -> None:
    api = sdk.api(HOST)
    api.on(f"POST {ISSUES}", reply({"id": 76, "iid": sdk.number}, 201))
    assert sdk.twice("open", issue) == (sdk.number, sdk.number)
    [arrival] = api.came(f"POST {ISSUES}")
    assert arrival.target == "/api/v4/projects/acme%2Fshop/issues"
    sdk.assert_once("open", "gitlab.issues.create", external_id=str(sdk.number))
    description = json.loads(arrival.body)["description"]
    assert description.startswith("It answers 500.\n\n<!-- ")


def test_a_lost_note_is_found_in_the_list(sdk: Sdk) -> None:
    api = sdk.api(HOST)
    api.on(f"POST {NOTES}", LOST)
    api.on(
        f"GET {NOTES}",
        lambda _: [{"id": sdk.number, **json.loads(one.body)} for one in api.came(f"POST {NOTES}")],
    )
    assert sdk.twice("note", note) == (sdk.number, sdk.number)
    assert len(api.came(f"POST {NOTES}")) == 1
    sdk.assert_reconciled("note", "gitlab.issue_notes.create", external_id=str(sdk.number))
    assert api.came(f"GET {NOTES}")[0].values("PRIVATE-TOKEN") == ["glpat-1"]
