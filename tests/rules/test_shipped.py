"""The rule files that are shipped: they load, their examples hold, and what they place is exact."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from proxy.core.classify import classify
from proxy.core.keys import is_minted, render
from proxy.core.matching import RuleSet
from proxy.core.model import Answer, Answered, Body, Request
from proxy.core.placement import CannotPlace, put_key, put_marker
from proxy.core.rules import Endpoint
from proxy.core.views import RequestView
from proxy.rulefile.complete import too_few
from proxy.rulefile.loader import load, load_files
from proxy.rulefile.testing import run_examples

RULES = Path(__file__).parents[2] / "rules"
FILES = sorted(RULES.glob("*.yaml"))
JSON = ("Content-Type", "application/json")
FORM = ("Content-Type", "application/x-www-form-urlencoded")
KEY = "support-case-1842/issue-refund/stripe.refunds.create/v1"


@pytest.fixture(scope="module")
def rules() -> RuleSet:
    return load([RULES])


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a megabyte of rules, ten times faster


@cache
def documents() -> dict[str, dict]:
    return {path.name: yaml.load(path.read_text("utf-8"), LOADER) for path in FILES}


def request(method: str, url: str, *headers: tuple[str, str], body: bytes = b"") -> Request:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    return Request(method, parts.scheme, parts.hostname or "", port, target, headers, Body.of(body))


def endpoint_of(rules: RuleSet, sent: Request) -> Endpoint:
    matched = rules.match(sent)
    assert matched is not None, f"nothing matches {sent.method} {sent.url}"
    return matched.endpoint


def marker_text(endpoint: Endpoint, operation_key: str) -> str:
    assert endpoint.marker is not None
    return render(operation_key, endpoint.marker.rendering, max_length=endpoint.marker.max_length)


def as_sent(rules: RuleSet, sent: Request, operation_key: str = KEY) -> Request:
    """The request with the key and the mark that its endpoint places."""
    endpoint = endpoint_of(rules, sent)
    if endpoint.key is not None:
        spec = endpoint.key
        key = render(
            operation_key,
            spec.rendering,
            max_length=spec.max_length,
            min_length=spec.min_length,
            alphabet=spec.alphabet,
            prefix=spec.prefix,
        )
        sent = put_key(sent, spec, key, endpoint.match)
    if endpoint.marker is not None:
        text = marker_text(endpoint, operation_key)
        sent = put_marker(sent, endpoint.marker, text, {"key": text}, endpoint.match)
    return sent


def text_of(sent: Request) -> str:
    assert sent.body.data is not None
    return sent.body.data.decode()


# The files as a whole


def test_every_file_is_loaded_and_nothing_is_warned_about(rules: RuleSet) -> None:
    assert {service.name for service in rules.services} == {
        document["service"] for document in documents().values()
    }
    assert list(rules.warnings) == []


def test_all_examples_hold() -> None:
    results = run_examples(load_files([RULES]))
    assert results
    assert [result for result in results if not result.passed] == []


def test_the_examples_show_what_every_endpoint_that_writes_does() -> None:
    assert [str(each) for each in too_few(load_files([RULES / "generated", RULES]))] == []


def test_every_write_has_an_example_with_a_success_and_an_unknown_end(rules: RuleSet) -> None:
    examples = {
        (document["service"], name): endpoint.get("examples", [])
        for document in documents().values()
        for name, endpoint in document["endpoints"].items()
    }
    for service in rules.services:
        for endpoint in service.endpoints:
            if endpoint.effect != "write":
                continue
            own = examples[service.name, endpoint.name]
            means = {line["means"] for example in own for line in example.get("answers", [])}
            assert {"succeeded", "unknown"} <= means, endpoint.title


def test_every_lookup_has_an_example_with_a_hit_and_one_without() -> None:
    for name, document in documents().items():
        for title, endpoint in document["endpoints"].items():
            if "reconcile" not in endpoint:
                continue
            means = {
                line["means"]
                for example in endpoint["examples"]
                for line in example.get("lookups", [])
            }
            assert {"found", "none"} <= means, f"{name} {title}"


def test_what_is_found_by_its_content_has_an_id_that_tells_it_from_others() -> None:
    """Without one it is never adopted: it might be another operation's."""
    for name, document in documents().items():
        for title, endpoint in document["endpoints"].items():
            lookups = endpoint.get("reconcile", [])
            for lookup in lookups if isinstance(lookups, list) else [lookups]:
                if lookup.get("by") == "content":
                    assert "external_id" in endpoint or "external_id" in lookup, f"{name} {title}"


