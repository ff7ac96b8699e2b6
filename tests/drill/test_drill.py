"""The drill: its verdicts, its agent, and slices of it against the real proxy."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from proxy.configload import load
from proxy.drill.agent import LOST, Call, Plan
from proxy.drill.command import drill_command
from proxy.drill.demo import Teller, demo
from proxy.drill.drill import Options, drill
from proxy.drill.kept import Kept, faults
from proxy.drill.lines import POINTS, Line, judge
from proxy.drill.processes import ProxyUnderDrill, agent
from proxy.drill.randomly import CALLS, Planned, Report
from proxy.drill.report import as_json, table
from proxy.drill.targets import TOY_HOST, TOY_RULES, Foreign
from proxy.rulefile.loader import load_file
from proxy.rulefile.testing import run_examples
from tests.fakes.upstream import ToyApi
from tests.reliability import control


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a red drill keeps as evidence goes away with the test."""
    folder = tmp_path / "drills"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))


@pytest.fixture
async def api() -> AsyncIterator[ToyApi]:
    api = ToyApi()
    await api.start()
    yield api
    await api.close()


@pytest.mark.parametrize(
    ("point", "kind", "effects", "state", "answer", "holds"),
    [
        ("after_effect", "key", 1, "succeeded", 201, True),
        ("after_effect", "key", 2, "succeeded", 201, False),
        ("after_effect", "key", 0, "succeeded", 201, False),
        ("after_effect", "key", 1, "unknown", 424, False),
        ("after_effect", "query", 1, "unknown", 409, False),
        ("after_effect", "neither", 1, "unknown", 424, True),
        ("after_intent", "neither", 0, "unknown", 424, True),
        ("during_call", "neither", 2, "unknown", 424, False),
        ("before_intent", "neither", 0, "unknown", 424, False),
        ("after_outcome", "neither", 1, "unknown", 424, False),
        ("after_outcome", "key", 1, "in_flight", 201, False),
    ],
)
def test_a_line_holds_only_if_its_end_is_the_promised_one(
    point: str, kind: str, effects: int, state: str, answer: int, holds: bool
) -> None:
    assert (judge(POINTS[point], kind, effects, state, answer) is None) is holds


@pytest.mark.parametrize(
    ("kind", "effects", "state", "end", "found"),
    [
        ("key", 1, "succeeded", {"status": 201, "code": ""}, None),
        ("key", 1, "succeeded", {"status": 409, "code": "outcome-not-kept"}, None),
        ("neither", 0, "unknown", {"status": 424, "code": "outcome-unresolved"}, None),
        ("key", 2, "succeeded", {"status": 201, "code": ""}, "duplicates"),
        ("key", 0, "succeeded", {"status": 201, "code": ""}, "lost"),
        ("query", 1, "unknown", {"status": 424, "code": "outcome-unresolved"}, "wrong_status"),
        ("query", 1, "failed", {"status": 201, "code": ""}, "wrong_status"),
        ("key", 1, "in_flight", {"status": 201, "code": ""}, "stuck"),
        ("key", 1, "unknown", {"status": 409, "code": "outcome-unknown"}, "stuck"),
        ("key", 1, "succeeded", {}, "stuck"),
    ],
)
def test_random_kills_are_judged_by_effect_ledger_and_answer(
    kind: str, effects: int, state: str, end: dict[str, Any], found: str | None
) -> None:
    report = Report(seed=1)
    report.count(Planned(kind, "r", "run", "step"), effects, state, end)
    counted = {name: getattr(report, name) for name in ("duplicates", "lost", "stuck")}
    counted["wrong_status"] = report.wrong_status
    assert counted == {name: int(name == found) for name in counted}
    assert report.holds is (found is None)


def test_the_table_and_the_json_say_what_does_not_hold() -> None:
    good = Line("after_effect", "key", 1, 2, "succeeded", 201, "sent")
    bad = Line("after_intent", "query", 2, 2, "succeeded", 201, "sent", why=("2 effects",))
    text = table([good, bad])
    assert [line.split()[-1] for line in text.splitlines()[1:3]] == ["yes", "NO"]
    assert "after_intent x query: 2 effects" in text
    shown = json.loads(json.dumps(as_json([good, bad], None, False)))
    assert [line["holds"] for line in shown["lines"]] == [True, False]


async def test_the_agent_without_proxy_repeats_itself_after_a_kill(api, tmp_path) -> None:
    gate = api.troubles.gate("case", "effect")
    call = Call("run", "step", "POST", f"{api.url}/refunds", json.dumps({"reference": "case"}))
    async with agent(Plan((call,), None), tmp_path) as worker:
        await gate.reached.wait()
        await worker.kill()
    gate.opened.set()
    async with agent(Plan((call,), None), tmp_path) as worker:
        told = [line async for line in worker.lines()]
        assert await worker.ended() == 0
    assert [line["event"] for line in told] == ["begin", "end"]
    assert told[-1]["status"] == 201
    assert api.effects.of("case") == 2


