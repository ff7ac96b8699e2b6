"""PyGithub: no key; a line at the end of a text, found in the list; a ref found by its name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sdks.support import LOST, Api, Sdk, reply

HOST = "api.github.com"
COMMENTS = "/repos/acme/shop/issues/42/comments"
REFS = "/repos/acme/shop/git/refs"
TEXT = "The refund is on its way."


def repository() -> Any:
    github = pytest.importorskip("github")
    client = github.Github(
        auth=github.Auth.Token("ghp_1"),
        lazy=True,
        retry=None,
        seconds_between_requests=None,
        seconds_between_writes=None,
    )
    return client.get_repo("acme/shop")


def comment() -> Any:
    return repository().get_issue(42).create_comment(TEXT).id


def branch() -> Any:
    return repository().create_git_ref("refs/heads/fix-refund", "aa218f56").object.sha


def test_a_comment_is_made_once_and_shows_no_mark(sdk: Sdk) -> None:
    api = sdk.api(HOST)
    api.on(f"POST {COMMENTS}", reply({"id": sdk.number}, 201))
    assert sdk.twice("comment", comment) == (sdk.number, sdk.number)
    [arrival] = api.came(f"POST {COMMENTS}")
    sdk.assert_once("comment", "github.comments.create", external_id=str(sdk.number))
    text, _, mark = json.loads(arrival.body)["body"].partition("\n\n")
    assert text == TEXT
    assert mark.startswith("<!-- ")
    assert mark.endswith(" -->")


def test_a_lost_comment_is_found_in_the_list(sdk: Sdk) -> None:
    api = sdk.api(HOST)
    api.on(f"POST {COMMENTS}", LOST)
    api.on(
        f"GET {COMMENTS}",
        lambda _: [{"id": sdk.number, **json.loads(one.body)} for one in made(api)],
    )
    assert sdk.twice("comment", comment) == (sdk.number, sdk.number)
    assert len(made(api)) == 1
    sdk.assert_reconciled("comment", "github.comments.create", external_id=str(sdk.number))


def made(api: Api) -> Any:
    return api.came(f"POST {COMMENTS}")


def test_a_lost_branch_is_found_by_its_name(sdk: Sdk) -> None:
    api = sdk.api(HOST)
    ref = {"ref": "refs/heads/fix-refund", "object": {"sha": "aa218f56", "type": "commit"}}
    api.on(f"POST {REFS}", LOST)
    api.on("GET /repos/acme/shop/git/refs/heads/fix-refund", ref)
    assert sdk.twice("branch", branch) == ("aa218f56", "aa218f56")
    assert len(api.came(f"POST {REFS}")) == 1
    sdk.assert_reconciled("branch", "github.refs.create", external_id="refs/heads/fix-refund")