def test_every_file_says_where_its_facts_come_from_and_when_they_were_checked() -> None:
    for name, document in documents().items():
        assert document["source"].startswith("https://"), name
        assert document["checked"] == "2026-11-30", name


def test_what_is_only_inferred_is_not_enforced(rules: RuleSet) -> None:
    for service in rules.services:
        if service.confidence == "inferred":
            assert {endpoint.mode for endpoint in service.endpoints} == {"observe"}, service.name


def test_a_rule_for_any_host_shapes_no_refusal_of_a_host_that_has_none(rules: RuleSet) -> None:
    assert rules.refusal_at("api.elsewhere.test", 443) is None
    assert rules.refusal_at("slack.com", 443) is not None


# What is placed


def test_a_stripe_refund_gets_the_operation_key_as_key_and_as_metadata(rules: RuleSet) -> None:
    body = b"payment_intent=pi_1&amount=500&metadata[case]=1842"
    sent = as_sent(rules, request("POST", "https://api.stripe.com/v1/refunds", FORM, body=body))
    assert sent.header("Idempotency-Key") == KEY
    assert text_of(sent).startswith(body.decode() + "&")
    view = RequestView(sent)
    assert view.get("body.metadata.operation_key") == KEY
    assert view.get("body.metadata.case") == "1842"
    assert view.get("body.amount") == "500"


def test_a_stripe_call_without_a_body_gets_only_the_header(rules: RuleSet) -> None:
    sent = as_sent(rules, request("POST", "https://api.stripe.com/v1/invoices/in_1/send"))
    assert sent.headers == (("Idempotency-Key", KEY),)
    assert text_of(sent) == ""


def test_a_mark_of_the_callers_own_is_left_alone(rules: RuleSet) -> None:
    body = b"charge=ch_1&metadata%5Boperation_key%5D=mine"
    with pytest.raises(CannotPlace):
        as_sent(rules, request("POST", "https://api.stripe.com/v1/refunds", FORM, body=body))


@pytest.mark.parametrize(
    ("key", "minted"),
    [
        ("9f1c1d3e-5a8b-4f6e-9a51-3f1f0f5b8a77", True),
        ("stripe-node-retry-9f1c1d3e-5a8b-4f6e-9a51-3f1f0f5b8a77", True),
        ("invoice-42", False),
    ],
)
def test_keys_that_stripe_libraries_make_up_are_replaced_and_business_keys_are_kept(
    rules: RuleSet, key: str, minted: bool
) -> None:
    endpoint = endpoint_of(rules, request("POST", "https://api.stripe.com/v1/refunds"))
    assert endpoint.key is not None
    assert is_minted(key, endpoint.key.minted) is minted


def test_updates_at_stripe_are_not_marked_over_the_mark_of_the_create(rules: RuleSet) -> None:
    for path in ("customers/cus_1", "invoices/in_1", "subscriptions/sub_1", "charges/ch_1"):
        endpoint = endpoint_of(rules, request("POST", f"https://api.stripe.com/v1/{path}"))
        assert endpoint.key is not None
        assert endpoint.marker is None, path


def test_every_stripe_post_has_a_key(rules: RuleSet) -> None:
    for path in ("issuing/cards", "terminal/readers/tmr_1/process_payment_intent", "x/y/z/w"):
        endpoint = endpoint_of(rules, request("POST", f"https://api.stripe.com/v1/{path}"))
        assert endpoint.key is not None
        assert endpoint.key.name == "Idempotency-Key"
        assert endpoint.key.valid_for == 86_400


def test_a_github_comment_gets_one_invisible_line_and_keeps_the_rest(rules: RuleSet) -> None:
    url = "https://api.github.com/repos/acme/shop/issues/42/comments"
    sent = as_sent(rules, request("POST", url, JSON, body=b'{"body": "Done.", "n": 1.0}'))
    line = f"<!-- {render(KEY, 'digest')} -->"
    assert text_of(sent) == '{"body": "Done.\\n\\n' + line + '", "n": 1.0}'
    assert sent.header("Idempotency-Key") is None


