"""The loader: defaults as the design states them, later directories win, warnings do not refuse."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from proxy.core.matching import RuleSet
from proxy.core.rules import Later
from proxy.rulefile import RuleErrors, json_schema, load, yamltext
from proxy.rulefile.explain import explain
from proxy.rulefile.loader import load_file, load_files, load_text, without_examples
from proxy.rulefile.problems import Problems
from proxy.rulefile.testing import request_of, run_examples

EVERYTHING = Path(__file__).with_name("everything.yaml")
SHIPPED = Path(__file__).parents[2] / "rules"
HEAD = "hosts: [api.acme.test]\nsource: https://docs.test\nconfidence: {}\n"


def acme(body: str, confidence: str = "documented", name: str = "acme") -> str:
    return f"service: {name}\n{HEAD.format(confidence)}{body}"


def test_a_file_that_says_everything_is_read() -> None:
    file = load_file(EVERYTHING)
    refund = file.service.endpoints[0]

    assert refund.title == "acme-pay.refunds.create"
    assert refund.account == ("header", "Acme-Account")
    assert refund.auth is not None
    assert refund.auth.secret_env == "ACME_KEY"
    assert refund.key is not None
    assert refund.key.valid_for == 86_400
    assert refund.key.minted == ("uuid4", "acme-retry-")
    assert refund.refusal == {"status": 200, "body": {"ok": False, "error": "onceproxy_{code}"}}
    assert len(refund.answers) == 3
    assert refund.reconcile[0].settle is None
    assert refund.reconcile[1].running == 0
    assert refund.approval is not None
    assert refund.approval.expires == 3600
    assert refund.was == ("refund",)
    assert refund.meter is None
    assert not refund.journal

    chat = file.service.endpoints[1]
    assert chat.journal
    assert chat.meter is not None
    assert chat.meter.default == 100
    assert [path.text for path in chat.meter.max_tokens] == ["body.max_tokens", "query.max_tokens"]


def test_its_examples_hold() -> None:
    results = run_examples([load_file(EVERYTHING)])

    assert len(results) == 4
    assert [r for r in results if not r.passed] == []


def problems_after(old: str, new: str) -> str:
    """What the examples say once a text in the file is another."""
    text = EVERYTHING.read_text()
    assert old in text
    results = run_examples([load_text(text.replace(old, new, 1))])
    return "\n".join(problem for result in results for problem in result.problems)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("means: found}", "means: none}", "lookups[0]: expected none, it is found"),
        ("{code: in_use}}, means", "{code: other}}, means", "answers[2]: expected running"),
        ("endpoint: refunds.create", "endpoint: other", "matched acme-pay.refunds.create"),
        ('{"metadata[key]": "{key}"', '{"metadata[key]": other', "form metadata[key]: expected"),
        ("approval: false", "approval: true", "expected approval True, it is False"),
        ("external_id: r1}", "external_id: r2}", "expected external_id r2, it is r1"),
        ("reserved: 40", "reserved: 41", "expected reserved 41, it is 40"),
        ("tokens: 7}", "tokens: 8}", "answers[0]: expected tokens 8, it is 7"),
        ("tokens: unknown}", "tokens: 0}", "answers[1]: expected tokens 0, it is 'unknown'"),
        ("pages: [{data: [], has_more: false}], ", "", "it asks for another page"),
    ],
)
def test_an_example_that_does_not_hold_says_what_came_instead(
    old: str, new: str, says: str
) -> None:
    assert says in problems_after(old, new)


def test_what_is_not_stated_has_its_default() -> None:
    endpoints = load_text(
        acme(
            "key: {in: header, name: K}\n"
            "endpoints:\n"
            "  a: {match: POST /a, marker: {in: json, name: m}, reconcile: "
            '{request: GET /a, where: {m: "{key}"}}}\n'
            "  b: {match: PUT /b}\n"
            "  c: {match: DELETE /c, idempotent: false}\n"
            "  d: {match: OPTIONS /d}\n"
            "  e: {match: GET /e, effect: write}\n"
            "  f: {match: POST /f, key: none, reconcile: "
            '{by: content, request: GET /f, where: {m: "{body.m}"}}}\n'
        )
    ).service.endpoints
    a, b, c, d, e, f = endpoints
    lookup = a.reconcile[0]

    assert (a.effect, a.mode, a.signed, a.answer_format, a.refusal) == (
        "write", "enforce", "none", "json", None,
    )  # fmt: skip
    assert a.key is not None
    assert (a.key.rendering, a.key.max_length, a.key.valid_for, a.key.keeps, a.key.existing) == (
        "raw", 255, None, "unstated", "replace",
    )  # fmt: skip
    assert a.marker is not None
    assert a.marker.existing == "keep"
    assert (lookup.running, lookup.settle, lookup.looks, lookup.absent, lookup.by) == (
        60, 5, 2, "resend", "marker",
    )  # fmt: skip
    assert (lookup.answer_status, lookup.answer_body, lookup.pages) == (200, None, None)
    assert (a.idempotent, b.idempotent, c.idempotent) == (False, True, False)
    assert (d.effect, e.effect) == ("read", "write")
    assert f.key is None
    assert f.reconcile[0].absent == "ask"


def test_forever_is_infinite_and_unstated_is_unknown() -> None:
    text = acme(
        "endpoints:\n  a: {match: POST /a, key: {in: json, name: id, valid_for: forever}}\n"
    )

    key = load_text(text).service.endpoints[0].key
    assert key is not None
    assert key.valid_for == math.inf


@pytest.mark.parametrize(
    ("confidence", "mode", "expected"),
    [
        ("inferred", "", "observe"),
        ("inferred", "mode: enforce\n", "enforce"),
        ("sdk", "", "enforce"),
        ("sdk", "mode: pass\n", "pass"),
    ],
)
def test_what_is_only_inferred_starts_by_observing(
    confidence: str, mode: str, expected: str
) -> None:
    text = acme(f"{mode}key: none\nendpoints:\n  a: {{match: POST /a}}\n", confidence)

    assert load_text(text).service.endpoints[0].mode == expected


def test_an_endpoint_wins_over_its_service() -> None:
    text = acme(
        "mode: observe\nsigned: body\naccount: {header: A}\nkey: {in: header, name: K}\n"
        "answers: [{status: 418, means: rejected}]\n"
        "endpoints:\n  a: {match: POST /a, mode: enforce, signed: none, account: {jwt: sub}, "
        "key: none, answers: [{status: 419, means: unknown}]}\n"
    )
    endpoint = load_text(text).service.endpoints[0]

    assert (endpoint.mode, endpoint.signed, endpoint.key) == ("enforce", "none", None)
    assert endpoint.account == ("jwt", "sub")
    assert [line.means for line in endpoint.answers] == ["unknown", "rejected"]


def test_risky_but_honest_rules_are_loaded_with_a_warning() -> None:
    text = acme(
        "key: {in: json, name: id}\nendpoints:\n"
        "  a: {match: POST /a, reconcile: "
        '{request: "GET /a/{key}", running: 0s, looks: 1}}\n'
        "  b: {match: POST /b, reconcile: "
        '{request: GET /b, where: {id: "{key}"}, looks: 1, pages: {page: p}}}\n'
    )
    file = load_text(text)

    assert any("no `answers`" in warning for warning in file.warnings)
    assert any("one look is trusted" in warning for warning in file.warnings)
    assert any("0s says" in warning for warning in file.warnings)
    assert any("raised to 2" in warning for warning in file.warnings)
    assert [e.reconcile[0].looks for e in file.service.endpoints] == [1, 2]


def test_a_later_directory_replaces_the_file_of_the_same_service(tmp_path: Path) -> None:
    shipped, own = tmp_path / "shipped", tmp_path / "own"
    for directory, path in ((shipped, "/old"), (own, "/new")):
        directory.mkdir()
        (directory / "rules.yaml").write_text(
            acme(f"key: none\nendpoints:\n  a: {{match: POST {path}}}\n")
        )
    (shipped / "other.yml").write_text(
        acme("key: none\nendpoints:\n  a: {match: POST /other}\n", name="other")
    )
    (shipped / "README.md").write_text("no rule file")

    rules = load([shipped, own])

    assert [service.name for service in rules.services] == ["acme", "other"]
    match = rules.services[0].endpoints[0].match
    assert match is not None
    assert match.text == "POST /new"
    assert rules.warnings


def test_two_files_of_one_service_in_a_directory_are_a_mistake(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(acme("key: none\nendpoints:\n  a: {match: POST /a}\n"))

    with pytest.raises(RuleErrors, match="service names are unique"):
        load([tmp_path])


def test_mistakes_in_all_files_are_reported_together(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("service: a\n")
    (tmp_path / "b.yaml").write_text("hosts: 5\n")
    (tmp_path / "c.yaml").write_bytes(b"\xff")
    (tmp_path / "d.yaml").write_text("")

    with pytest.raises(RuleErrors) as caught:
        load_files([tmp_path, tmp_path / "absent"])

    text = str(caught.value)
    for expected in ("a.yaml:1:1: hosts: is required", "b.yaml:1:1: hosts: must be a list",
                     "c.yaml: is not UTF-8", "d.yaml:1:1: the file is empty",
                     "absent: cannot be read"):  # fmt: skip
        assert expected in text


def test_a_digest_covers_what_the_file_says_but_not_its_examples() -> None:
    text = EVERYTHING.read_text()
    digest = load_text(text).service.endpoints[0].digest

    assert load_text(text + "\n# a comment\n").service.endpoints[0].digest == digest
    assert (
        load_text(text.replace("means: found}", "means: none}")).service.endpoints[0].digest
        == digest
    )
    assert (
        load_text(text.replace("valid_for: 24h", "valid_for: 23h")).service.endpoints[0].digest
        != digest
    )
    assert load_text(text.replace("looks: 3", "looks: 4")).service.endpoints[0].digest != digest


def test_the_json_schema_is_draft_07_and_resolves_its_own_references() -> None:
    schema = json_schema()
    text = json.dumps(schema)

    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert "$defs" not in text
    assert "discriminator" not in text
    for reference in {part.split('"')[0] for part in text.split('"#/definitions/')[1:]}:
        assert reference in schema["definitions"]
    assert set(schema["required"]) == {"service", "hosts", "source", "confidence", "endpoints"}
    assert "in" in schema["definitions"]["Key"]["properties"]


def test_a_call_is_explained() -> None:
    rules = RuleSet([load_file(EVERYTHING).service])
    form = (("Content-Type", "application/x-www-form-urlencoded"),)

    lines = dict(explain(rules, "post", "https://api.acme-pay.test/v1/refunds", form, b"charge=c"))
    assert lines["endpoint"] == "acme-pay.refunds.create"
    assert lines["operation key"] == "RUN/STEP/acme-pay.refunds.create~DIGEST/v1"
    assert lines["key"] == "header Idempotency-Key, honoured for 24h"
    assert lines["settles by"] == "key+query"
    assert dict(explain(rules, "POST", "https://api.acme-pay.test/x"))["endpoint"].startswith(
        "none"
    )
    assert dict(explain(rules, "POST", "https://other.test/x"))["endpoint"].startswith("none")
    assert "refused" in dict(explain(rules, "POST", "https://api.acme-pay.test/a/../b"))
    with pytest.raises(ValueError, match="URL"):
        explain(rules, "POST", "nonsense")


def test_what_is_in_force_is_the_same_without_the_examples() -> None:
    dirs = [SHIPPED, EVERYTHING.parent]
    whole = RuleSet([file.service for file in load_files(dirs)])
    assert load(dirs).digest == whole.digest
    texts = [path.read_text() for path in sorted(SHIPPED.glob("*.yaml"))]
    short = [without_examples(text) for text in texts]
    assert sum(text is not None and "request: {send:" not in text for text in short) > 0.9 * len(
        short
    )


def test_a_fault_is_told_at_its_own_line_whether_examples_are_read_or_not(tmp_path: Path) -> None:
    endpoint = "  a:\n    match: POST /a\n    examples:\n      - request: {send: POST /a}\n"
    text = acme(f"key: none\nendpoints:\n{endpoint}    efect: write\n")
    (tmp_path / "acme.yaml").write_text(text)
    with pytest.raises(RuleErrors) as caught:
        load([tmp_path])
    [problem] = caught.value.problems
    assert f":{text.count(chr(10))}:5:" in problem


def test_examples_with_an_anchor_are_read_since_something_may_repeat_it() -> None:
    endpoint = "  {}:\n    match: POST /{}\n    examples:\n      - request: {}\n"
    first = endpoint.format("a", "a", "&one {send: POST /a}")
    file = load_text(acme(f"key: none\nendpoints:\n{first}{endpoint.format('b', 'b', '*one')}"))
    assert without_examples(first) is None
    assert len(file.model.endpoints["b"].examples) == 1


def test_libyaml_reads_the_same_as_the_parser_that_gives_the_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if yamltext.QUICK is None:
        pytest.skip("PyYAML is without libyaml here")
    texts = [path.read_text() for path in [EVERYTHING, *sorted(SHIPPED.glob("*.yaml"))[::7]]]
    quick = [_values_and_places(text) for text in texts]
    monkeypatch.setattr(yamltext, "QUICK", None)
    assert [_values_and_places(text) for text in texts] == quick


def _values_and_places(text: str) -> object:
    problems = Problems("rules")
    return yamltext.read(text, problems), problems.marks, problems.errors


def test_files_known_to_be_right_are_read_when_a_call_needs_them(tmp_path: Path) -> None:
    """Of a directory of that kind: the same rules, and what is wrong in it shows with its call."""
    dirs = (SHIPPED / "generated", SHIPPED)
    at_once, later = load(dirs), load(dirs, later=dirs)
    waiting = [s for s in later.services if isinstance(s.endpoints, Later)]
    assert len(waiting) > 100
    assert all(s.endpoints._found is None for s in waiting)
    assert [s.name for s in later.services] == [s.name for s in at_once.services]
    assert (later.hosts, later.names) == (at_once.hosts, at_once.names)

    call = request_of("POST", "https://api.stripe.com/v1/refunds", (), b"", None)
    found, wanted = later.match(call), at_once.match(call)
    assert found is not None
    assert wanted is not None
    assert found.endpoint == wanted.endpoint
    assert [s.name for s in waiting if s.endpoints._found is not None] == ["stripe"]
    assert later.endpoint("slack", "chat.postMessage") is not None
    assert later.endpoint("slack", "none") is None
    assert later.endpoint("none", "none") is None

    (tmp_path / "acme.yaml").write_text(acme("endpoints:\n  a: {match: POST /a, kex: none}\n"))
    broken = load([tmp_path], later=[tmp_path])
    with pytest.raises(RuleErrors, match="kex"):
        broken.match(request_of("POST", "https://api.acme.test/a", (), b"", None))
    with pytest.raises(RuleErrors, match="kex"):
        load([tmp_path])


def test_what_any_host_may_meet_is_read_at_once() -> None:
    rules = load([SHIPPED], later=[SHIPPED])
    everywhere = [s for s in rules.services if any(host.everywhere for host in s.hosts)]
    assert {"a2a", "mcp", "oauth"} <= {service.name for service in everywhere}
    assert not any(isinstance(service.endpoints, Later) for service in everywhere)