async def test_the_agent_dies_with_its_connection(api, tmp_path) -> None:
    api.troubles.fault("case", "drop_before")
    call = Call("run", "step", "POST", f"{api.url}/refunds", json.dumps({"reference": "case"}))
    async with agent(Plan((call,), None), tmp_path) as worker:
        told = [line async for line in worker.lines()]
        assert await worker.ended() == LOST
    assert told[-1]["event"] == "lost"


def test_the_config_of_a_drill_is_one_that_the_proxy_takes(tmp_path: Path) -> None:
    proxy = ProxyUnderDrill(tmp_path, tmp_path)
    file = proxy.configure({"after_effect": "kill", "match": "case/*"})
    config = load(file, environ={}).config
    assert (config.listen.port, config.control.listen.port) == (0, 0)
    assert config.state_dir == tmp_path / "state"
    assert config.faults[0].point == "after_effect"


def test_the_examples_of_the_drill_s_rules_hold() -> None:
    assert [result for result in run_examples([load_file(TOY_RULES)]) if result.problems] == []


def test_the_rules_name_the_host_that_a_drill_replaces() -> None:
    assert TOY_RULES.read_text(encoding="utf-8").count(TOY_HOST) == 1


async def run(options: Options) -> dict[str, Any]:
    told: list[str] = []
    await drill(options, told.append)
    shown: dict[str, Any] = json.loads(told[-1])
    return shown


KEPT = Kept(0, 0, 0, ("granted",), 1, "open")
AFTER = Kept(1, 1, 6, ("consumed",), 1, "open")
END = replace(AFTER, checkpoint=2, status="completed")


@pytest.mark.parametrize(
    ("intent", "after", "end", "state", "wrong"),
    [
        (True, AFTER, END, "succeeded", ""),
        (False, replace(AFTER, writes=0, approvals=("granted",)), END, "succeeded", ""),
        (True, AFTER, replace(END, status="completed_with_unknown"), "unknown", ""),
        (True, replace(AFTER, writes=0), END, "succeeded", "0 writes charged after the kill"),
        (False, AFTER, END, "succeeded", "1 writes charged after the kill, not 0"),
        (True, AFTER, replace(END, writes=2), "succeeded", "2 writes charged in the end"),
        (True, AFTER, replace(END, turns=2), "succeeded", "turns charged after"),
        (True, AFTER, replace(END, tokens=12), "succeeded", "1 (6 tokens), 1 (12 tokens)"),
        (True, replace(AFTER, approvals=("granted",)), END, "succeeded", "approval is granted"),
        (True, AFTER, replace(END, approvals=("consumed",) * 2), "succeeded", "then consumed"),
        (True, replace(AFTER, checkpoint=0), END, "succeeded", "versions are 1, 0, 2"),
        (True, AFTER, END, "unknown", "not completed_with_unknown"),
        (True, AFTER, replace(END, status="failed"), "succeeded", "failed, not completed"),
    ],
)
def test_a_line_holds_only_if_the_run_has_lost_nothing(
    intent: bool, after: Kept, end: Kept, state: str, wrong: str
) -> None:
    found = "; ".join(faults(intent, KEPT, after, end, state))
    assert wrong in found if wrong else found == ""


