"""What a GraphQL request executes, and one value put where an argument stands."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from graphql import parse, print_ast
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.core import graphql
from proxy.core.call import noise_of
from proxy.core.classify import classify
from proxy.core.fingerprint import canonical
from proxy.core.matching import RuleSet
from proxy.core.model import Answer, Answered, Body, Headers, Request
from proxy.core.paths import parse_steps
from proxy.core.placement import CannotPlace, argument_path, key_of_caller, put_key, put_marker
from proxy.core.rules import KeySpec, Marker
from proxy.core.templates import parse_template
from proxy.core.views import RequestView
from proxy.rulefile.loader import load_text
from proxy.rulefile.problems import RuleErrors

JSON: Headers = (("Content-Type", "application/json"),)
RULE = """
service: rpc
hosts: [rpc.test]
source: here
confidence: documented
key: none
endpoints:
  any: {match: {request: POST /graphql, graphql: [create, update]}, external_id: data.create.id}
  unknown: {match: {request: POST /graphql, graphql: unknown}}
  other: {match: {request: POST /graphql, graphql: mutation}}
  asked: {match: {request: GET /graphql, graphql: query}}
  written: {match: {request: GET /graphql, graphql: mutation}, effect: write}
"""
RULES = RuleSet([load_text(RULE).service])  # type: ignore[list-item]


def call(body: Any, target: str = "/graphql", method: str = "POST") -> Request:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = JSON if body is not None else ()
    return Request(method, "https", "rpc.test", 443, target, headers, Body.of(data))


def title(request: Request) -> str | None:
    matched = RULES.match(request)
    return matched.endpoint.name if matched else None


@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        ({"query": "mutation { create }"}, "any"),
        ({"query": "mutation { update }"}, "any"),
        ({"query": "mutation { made: create }"}, "any"),
        ({"query": "mutation { create update }"}, "other"),
        ({"query": "mutation { create create }"}, "other"),
        ({"query": "mutation { ... on M { create } }"}, "any"),
        ({"query": "mutation { ... on M { create } remove }"}, "other"),
        ([{"query": "mutation { create }"}], "other"),
        ([{"query": "{ me }"}, {"query": "mutation { create }"}], "other"),
        ([{"query": "{ me }"}, 7], "unknown"),
        ({"extensions": {"persistedQuery": {"version": 1, "sha256Hash": "ab"}}}, "unknown"),
        ({"query": "mutation {"}, "unknown"),
        ({"query": "query A { me } mutation B { create }"}, "unknown"),
        (b"not json", "unknown"),
        ({"query": "subscription { create }"}, "any"),
        ({"query": "{ me }"}, None),
    ],
)
def test_a_request_is_known_by_what_it_executes(body: Any, endpoint: str | None) -> None:
    assert title(call(body)) == endpoint


def test_a_request_in_the_address_is_known_too() -> None:
    assert title(call(None, "/graphql?query=%7Bme%7D", "GET")) == "asked"
    assert title(call(None, "/graphql?query=mutation%7Bcreate%7D", "GET")) == "written"
    two = "/graphql?query=%7Bme%7D&query=mutation%7Bcreate%7D"
    assert title(call(None, two, "GET")) is None


def test_the_document_alone_and_one_with_files_are_known() -> None:
    plain = Body.of(b"mutation { create }")
    kind = (("Content-Type", "application/graphql"),)
    assert title(Request("POST", "https", "rpc.test", 443, "/graphql", kind, plain)) == "any"
    assert title(call({"operations": json.dumps({"query": "mutation { create }"})})) == "any"


@pytest.mark.parametrize(
    ("document", "variables"),
    [
        ('mutation { create(input: {title: "t", n: 3, deep: {ok: true, kind: BUG}}) }', {}),
        (
            "mutation($i: I!) { create(input: $i) }",
            {"i": {"title": "t", "n": 3, "deep": {"ok": True, "kind": "BUG"}}},
        ),
        (
            "mutation($t: String, $d: D) { create(input: {title: $t, n: 3, deep: $d}) }",
            {"t": "t", "d": {"ok": True, "kind": "BUG"}},
        ),
        (
            'mutation($t: String = "t", $x: X) {'
            " create(input: {title: $t, n: 3, deep: {ok: true, kind: BUG}, x: $x}) }",
            {},
        ),
    ],
)
def test_arguments_are_the_same_in_whatever_way_they_are_given(
    document: str, variables: dict[str, Any]
) -> None:
    view = RequestView(call({"query": document, "variables": variables}))
    wanted = {"title": "t", "n": 3, "deep": {"ok": True, "kind": "BUG"}}
    assert view.get("graphql.input") == wanted
    assert view.get("graphql.input.deep.kind") == "BUG"


# Placement

SPEC = KeySpec("graphql", "input.id")
names = st.sampled_from(["a", "b", "id", "title"])
values: Any = st.recursive(
    st.one_of(
        st.integers(-(2**31), 2**31 - 1),
        st.booleans(),
        st.none(),
        st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF), max_size=8),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=8,
)


def literal(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {literal(it)}" for name, it in value.items()) + "}"
    if isinstance(value, list):
        return "[" + " ".join(map(literal, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


@given(
    st.dictionaries(names, values, max_size=4),
    st.sampled_from(["variables", "literal", "split"]),
    st.sampled_from(["input.id", "input.deep.id", "@idempotent.key", "clientId"]),
    st.text(st.sampled_from('abc/%#"\\-'), min_size=1, max_size=12),
)
def test_a_key_is_placed_and_nothing_else_changes(
    given_input: dict[str, Any], way: str, name: str, key: str
) -> None:
    given_input.pop("deep", None)
    match way:
        case "variables":
            document, variables = (
                "mutation M($i: I!) { m: create(input: $i) { id } }",
                {"i": given_input},
            )
        case "literal":
            document, variables = (
                f"mutation {{ create(input: {literal(given_input)}) {{ id }} }}",
                {},
            )
        case _:
            parts = ", ".join(f"{field}: ${field}" for field in given_input)
            document, variables = f"mutation {{ create(input: {{{parts}}}) {{ id }} }}", given_input
    request = call({"query": document, "variables": variables, "operationName": None})
    before = RequestView(request)
    spec = KeySpec("graphql", name)
    placed = put_key(request, spec, key)
    after = RequestView(placed)
    assert key_of_caller(placed, spec) == key
    assert put_key(placed, spec, key).body == placed.body  # again is the same
    sent = json.loads(placed.body.data or b"")
    parse(sent["query"])
    if name.startswith("@"):
        assert f"@idempotent(key: {json.dumps(key)})" in print_ast(parse(sent["query"]))
        assert after.get("graphql") == before.get("graphql")
        return
    wanted = before.get("graphql")
    walk, last = wanted, parse_steps(name)
    for step in last[:-1]:
        walk = walk.setdefault(step, {})
    walk[last[-1]] = key
    assert after.get("graphql") == wanted


@pytest.mark.parametrize(
    ("document", "placed"),
    [
        ("mutation { create }", 'mutation { create(input: {id: "k"}) }'),
        ("mutation { create(a: 1) }", 'mutation { create(input: {id: "k"}, a: 1) }'),
        ("mutation { create(input: {}) }", 'mutation { create(input: {id: "k"}) }'),
        ("mutation { create(input: null) }", 'mutation { create(input: {id: "k"}) }'),
        (
            'mutation { create(input: {t: """a\n"b" """}) }',
            'mutation { create(input: {id: "k", t: """a\n"b" """}) }',
        ),
        (
            "mutation { create(input: {id: null # none\n, t: 1}) }",
            'mutation { create(input: {id: "k" # none\n, t: 1}) }',
        ),
        (
            "mutation { ...F } fragment F on M { create(input: {t: 1}) }",
            'mutation { ...F } fragment F on M { create(input: {id: "k", t: 1}) }',
        ),
    ],
)
def test_a_literal_is_written_into_the_document(document: str, placed: str) -> None:
    request = put_key(call({"query": document}), SPEC, "k")
    assert json.loads(request.body.data or b"")["query"] == placed


@pytest.mark.parametrize(
    "body",
    [
        {"query": "mutation { create update }"},
        [{"query": "mutation { create(input: {}) }"}],
        {"query": "mutation { create(input: 7) }"},
        {"query": "mutation($i: I) { create(input: $i) }", "variables": {"i": "text"}},
        {"query": "mutation {"},
        {"id": "stored"},
        b"mutation { create }",
    ],
)
def test_where_there_is_no_place_nothing_is_written(body: Any) -> None:
    with pytest.raises(CannotPlace):
        put_key(call(body), SPEC, "k")


def test_a_directive_that_is_there_gets_the_key() -> None:
    spec = KeySpec("graphql", "@idempotent.key")
    for document, wanted in (
        ('mutation { create(a: 1) @idempotent(key: "x") { id } }', 'key: "k")'),
        ("mutation { create @log @idempotent { id } }", '@log @idempotent(key: "k") {'),
        ("mutation { create(a: 1 # )\n ) { id } }", ') @idempotent(key: "k") {'),
    ):
        sent = json.loads(put_key(call({"query": document}), spec, "k").body.data or b"")
        assert wanted in sent["query"]
        parse(sent["query"])


def test_a_marker_is_appended_to_a_text_in_variables_or_literal() -> None:
    marker = Marker("graphql", "input.text", append=parse_template(" [{key}]", ("key",)))
    for body in (
        {"query": 'mutation { create(input: {text: "hi"}) }'},
        {"query": "mutation($i: I) { create(input: $i) }", "variables": {"i": {"text": "hi"}}},
    ):
        marked = put_marker(call(body), marker, "k", {})
        assert RequestView(marked).get("graphql.input.text") == "hi [k]"


def test_a_made_up_key_does_not_count_wherever_the_variable_is_called() -> None:
    endpoint = RULES.services[0].endpoints[0]
    keyed = replace(endpoint, key=SPEC)

    def fingerprint(own: str) -> str:
        document = "mutation($x: I!) { create(input: $x) }"
        request = call({"query": document, "variables": {"x": {"id": own, "t": 1}}})
        assert argument_path(request, "input.id") == "body.variables.x.id"
        return canonical(request, noise=noise_of(keyed, None, request)).digest()

    assert fingerprint("a") == fingerprint("b")


PLAIN = """{ } ( ) [ ] : $ @ ! = | & # , ... mutation query fragment on F create input id $x "a" " 1
-1.5e9 1e999999999 null true é directive @d(a:$x)"""
ODD = ['"""', "\\", "9" * 5000, "\ud800", "\x00", "\ufeff", "input I { a: Int }"]
WORDS = st.sampled_from([*PLAIN.split(), *ODD])


