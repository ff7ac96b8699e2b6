"""The commands about runs and approvals as an operator uses them, against a real proxy."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from proxy.cli import main
from tests.fakes.served import Api, Served, api, served, until
from tests.fakes.whole import configure

RULES = """
service: shop
hosts: ["{host}"]
source: https://shop.test/docs
confidence: documented
key: {{in: header, name: Idempotency-Key, valid_for: 24h, keeps: all}}
endpoints:
  refunds.create: {{match: POST /refunds, external_id: id}}
  payouts.create:
    match: POST /payouts
    external_id: id
    approval: {{required: true, summary: "Pay {{body.amount}}", expires: 1h}}
"""


class Shop:
    def __init__(self, proxy: Served, upstream: Api) -> None:
        self.proxy = proxy
        self.upstream = upstream

    def post(self, path: str, body: object, who: str) -> tuple[int, dict[str, Any]]:
        status, raw = self.proxy.call(self.upstream.url + path, json.dumps(body).encode(), who)
        return status, json.loads(raw)

    def command(self, *arguments: str) -> Result:
        state = ["--state-dir", str(self.proxy.state_dir)]
        return CliRunner().invoke(main, [*arguments, *state], catch_exceptions=False)

    def done(self, *arguments: str) -> str:
        result = self.command(*arguments)
        assert result.exit_code == 0, result.output
        return result.output

    def json(self, *arguments: str) -> Any:
        return json.loads(self.done(*arguments, "--json"))

    def waiting(self, run: str) -> str:
        """The id of the one approval of that run that waits."""
        found = self.json("approvals", "--state", "waiting")
        [one] = [one for one in found if one["run"] == run]
        return str(one["id"])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    with api() as upstream:
        rules = RULES.format(host=upstream.url.removeprefix("http://"))
        config = configure(folder, rules)
        with served(folder / "state", "--config", str(config)) as proxy:
            yield Shop(proxy, upstream)


def sent(shop: Shop, path: str) -> int:
    return shop.upstream.writes().count(("POST", path))


def test_the_refusal_of_a_spent_budget_prints_the_command_that_raises_it(shop: Shop) -> None:
    shop.done("budget", "case 7", "--writes", "1")
    before = sent(shop, "/refunds")
    assert shop.post("/refunds", {"n": 1}, "case%25207:a")[0] == 200
    status, refused = shop.post("/refunds", {"n": 2}, "case%25207:b")
    assert (status, sent(shop, "/refunds")) == (403, before + 1)
    told = re.search(r"onceproxy (budget .+ --writes) N", refused["detail"])
    assert told is not None
    shop.done(*shlex.split(told[1]), "3")
    assert shop.post("/refunds", {"n": 2}, "case%25207:b")[0] == 200
    assert sent(shop, "/refunds") == before + 2
    budget = shop.json("budget", "case 7")
    assert budget["writes"] == {"limit": 3, "used": 2, "remaining": 1}
    # As lists show it, too.
    assert shop.json("budget", "case%207") == budget
    shown = shop.done("budget", "case 7")
    assert re.search(r"^writes +2 +3 +1$", shown, re.MULTILINE)
    shop.done("budget", "case 7", "--writes", "none", "--tool-calls", "9")
    after = shop.json("budget", "case 7")
    assert (after["writes"]["limit"], after["tool_calls"]["limit"]) == (None, 9)


def test_runs_are_listed_shown_and_stand_below_the_one_that_began_them(shop: Shop) -> None:
    shop.post("/refunds", {"n": 1}, "top:a")
    for run, parent in (("middle", "top"), ("leaf", "middle")):
        body = json.dumps({"run": run, "parent": parent}).encode()
        _operator(shop, "/v1/runs", body)
    rows = shop.done("runs", "--tree").splitlines()
    assert re.match(r"RUN +STATUS +STARTS +OPERATIONS +LEFT +BEGUN", rows[0])
    at = rows.index(next(row for row in rows if row.startswith("top ")))
    assert rows[at + 1].startswith("  middle ")
    assert rows[at + 2].startswith("    leaf ")
    shown = shop.done("runs", "top")
    assert re.search(r"^operations +1 succeeded$", shown, re.MULTILINE)
    assert re.search(r"^below +middle$", shown, re.MULTILINE)
    below = shop.json("runs", "top", "--tree")["below"]
    assert [one["run"] for one in below] == ["middle", "leaf"]
    assert {"top", "middle", "leaf"} <= {one["run"] for one in shop.json("runs")}
    missing = shop.command("runs", "nobody")
    assert missing.exit_code == 1
    assert "onceproxy runs lists them" in missing.output


def test_a_revoked_run_sends_nothing_until_it_is_restored(shop: Shop) -> None:
    shop.post("/refunds", {"n": 1}, "stopped:a")
    before = sent(shop, "/refunds")
    told = shop.json("revoke", "stopped", "--reason", "wrong customer")
    assert (told["status"], told["in_flight"]) == ("revoked", [])
    status, refused = shop.post("/refunds", {"n": 2}, "stopped:b")
    assert (status, refused["type"]) == (403, "urn:onceproxy:authority-revoked")
    assert "wrong customer" in refused["detail"]
    assert sent(shop, "/refunds") == before
    shown = shop.done("runs", "stopped")
    undo = re.search(r"onceproxy (revoke stopped --undo)", shown)
    assert undo is not None
    shop.done(*undo[1].split())
    assert shop.post("/refunds", {"n": 2}, "stopped:b")[0] == 200
    assert sent(shop, "/refunds") == before + 1


def test_a_run_that_is_not_there_cannot_be_revoked_by_a_slip(shop: Shop) -> None:
    slip = shop.command("revoke", "stoped")
    assert slip.exit_code == 1
    assert "no such run" in slip.output
    assert "stoped" not in shop.done("runs")


def test_one_token_is_revoked_by_its_text_or_by_what_lists_show(shop: Shop) -> None:
    tokens = [
        _operator(shop, "/v1/runs", json.dumps({"run": "tokens"}).encode())["token"]
        for _ in range(2)
    ]
    shop.done("revoke", "--token", tokens[0], "--reason", "it was in a log")
    shown = shop.json("runs", "tokens")["tokens"]
    assert [one["revoked"] is None for one in shown] == [False, True]
    shop.done("revoke", "tokens", "--token", shown[1]["token"])
    before = sent(shop, "/refunds")
    for token in tokens:
        assert shop.post("/refunds", {"n": 1}, f"tokens:a%3A{token}")[0] == 403
    assert sent(shop, "/refunds") == before
    assert tokens[0] not in shop.done("runs", "tokens")
    assert shop.command("revoke", "--token", "0" * 16).exit_code == 1


def test_an_approval_is_granted_and_exactly_that_call_is_sent(shop: Shop) -> None:
    before = sent(shop, "/payouts")
    assert shop.post("/payouts", {"amount": 50}, "granted:a")[0] == 403
    number = shop.waiting("granted")
    listed = shop.done("approvals")
    assert "Pay 50" in listed
    assert "onceproxy approve ID" in listed
    shown = shop.done("approve", number, "--note", "agreed", "--by", "ann")
    assert f"onceproxy revoke --approval {number}" in shown
    assert sent(shop, "/payouts") == before
    assert shop.post("/payouts", {"amount": 50}, "granted:a")[0] == 200
    assert sent(shop, "/payouts") == before + 1
    [one] = [a for a in shop.json("approvals", "--state", "consumed") if a["id"] == number]
    assert (one["by"], one["note"]) == ("ann (operator)", "agreed")
    again = shop.command("approve", number)
    assert (again.exit_code, "granted and used already" in again.output) == (1, True)


def test_a_held_call_goes_out_when_it_is_approved(shop: Shop) -> None:
    before = sent(shop, "/payouts")
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(_held, shop, {"amount": 60}, "held:a")
        until(lambda: any(one["run"] == "held" for one in shop.json("approvals")))
        shop.done("approve", shop.waiting("held"))
        assert held.result(30) == 200
    assert sent(shop, "/payouts") == before + 1


def test_a_denial_needs_a_reason_which_the_agent_is_told(shop: Shop) -> None:
    before = sent(shop, "/payouts")
    shop.post("/payouts", {"amount": 70}, "denied:a")
    number = shop.waiting("denied")
    assert shop.command("deny", number).exit_code == 2
    shop.done("deny", number, "--note", "ask the customer first")
    status, refused = shop.post("/payouts", {"amount": 70}, "denied:a")
    assert (status, refused["type"]) == (403, "urn:onceproxy:approval-denied")
    assert "ask the customer first" in refused["detail"]
    assert refused["next"].startswith("A person said no: do not repeat it")
    assert refused["next"].endswith("Their note: ask the customer first.")
    assert sent(shop, "/payouts") == before


def test_a_grant_is_taken_back_before_it_was_used(shop: Shop) -> None:
    before = sent(shop, "/payouts")
    shop.post("/payouts", {"amount": 80}, "taken-back:a")
    number = shop.waiting("taken-back")
    shop.done("approve", number)
    assert "nothing more is sent" in shop.done("revoke", "--approval", number, "--reason", "late")
    assert shop.post("/payouts", {"amount": 80}, "taken-back:a")[0] == 403
    assert sent(shop, "/payouts") == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["revoke"],
        ["revoke", "run", "--approval", "a"],
        ["revoke", "--approval", "a", "--undo"],
        ["budget", "run", "--writes", "-1"],
        ["budget", "run", "--writes", "many"],
        ["approvals", "--state", "nearly"],
        ["runs", "--limit", "0"],
    ],
)
def test_what_cannot_be_meant_ends_with_2(shop: Shop, arguments: list[str]) -> None:
    assert shop.command(*arguments).exit_code == 2


@pytest.mark.parametrize("command", ["runs", "approvals"])
def test_without_a_proxy_they_end_with_5_and_say_how_to_start_one(
    tmp_path: Path, command: str
) -> None:
    result = CliRunner().invoke(main, [command, "--state-dir", str(tmp_path / "none")])
    assert result.exit_code == 5
    assert "onceproxy serve" in result.output


def test_control_characters_from_an_agent_do_not_reach_the_terminal(shop: Shop) -> None:
    shop.post("/payouts", {"amount": "\x1b[2J\u202e"}, "terminal:a")
    listed = shop.done("approvals", "--state", "waiting")
    assert "\x1b" not in listed
    assert "\u202e" not in listed


def _operator(shop: Shop, path: str, body: bytes, *more: str) -> Any:
    import urllib.request

    tokens = json.loads((shop.proxy.state_dir / "tokens.json").read_text())
    request = urllib.request.Request(
        f"http://{shop.proxy.control}{path}",
        body,
        {"Authorization": f"Bearer {tokens['operator']}"},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as response:
        return json.loads(response.read())


def _held(shop: Shop, body: object, who: str) -> int:
    import urllib.request

    proxy = urllib.request.ProxyHandler({"http": f"http://{who}@{shop.proxy.listen}"})
    request = urllib.request.Request(
        shop.upstream.url + "/payouts", json.dumps(body).encode(), {"Prefer": "wait=30"}
    )
    with urllib.request.build_opener(proxy).open(request, timeout=60) as response:
        return int(response.status)
