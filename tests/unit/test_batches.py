"""Every item of a batch has a key or marker of its own; every other byte stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.call import noise_of
from proxy.core.fingerprint import canonical
from proxy.core.model import Body, Headers, Request
from proxy.core.placement import (
    CannotPlace,
    item_key,
    item_marker,
    key_of_caller,
    put_key,
    put_marker,
)
from proxy.core.rules import Endpoint, KeySpec, Marker
from proxy.core.templates import parse_template

JSON: Headers = (("Content-Type", "application/json"),)
WHOLE = "run-1/send/queue.batch/v1"
MINTED = "7f9c24e8-3b12-4fef-91e0-4a6d0e4c1f11"
SPEC = KeySpec("json", "Entries[].MessageDeduplicationId", max_length=128)


def call(body: Any, headers: Headers = JSON) -> Request:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Request("POST", "https", "a.test", 443, "/t", headers, Body.of(data))


def sent(request: Request) -> Any:
    assert request.body.data is not None
    assert request.body == Body.of(request.body.data)
    return json.loads(request.body.data)


members = st.dictionaries(
    st.sampled_from(["a", "b", "Entries"]), st.integers() | st.text(), max_size=3
)


@given(
    st.lists(members, min_size=1, max_size=6),
    st.sampled_from(["[].id", "Entries[].id", "Entries[].meta.ref", "a.b[].id"]),
    st.sampled_from(["raw", "digest", "uuid4"]),
)
def test_each_item_gets_its_own_and_nothing_else_changes(
    items: list[dict[str, Any]], name: str, rendering: str
) -> None:
    outer, _, inner = name.partition("[].")
    body: Any = items
    for step in reversed([step for step in outer.split(".") if step]):
        body = {step: body, "other": 1.50}
    spec = KeySpec("json", name, rendering)
    placed = put_key(call(body), spec, WHOLE)
    expected: Any = json.loads(json.dumps(body))
    inside = expected
    for step in [step for step in outer.split(".") if step]:
        inside = inside[step]
    texts = [item_key(spec, WHOLE, index) for index in range(len(items))]
    for item, text in zip(inside, texts, strict=True):
        *way, last = inner.split(".")
        for step in way:
            item = item.setdefault(step, {})
        item[last] = text
    assert sent(placed) == expected
    assert len(set(texts)) == len(texts)
    assert WHOLE not in texts
    assert put_key(placed, spec, WHOLE).body == placed.body  # again is the same


def test_the_key_of_an_item_is_a_function_of_the_whole_key_and_its_place() -> None:
    assert item_key(SPEC, WHOLE, 3) == f"{WHOLE}#3"
    short = KeySpec("json", SPEC.name, max_length=32)
    assert len(item_key(short, "ab" * 16, 0)) == 32
    assert item_key(short, "ab" * 16, 0) != item_key(short, "ab" * 16, 1)
    prefixed = KeySpec("json", SPEC.name, prefix="op-")
    assert item_key(prefixed, f"op-{WHOLE}", 2) == f"op-{WHOLE}#2"
    assert item_marker(Marker("json", "a[].b"), WHOLE, 1) == f"{WHOLE}#1"


def test_a_callers_own_keys_stay_and_made_up_ones_do_not() -> None:
    own = {"Entries": [{"MessageDeduplicationId": "order-7"}, {"MessageDeduplicationId": MINTED}]}
    placed = sent(put_key(call(own), SPEC, WHOLE))
    keys = [entry["MessageDeduplicationId"] for entry in placed["Entries"]]
    assert keys == ["order-7", f"{WHOLE}#1"]
    keep = KeySpec("json", SPEC.name, existing="keep")
    kept = sent(put_key(call(own), keep, WHOLE))
    assert [entry["MessageDeduplicationId"] for entry in kept["Entries"]] == ["order-7", MINTED]
    assert key_of_caller(call(own), SPEC) is None


def test_made_up_keys_of_items_do_not_count_and_business_keys_do() -> None:
    endpoint = Endpoint("queue", "batch", None, "", key=SPEC)

    def fingerprint(own: str) -> str:
        request = call({"Entries": [{"Body": "b", "MessageDeduplicationId": own}]})
        return canonical(request, noise=noise_of(endpoint, None, request)).digest()

    assert fingerprint(MINTED) == fingerprint(MINTED.replace("7f9c", "0000"))
    assert fingerprint("order-7") != fingerprint("order-8")


def test_markers_of_items_keep_append_and_say_more() -> None:
    marker = Marker("json", "inputs[].ref", also={"inputs[].kind": "once", "source": "once"})
    marked = sent(put_marker(call({"inputs": [{}, {"kind": "mine"}]}), marker, WHOLE, {}))
    assert marked["inputs"] == [
        {"ref": f"{WHOLE}#0", "kind": "once"},
        {"ref": f"{WHOLE}#1", "kind": "mine"},
    ]
    assert marked["source"] == "once"
    with pytest.raises(CannotPlace, match="kept"):
        put_marker(call({"inputs": [{}, {"ref": "mine"}]}), marker, WHOLE, {})
    tail = Marker("json", "[].text", append=parse_template(" [{key}]", ("key",)))
    assert sent(put_marker(call([{"text": "a"}, {"text": "b"}]), tail, WHOLE, {})) == [
        {"text": f"a [{WHOLE}#0]"},
        {"text": f"b [{WHOLE}#1]"},
    ]


@pytest.mark.parametrize(
    "body",
    [
        {"Entries": []},
        {"Entries": {}},
        {"Entries": None},
        {},
        [],
        {"Entries": [1]},
        {"Entries": [{"MessageDeduplicationId": {}}, []]},
        b"",
        b"not json",
    ],
)
def test_where_there_is_no_item_nothing_is_written(body: Any) -> None:
    with pytest.raises(CannotPlace):
        put_key(call(body), SPEC, WHOLE)


def test_a_list_in_the_variables_of_graphql_has_places_and_one_in_the_document_none() -> None:
    spec = KeySpec("graphql", "inputs[].id")
    document = "mutation($x: [I!]!) { createMany(inputs: $x) { id } }"
    placed = put_key(call({"query": document, "variables": {"x": [{}, {}]}}), spec, WHOLE)
    assert sent(placed)["variables"]["x"] == [{"id": f"{WHOLE}#0"}, {"id": f"{WHOLE}#1"}]
    with pytest.raises(CannotPlace):
        put_key(call({"query": "mutation { createMany(inputs: [{}]) { id } }"}), spec, WHOLE)