@given(
    st.lists(WORDS, max_size=25).map(" ".join),
    st.one_of(st.none(), st.text(max_size=3), st.dictionaries(names, values, max_size=2)),
    st.sampled_from(["input.id", "@d.key", "id", "input[].id", "input[0].id"]),
)
@example("mutation { create(input: {id: 1 " + "[" * 3000 + "]" * 3000 + "}) }", None, "input.id")
@example("mutation { create" + "{a" * 3000 + "}" * 3000 + "}", None, "input.id")
@example("mutation { create(input: {n: " + "9" * 5000 + "}) }", None, "input.id")
def test_no_document_brings_it_down(text: str, variables: Any, name: str) -> None:
    body = {"query": text, "variables": variables}
    graphql.kind_of(body)
    graphql.calls(body, ("create", "unknown"))
    graphql.alias_of(body)
    data = json.dumps(body).encode()
    request = Request("POST", "https", "rpc.test", 443, "/graphql", JSON, Body.of(data))
    view = RequestView(request)
    view.get("graphql.input.id")
    argument_path(request, name)
    try:
        placed = put_key(request, KeySpec("graphql", name), "k")
    except CannotPlace:
        return
    if "[]" not in name:
        assert key_of_caller(placed, KeySpec("graphql", name)) == "k"