def test_a_github_issue_without_text_is_not_given_one(rules: RuleSet) -> None:
    url = "https://api.github.com/repos/acme/shop/issues"
    with pytest.raises(CannotPlace):
        as_sent(rules, request("POST", url, JSON, body=b'{"title": "Broken"}'))


def test_a_slack_message_in_json_gets_the_digest_as_metadata(rules: RuleSet) -> None:
    url = "https://slack.com/api/chat.postMessage"
    sent = as_sent(rules, request("POST", url, JSON, body=b'{"channel": "C1", "text": "Done"}'))
    assert json.loads(text_of(sent)) == {
        "channel": "C1",
        "text": "Done",
        "metadata": {
            "event_type": "onceproxy",
            "event_payload": {"operation_key": render(KEY, "digest")},
        },
    }


def test_a_slack_message_in_a_form_gets_its_metadata_as_one_json_field(rules: RuleSet) -> None:
    url = "https://slack.com/api/chat.postMessage"
    sent = as_sent(rules, request("POST", url, FORM, body=b"channel=C1&text=Done"))
    fields = RequestView(sent).get("body")
    metadata = fields["metadata"]
    assert fields["text"] == "Done"
    assert (json.loads(metadata) if isinstance(metadata, str) else metadata) == {
        "event_type": "onceproxy",
        "event_payload": {"operation_key": render(KEY, "digest")},
    }
    assert "metadata=%7B" in text_of(sent)  # Slack takes JSON text here, not metadata[...]


def test_a_slack_message_keeps_the_event_type_of_the_caller(rules: RuleSet) -> None:
    url = "https://slack.com/api/chat.postMessage"
    body = b'{"channel":"C1","metadata":{"event_type":"task","event_payload":{"id":7}}}'
    sent = as_sent(rules, request("POST", url, JSON, body=body))
    metadata = json.loads(text_of(sent))["metadata"]
    assert metadata["event_type"] == "task"
    assert metadata["event_payload"] == {"id": 7, "operation_key": render(KEY, "digest")}


def test_a_calendar_event_gets_an_id_that_google_accepts(rules: RuleSet) -> None:
    url = "https://www.googleapis.com/calendar/v3/calendars/primary/events"
    sent = as_sent(rules, request("POST", url, JSON, body=b'{"summary": "Review"}'))
    event = json.loads(text_of(sent))
    assert event["summary"] == "Review"
    assert 5 <= len(event["id"]) <= 1024
    assert set(event["id"]) <= set("0123456789abcdefghijklmnopqrstuv")


def test_the_first_slack_refusal_shape_is_a_200_that_says_not_ok(rules: RuleSet) -> None:
    endpoint = endpoint_of(rules, request("POST", "https://slack.com/api/chat.postMessage"))
    assert endpoint.refusal is not None
    assert endpoint.refusal["status"] == 200
    assert endpoint.refusal["body"]["ok"] is False


# What is a read, and what is not


