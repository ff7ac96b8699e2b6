"""Which endpoint a request belongs to, however its path is spelled."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.matching import BadBatch, BadPath, Match, RuleSet, effective_method, readings
from proxy.core.model import Body, Headers, Request
from proxy.core.rules import Endpoint, Service
from proxy.rulefile.loader import load_text
from proxy.rulefile.patterns import host_pattern, request_line

HEAD = "source: https://docs.test\nconfidence: documented\nkey: none\n"
ACME = f"""
service: acme
hosts: [api.acme.test, "api.acme.test:8443", 127.0.0.1, "[::1]:9000"]
{HEAD}
endpoints:
  refunds.create: {{match: POST /v1/refunds}}
  refunds.special: {{match: POST /v1/refunds/special}}
  refunds.update: {{match: "POST /v1/refunds/{{id}}"}}
  sheets.append: {{match: "POST /v1/sheets/{{sheet}}:append"}}
  files.copy: {{match: {{request: "PUT /files/{{path+}}", header: {{X-Copy: {{exists: true}}}}}}}}
  files.part: {{match: {{request: "PUT /files/{{path+}}", query: {{part: {{exists: true}}}}}}}}
  files.put: {{match: "PUT /files/{{path+}}"}}
  things.any: {{match: "* /things/{{id}}", effect: write}}
  things.list: {{match: GET /things}}
  root: {{match: POST /}}
"""
WIDE = f"""
service: wide
hosts: ["*.acme.test", "{{bucket}}.s3.{{region}}.acme.test"]
{HEAD}
endpoints:
  bucket.put: {{match: "PUT /{{key+}}"}}
  note: {{match: POST /note}}
"""
EVERYWHERE = f"""
service: token
hosts: ["*"]
{HEAD}
endpoints:
  tokens:
    match: {{request: "POST /{{path+}}", body: {{grant_type: {{exists: true}}}}}}
    effect: read
"""
RPC = f"""
service: rpc
hosts: [rpc.test]
{HEAD}
endpoints:
  tools.read:
    match: {{request: POST /mcp, jsonrpc: {{method: tools/call, tool: [search, get]}}}}
    effect: read
  tools.call: {{match: {{request: POST /mcp, jsonrpc: {{method: tools/call}}}}}}
  others: {{match: {{request: POST /mcp, body: {{method: {{not: tools/call}}}}}}, effect: read}}
  issues.create: {{match: {{request: POST /graphql, graphql: issueCreate}}}}
  mutations: {{match: {{request: POST /graphql, graphql: mutation}}}}
  queries: {{match: {{request: POST /graphql, graphql: query}}, effect: read}}