# Answers


@pytest.mark.parametrize(
    ("body", "means"),
    [
        ({"data": {"create": {"id": 1}}}, "succeeded"),
        ({"errors": [{"message": "no such field"}]}, "rejected"),
        ({"errors": [{"message": "late"}], "data": {"create": None}}, "unknown"),
        ({"errors": [{"message": "late"}], "data": None}, "unknown"),
        ({"errors": [{"message": "part"}], "data": {"create": {"id": 1, "x": None}}}, "succeeded"),
        ({"errors": [], "data": {"create": {"id": 1}}}, "succeeded"),
        ([{"data": {"create": {"id": 1}}}, {"errors": [{}]}], "unknown"),
        ([{"errors": [{}]}, {"errors": [{}]}], "rejected"),
        (b"<html>", "unknown"),
    ],
)
def test_errors_inside_a_success_decide(body: Any, means: str) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = Answer(200, "", JSON, Body.of(data))
    [endpoint, *_] = RULES.services[0].endpoints
    assert classify(endpoint, Answered(answer), keyed=False).means == means


def test_an_answer_is_read_under_the_alias_of_the_request() -> None:
    [endpoint, *_] = RULES.services[0].endpoints
    answer = Answer(200, "", JSON, Body.of(b'{"data": {"made": {"id": "i1"}}}'))
    request = call({"query": "mutation { made: create { id } }"})
    verdict = classify(endpoint, Answered(answer), keyed=False, request=request)
    assert (verdict.means, verdict.external_id) == ("succeeded", "i1")
    alias = graphql.alias_of({"query": "mutation { made: create { id } }"})
    assert alias is not None
    assert alias.named({"data": {"create": 1}}) == {"data": {"made": 1}}