CONSUMED = ["consumed"] * (CALLS // 2)


@pytest.mark.parametrize(
    ("states", "charged", "status", "approvals", "found"),
    [
        (["succeeded", "succeeded"], 2, "completed", CONSUMED, []),
        (["succeeded", "unknown"], 2, "completed_with_unknown", CONSUMED, []),
        (["succeeded", "succeeded"], 1, "completed", CONSUMED, ["budget_resets"]),
        (["succeeded", "succeeded"], 3, "completed", CONSUMED, ["budget_resets"]),
        (["succeeded", "unknown"], 2, "completed", CONSUMED, ["wrong_status"]),
        (["succeeded", "succeeded"], 2, "completed", CONSUMED[:2], ["approvals"]),
        (["succeeded", "succeeded"], 2, "completed", [*CONSUMED, "waiting"], ["approvals"]),
    ],
)
def test_random_kills_are_judged_by_budget_and_status_of_their_runs(
    states: list[str], charged: int, status: str, approvals: list[str], found: list[str]
) -> None:
    report = Report(seed=1)
    told = {"budget": {"writes": {"used": charged}}, "status": status}
    report.count_run("run", told, states, approvals)
    assert [sentence.partition(":")[0] for sentence in report.wrong] == found


@pytest.mark.parametrize(
    ("plant", "point", "kind", "why"),
    [
        ("charged_late", "after_effect", "neither", "0 writes charged after the kill, not 1"),
        ("approval_of_anything", "after_effect", "key", "an amount that nobody has approved"),
        ("revoked_until_commit", "revoked", "key", "after the revocation was acknowledged"),
        ("journal_of_one_process", "after_intent", "key", "model said something else"),
        pytest.param(
            *("asked_again_after_a_start", "after_effect", "key", "unknown"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("status_of_the_close", "after_effect", "neither", "not completed_with_unknown"),
            marks=pytest.mark.slow,
        ),
    ],
)
async def test_a_bug_in_what_a_run_keeps_turns_the_drill_red(
    plant: str, point: str, kind: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProxyUnderDrill, "program", ("tests.faults.planted", plant))
    shown = await run(Options(points=(point,), kinds=(kind,), json=True))
    [line] = shown["lines"]
    assert any(why in sentence for sentence in line["why"]), line
    control("R21", f"`{plant.replace('_', ' ')}` in the drill", line["why"][0])


async def test_a_kill_between_effect_and_record_leaves_one_effect() -> None:
    shown = await run(Options(points=("after_effect",), json=True))
    assert {line["kind"]: line["why"] for line in shown["lines"]} == {
        "key": [],
        "query": [],
        "neither": [],
    }
    assert [line["effects"] for line in shown["lines"]] == [1, 1, 1]
    for line in shown["lines"]:
        assert [line[look]["writes"] for look in ("before", "after", "end")] == [0, 1, 1]
        assert [line[look]["turns"] for look in ("before", "after", "end")] == [0, 1, 1]
        assert [line[look]["tokens"] for look in ("before", "after", "end")] == [0, 6, 6]
        assert line["end"]["approvals"] == ["consumed"]
        assert line["end"]["checkpoint"] == 2
    assert shown["holds"]


async def test_what_is_revoked_between_intent_and_first_byte_is_not_sent() -> None:
    shown = await run(Options(points=("revoked",), kinds=("key",), json=True))
    [line] = shown["lines"]
    assert line["why"] == []
    assert (line["effects"], line["end"]["status"]) == (0, "revoked")


LYING_RULES = """\
service: liar
hosts: ["{host}"]
source: proxy/drill/toyapi.py
confidence: documented
checked: "2026-11-30"
key: {in: header, name: Idempotency-Key, valid_for: 24h, keeps: success}
endpoints:
  invoices.create:
    match: POST /invoices
"""


async def test_a_rule_that_promises_what_its_api_does_not_do_turns_the_drill_red(
    api: ToyApi, tmp_path: Path
) -> None:
    (tmp_path / "liar.yaml").write_text(
        LYING_RULES.replace("{host}", api.url.removeprefix("http://")), encoding="utf-8"
    )
    foreign = Foreign(
        api.url,
        tmp_path,
        kind="key",
        send="POST /invoices",
        body='{"reference": "{reference}"}',
        count_by="GET /invoices?reference={reference}",
        items="data",
    )
    told: list[str] = []
    options = Options(points=("after_effect",), json=True, foreign=foreign)
    assert not await drill(options, told.append)
    (line,) = json.loads(told[-1])["lines"]
    assert (line["effects"], line["holds"]) == (2, False)
    assert line["why"] == ["2 effects: a duplicate"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--upstream", "http://127.0.0.1:9"],
        ["--upstream", "http://127.0.0.1:9", "--rules", ".", "--kind", "key", "--send", "POST /x"],
        ["--kind", "telepathy"],
        ["--random", "0"],
    ],
)
def test_a_drill_that_cannot_be_run_is_a_usage_error(arguments: list[str]) -> None:
    result = CliRunner().invoke(drill_command, arguments)
    assert result.exit_code == 2
    assert "Usage:" in result.output


def test_a_server_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    arguments = ["--upstream", "http://127.0.0.1:9", "--rules", str(tmp_path), "--kind", "key"]
    arguments += ["--send", "POST /x/{reference}", "--count", "GET /x", "--within", "0"]
    result = CliRunner().invoke(drill_command, arguments)
    assert result.exit_code == 1
    assert "start the server first" in result.output


@pytest.mark.slow
@pytest.mark.timeout(600)  # many processes in turn; takes one to two minutes on two busy cores
async def test_every_point_holds_for_every_kind() -> None:
    shown = await run(Options(json=True))
    assert len(shown["lines"]) == len(POINTS) * 3
    assert [line for line in shown["lines"] if not line["holds"]] == []


@pytest.mark.slow
@pytest.mark.timeout(600)  # many processes in turn; takes one to two minutes on two busy cores
async def test_random_kills_duplicate_and_lose_nothing() -> None:
    shown = await run(Options(random=10, seed=7, json=True))
    assert shown["random"]["wrong"] == []
    assert shown["random"]["kills"] >= 8  # an agent may now and then be done before its kill


async def test_the_demo_shows_two_refunds_without_and_one_with() -> None:
    told: list[str] = []
    assert await demo(Teller(told.append))
    story = "\n".join(told)
    assert "without onceproxy: 2 refunds    with onceproxy: 1 refund" in story
    assert "\x1b" not in story