@pytest.mark.parametrize(
    ("url", "title", "headers", "body"),
    [
        ("https://api.openai.com/v1/chat/completions", "models.openai.chat", (JSON,), b"{}"),
        ("https://api.openai.com/v1/responses", "models.openai.responses", (JSON,), b"{}"),
        ("https://api.openai.com/v1/embeddings", "models.openai.embeddings", (JSON,), b"{}"),
        ("https://api.openai.com/v1/traces/ingest", "models.openai.traces", (JSON,), b"{}"),
        ("https://api.anthropic.com/v1/messages", "models.anthropic.messages", (JSON,), b"{}"),
        (
            "https://generativelanguage.googleapis.com/v1beta/models/g-2:streamGenerateContent?alt=sse",
            "models.gemini.stream",
            (JSON,),
            b"{}",
        ),
        ("http://127.0.0.1:8000/v1/chat/completions", "models-compatible.chat", (JSON,), b"{}"),
        ("http://127.0.0.1:11434/api/chat", "ollama.chat", (JSON,), b"{}"),
        (
            "https://slack.com/api/conversations.history",
            "slack.conversations.history",
            (FORM,),
            b"",
        ),
        ("https://o1.ingest.de.sentry.io/api/2/envelope/", "telemetry-intakes.intake", (), b"{}"),
        ("https://api.smith.langchain.com/runs/batch", "telemetry.langsmith.batch", (JSON,), b"{}"),
        (
            "https://cloud.langfuse.com/api/public/ingestion",
            "telemetry.langfuse.batch",
            (JSON,),
            b"{}",
        ),
        ("https://us.i.posthog.com/i/v0/e/", "telemetry.posthog.event", (JSON,), b"{}"),
        ("https://api.segment.io/v1/batch", "telemetry.segment.batch", (JSON,), b"{}"),
        (
            "http://127.0.0.1:4318/v1/traces",
            "otlp.traces",
            (("Content-Type", "application/x-protobuf"),),
            b"\x0a\x00",
        ),
        (
            "https://auth.example.test/token",
            "oauth.token",
            (FORM,),
            b"grant_type=client_credentials",
        ),
    ],
)
def test_reads_by_post(
    rules: RuleSet,
    url: str,
    title: str,
    headers: tuple[tuple[str, str], ...],
    body: bytes,
) -> None:
    endpoint = endpoint_of(rules, request("POST", url, *headers, body=body))
    assert endpoint.title == title
    assert endpoint.effect == "read"


@pytest.mark.parametrize(
    ("url", "headers", "body"),
    [
        ("https://api.openai.com/v1/files", (JSON,), b"{}"),
        ("https://api.openai.com/v1/fine_tuning/jobs", (JSON,), b"{}"),
        ("https://api.anthropic.com/v1/messages/batches", (JSON,), b"{}"),
        (
            "https://generativelanguage.googleapis.com/v1beta/models/g-2:batchGenerateContent",
            (JSON,),
            b"{}",
        ),
        ("https://shop.example.test/v1/messages", (JSON,), b'{"model": "x"}'),
        ("https://shop.example.test/api/chat", (JSON,), b'{"model": "x", "messages": []}'),
        ("https://shop.example.test/v1/traces", (JSON,), b'{"parcel": 1}'),
        ("https://shop.example.test/orders", (FORM,), b"item=1"),
        ("https://shop.example.test/orders", (JSON,), b'{"grant_type": "x"}'),
        ("https://api.datadoghq.com/api/v1/monitor", (JSON,), b"{}"),
    ],
)
def test_what_stays_is_not_taken_for_a_read(
    rules: RuleSet, url: str, headers: tuple[tuple[str, str], ...], body: bytes
) -> None:
    matched = rules.match(request("POST", url, *headers, body=body))
    assert matched is None or matched.endpoint.effect == "write"


def test_rules_for_any_host_name_no_host(rules: RuleSet) -> None:
    assert not rules.knows_host("shop.example.test", 443)
    assert rules.knows_host("api.stripe.com", 443)


# What answers mean, where a mistake would make a duplicate


def verdict(
    rules: RuleSet, sent: Request, status: int, body: bytes, *, complete: bool = True
) -> str:
    matched = rules.match(sent)
    assert matched is not None
    answer = Answer(status, "", (JSON,), Body.of(body))
    keyed = matched.endpoint.key is not None
    ended = classify(matched.endpoint, Answered(answer, complete), keyed=keyed)
    return ended.means


def test_a_slack_answer_that_broke_off_is_unknown(rules: RuleSet) -> None:
    sent = request("POST", "https://slack.com/api/chat.postMessage", JSON, body=b"{}")
    assert verdict(rules, sent, 200, b'{"ok": tr', complete=False) == "unknown"
    assert verdict(rules, sent, 200, b"<html>proxy error</html>") == "unknown"


def test_a_stripe_mismatch_is_no_refusal(rules: RuleSet) -> None:
    sent = request("POST", "https://api.stripe.com/v1/refunds", FORM, body=b"charge=ch_1")
    for status in (400, 409):
        body = b'{"error": {"type": "idempotency_error"}}'
        assert verdict(rules, sent, status, body) == "mismatch"