def test_a_number_that_nobody_can_read_brings_nothing_down() -> None:
    values = "n: $n, m: -1E9999999999999999999"
    text = f"mutation($n: Float = 1e9999999999999999999999) {{ create({values}) }}"
    assert graphql.kind_of({"query": text}) == "mutation"
    assert graphql.arguments({"query": text}) == {
        "n": "1e9999999999999999999999",
        "m": "-1E9999999999999999999",
    }


def test_documents_that_would_hold_everybody_up_are_not_parsed() -> None:
    long = "mutation { create }#" + "x" * graphql.LENGTH_MAX
    assert graphql.kind_of({"query": long}) == "unknown"
    assert graphql.executed({"query": long}) is None
    batch = [{"query": "mutation { create }#" + "x" * 1000}] * (graphql.LENGTH_MAX // 1000)
    assert graphql.kind_of(batch) == "unknown"
    assert graphql.kind_of(batch[:9]) == "mutation"


def test_a_body_is_parsed_once_for_all_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    real = graphql._document
    monkeypatch.setattr(graphql, "_document", lambda text: parsed.append(text) or real(text))
    long = "mutation { create }#" + "y" * graphql.KEPT_LENGTH
    request = call([{"query": long + "1"}, {"query": long + "2"}, {"query": long + "3"}])
    assert title(request) == "other"
    assert len(parsed) == 3


ADDING = """
service: shop
hosts: [shop.test]
source: here
confidence: documented
key: none
endpoints:
  adding: {match: {request: POST /graphql, graphql: update, arguments: {media: {exists: true}}}}
  setting: {match: {request: POST /graphql, graphql: update}, idempotent: true}
"""


@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        ({"query": "mutation { update(id: 1) }"}, "setting"),
        ({"query": "mutation { update(id: 1, media: [{a: 1}]) }"}, "adding"),
        ({"query": "mutation($m: M) { update(media: $m) }", "variables": {"m": [1]}}, "adding"),
        ({"query": "mutation($m: M) { update(media: $m) }", "variables": {}}, "setting"),
        ({"query": "mutation($m: M = [1]) { update(media: $m) }"}, "adding"),
    ],
)
def test_an_argument_may_make_it_another_endpoint(body: Any, endpoint: str) -> None:
    """An update that adds something each time must not be sent again like one that sets it."""
    rules = RuleSet([load_text(ADDING).service])
    found = rules.match(replace(call(body), host="shop.test"))
    assert found is not None
    assert found.endpoint.name == endpoint


def test_arguments_need_a_field() -> None:
    with pytest.raises(RuleErrors, match="belongs to `graphql:`"):
        load_text(ADDING.replace(", graphql: update, arg", ", arg"))