"""
RULES = RuleSet([load_text(text).service for text in (EVERYWHERE, WIDE, ACME, RPC)])
FORM = (("Content-Type", "application/x-www-form-urlencoded"),)
JSON = (("Content-Type", "application/json"),)


def call(
    line: str,
    host: str = "api.acme.test",
    port: int = 443,
    headers: Headers = (),
    body: bytes = b"",
) -> Request:
    method, _, target = line.partition(" ")
    return Request(method, "https", host, port, target, headers, Body.of(body))


def title(request: Request) -> str | None:
    matched = RULES.match(request)
    return matched.endpoint.title if matched else None


@pytest.mark.parametrize(
    ("line", "endpoint"),
    [
        ("POST /v1/refunds", "acme.refunds.create"),
        ("POST /v1/refunds?expand=1", "acme.refunds.create"),
        ("POST /v1/refunds/special", "acme.refunds.special"),
        ("POST /v1/refunds/re_1", "acme.refunds.update"),
        ("POST /v1/refunds/re_1/x", None),
        ("POST /v1/sheets/s1:append", "acme.sheets.append"),
        ("POST /v1/sheets/:append", None),
        ("PUT /files/a/b", "acme.files.put"),
        ("PUT /files/a/b?part=1", "acme.files.part"),
        ("PUT /files/", "wide.bucket.put"),
        ("POST /", "acme.root"),
        ("DELETE /things/7", "acme.things.any"),
        ("MERGE /things/7", "acme.things.any"),
        ("GET /things", "acme.things.list"),
        ("GET /v1/refunds", None),
        ("get /things", "acme.things.list"),
    ],
)
def test_the_first_endpoint_in_file_order_takes_a_request(line: str, endpoint: str | None) -> None:
    assert title(call(line)) == endpoint


@pytest.mark.parametrize(
    "line",
    [
        "POST /v1/%72efunds",
        "POST /%76%31/refunds",
        "POST //v1/refunds",
        "POST /v1//refunds",
        "POST /v1/refunds/",
        "POST /v1%2Frefunds",
        "POST /v1%2frefunds%2F",
    ],
)
def test_another_spelling_of_a_path_does_not_slip_past_its_rule(line: str) -> None:
    assert title(call(line)) == "acme.refunds.create"


@pytest.mark.parametrize(
    "line",
    [
        "POST /v1/x/../refunds",
        "POST /v1/./refunds",
        "POST /v1/%2e%2E/refunds",
        "POST /v1/x%2f..%2frefunds",
        "POST /v1/..;a=b/refunds",
        "POST /v1/%5c..%5crefunds",
        "POST /v1\\refunds",
        "POST /v1/refunds%00",
    ],
)
def test_a_path_that_servers_read_in_two_ways_is_refused_on_a_ruled_host(line: str) -> None:
    with pytest.raises(BadPath):
        RULES.match(call(line))


def test_the_same_path_is_no_matter_where_no_rule_names_the_host() -> None:
    assert title(call("POST /a/../b", "elsewhere.test")) is None


def test_parameters_are_decoded_once_and_whole() -> None:
    matched = RULES.match(call("PUT /files/a%2Fb/c%2520d//e"))

    assert matched is not None
    assert matched.params == {"path": "a/b/c%20d//e"}


@pytest.mark.parametrize(
    ("host", "port", "endpoint"),
    [
        ("api.acme.test", 443, "acme.refunds.create"),
        ("api.acme.test", 80, "acme.refunds.create"),
        ("api.acme.test", 8443, "acme.refunds.create"),
        ("api.acme.test", 8080, None),
        ("127.0.0.1", 80, "acme.refunds.create"),
        ("127.0.0.1", 8901, None),
        ("::1", 9000, "acme.refunds.create"),
        ("acme.test", 443, None),
        ("xapi.acme.test", 443, None),
        ("api.acme.test.evil", 443, None),
    ],
)
def test_hosts_are_names_with_the_usual_ports_or_the_one_given(
    host: str, port: int, endpoint: str | None
) -> None:
    assert title(call("POST /v1/refunds", host, port)) == endpoint
    if endpoint:
        assert RULES.knows_host(host, port)


def test_the_closest_host_is_asked_first_and_wider_ones_after_it() -> None:
    assert title(call("PUT /files/a")) == "acme.files.put"
    assert title(call("POST /note")) == "wide.note"
    assert title(call("POST /note", "a.b.acme.test")) == "wide.note"


def test_parameters_of_the_host_are_seen() -> None:
    matched = RULES.match(call("PUT /k/1", "logs.s3.eu-1.acme.test"))

    assert matched is not None
    assert matched.params == {"bucket": "logs", "region": "eu-1", "key": "k/1"}
    assert matched.view.get("host.bucket") == "logs"
    assert RULES.params(matched.endpoint, matched.view.request) == matched.params


def test_a_rule_for_any_host_looks_into_the_body() -> None:
    token = call("POST /oauth/token", "login.test", 8080, FORM, b"grant_type=refresh_token")
    other = call("POST /oauth/token", "login.test", 8080, FORM, b"name=x")

    assert title(token) == "token.tokens"
    assert title(other) is None
    assert not RULES.knows_host("login.test", 8080)


def test_whether_the_body_is_needed_is_known_without_it() -> None:
    assert RULES.examine(call("POST /oauth/token", "login.test")).needs_body
    assert RULES.examine(call("POST /mcp", "rpc.test")).needs_body
    assert not RULES.examine(call("POST /v1/refunds")).needs_body
    assert not RULES.examine(call("GET /other", "login.test")).needs_body


@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        (b'{"method": "tools/call", "params": {"name": "search"}}', "rpc.tools.read"),
        (b'{"method": "tools/call", "params": {"name": "pay"}}', "rpc.tools.call"),
        (b'{"method": "tools/list"}', "rpc.others"),
        (b'{"method": "tools/list", "method": "tools/call"}', None),
        (b'[{"method": "tools/list"}, {"method": "prompts/list"}]', "rpc.others"),
        (b'[{"method": "tools/list"}, 1]', None),
        (b"[]", None),
        (b"not json {", None),
    ],
)
def test_json_rpc_is_matched_by_method_and_tool(body: bytes, endpoint: str | None) -> None:
    assert title(call("POST /mcp", "rpc.test", headers=JSON, body=body)) == endpoint


def test_a_write_cannot_hide_in_a_batch() -> None:
    """Not even in one that is no good JSON-RPC: a lax server may take it."""
    for rest in (b"", b', {"method": "tools/list"}', b", 1"):
        body = b'[{"method": "tools/call", "params": {"name": "pay"}}%b]' % rest
        with pytest.raises(BadBatch, match="each call by itself"):
            title(call("POST /mcp", "rpc.test", headers=JSON, body=body))


@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        (b'{"query": "mutation { x: issueCreate(a: 1) { id } }"}', "rpc.issues.create"),
        (b'{"query": "mutation { issueCreate { id } issueDelete { id } }"}', "rpc.mutations"),
        (
            b'{"query": "mutation { ...F } fragment F on M { issueCreate { id } }"}',
            "rpc.issues.create",
        ),
        (
            b'{"query": "mutation { ...F issueDelete } fragment F on M { issueCreate { id } }"}',
            "rpc.mutations",
        ),
        (b'{"query": "mutation { ...Lost }"}', None),
        (b'{"query": "{ me { id } }"}', "rpc.queries"),
        (
            b'{"query": "query A { me } mutation B { issueCreate { id } }", "operationName": "B"}',
            "rpc.issues.create",
        ),
        (b'{"query": "query A { me } mutation B { issueCreate { id } }"}', None),
        (b'{"query": "mutation {"}', None),
        (b'{"extensions": {"persistedQuery": {}}}', None),
        (b'[{"query": "{ me }"}]', "rpc.queries"),
        (b'[{"query": "{ me }"}, {"query": "mutation { issueCreate { id } }"}]', "rpc.mutations"),
        (b'[{"query": "{ me }"}, {"id": "stored"}]', None),
        (b"[]", None),
    ],
)
def test_graphql_is_matched_by_what_is_executed(body: bytes, endpoint: str | None) -> None:
    assert title(call("POST /graphql", "rpc.test", headers=JSON, body=body)) == endpoint


@pytest.mark.parametrize(
    ("method", "override", "effective"),
    [
        ("POST", None, "POST"),
        ("GET", "delete", "DELETE"),
        ("POST", "PATCH", "PATCH"),
        ("POST", "GET", "POST"),
        ("GET", "HEAD", "GET"),
    ],
)
def test_an_override_header_can_make_a_write_but_never_a_read(
    method: str, override: str | None, effective: str
) -> None:
    headers = (("X-HTTP-Method-Override", override),) if override else ()

    assert effective_method(call(f"{method} /x", headers=headers)) == effective


def test_an_overridden_get_is_matched_as_the_write_it_is() -> None:
    headers = (("X-HTTP-Method-Override", "POST"),)

    assert title(call("GET /v1/refunds", headers=headers)) == "acme.refunds.create"


def test_earlier_names_lead_to_the_endpoint() -> None:
    text = ACME.replace("{match: POST /v1/refunds}", "{match: POST /v1/refunds, was: [refund]}")
    rules = RuleSet([load_text(text).service])

    assert rules.endpoint("acme", "refund") is rules.endpoint("acme", "refunds.create")
    assert rules.endpoint("acme", "nothing") is None
    assert rules.digest != RULES.digest


PATHS = ("a", "b", "{x}", "a-{x}", "{x}:go")
LINES = st.builds(
    lambda method, parts, rest: f"{method} /{'/'.join([*parts, *(['{rest+}'] if rest else [])])}",
    st.sampled_from(["POST", "PUT", "*"]),
    st.lists(st.sampled_from(PATHS), max_size=3).filter(lambda p: sum("{" in e for e in p) < 2),
    st.booleans(),
)


@given(
    st.lists(st.lists(LINES, min_size=1, max_size=6), min_size=1, max_size=3),
    st.sampled_from(["POST", "PUT", "GET"]),
    st.lists(st.sampled_from(["a", "b", "a-1", "c:go", "a%2Fb", ""]), max_size=4),
)
def test_the_index_finds_what_a_search_through_all_would(
    files: list[list[str]], method: str, path: list[str]
) -> None:
    """``files``: of services for any host, each after the other."""
    services = []
    for number, lines in enumerate(files):
        endpoints = []
        for place, line in enumerate(lines):
            named, segments, rest = request_line(line)
            match = Match(line, named, segments, rest)
            endpoints.append(Endpoint(f"s{number}", f"e{place}", match, ""))
        services.append(Service(f"s{number}", (host_pattern("*"),), tuple(endpoints)))
    request = call(f"{method} /{'/'.join(path)}", "any.test")
    expected = next(
        (
            (endpoint.title, params)
            for segments in readings(request.path)
            for service in services
            for endpoint in service.endpoints
            if endpoint.match is not None
            and endpoint.match.method in (method, "*")
            and (params := endpoint.match.params(segments)) is not None
        ),
        None,
    )
    found = RuleSet(services).match(request)
    assert (found and (found.endpoint.title, dict(found.params))) == expected


def test_a_call_of_another_api_is_not_taken_for_json_rpc_where_nobody_has_named_the_host() -> None:
    """Its ``id`` says which task: as the number of an exchange it would not count, and cancelling
    two tasks in a step would be one operation."""
    file = Path(__file__).parent.parent.parent / "rules" / "a2a.yaml"
    rules = RuleSet([load_text(file.read_text()).service])
    for version, endpoint in (("", None), ('"jsonrpc": "2.0", ', "a2a.tasks.cancel")):
        body = b'{%b"method": "CancelTask", "id": 7}' % version.encode()
        found = rules.match(call("POST /api", "tasks.test", headers=JSON, body=body))
        assert (found.endpoint.title if found is not None else None) == endpoint
