"""Picking values out of JSON in pieces: the same as reading it whole, whatever it holds."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from proxy.core.jsonscan import NAME_KEPT, SCALAR_KEPT, TEXT_KEPT, Scanner, Seen, Steps, Tree
from proxy.core.paths import MISSING, walk

NAMES = st.sampled_from(["usage", "total", "a", "", 'q"\\', "é\n", "x" * 300])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=20)
    | st.sampled_from(["{", "}", '"', "\\", "[1,2]", "\\u0041", "😀"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=25,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=5)
PATHS: tuple[Steps, ...] = (
    ("usage",),
    ("usage", "total"),
    ("a", 0, "total"),
    ("a", 1),
    ("",),
    ('q"\\', "é\n"),
    ("é\n",),
)
LOADED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure."""
CUTS = st.lists(st.integers(0, 2000), max_size=6)


def scan(*pieces: bytes, paths: tuple[Steps, ...] = PATHS) -> list[Seen]:
    documents: list[Seen] = []
    scanner = Scanner(Tree(paths), documents.append)
    for piece in pieces:
        scanner.feed(piece)
    assert scanner.at_rest
    return documents


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({cut for cut in cuts if cut < len(data)} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(at)]


def expected(document: Any) -> Seen:
    found = {path: walk(document, path) for path in PATHS}
    return {
        path: type(value)() if isinstance(value, dict | list) else value
        for path, value in found.items()
        if value is not MISSING
    }


def same(left: list[Seen], right: list[Seen]) -> bool:
    def plain(documents: list[Seen]) -> str:
        return repr([sorted((p, _exact(v)) for p, v in d.items()) for d in documents])

    return plain(left) == plain(right)


def _exact(value: Any) -> Any:
    if isinstance(value, bool | str | list | dict) or value is None:
        return repr(value)
    return repr(float(value)) if not isinstance(value, int) else repr(value)


@given(DOCUMENTS, CUTS, st.booleans(), st.sampled_from([None, 1]))
@settings(LOADED, max_examples=70)
@example({"usage": {"total": 1}}, [3], True, None)
def test_it_sees_what_a_parser_sees_however_the_text_is_cut(
    document: dict[str, Any], cuts: list[int], ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(document, ensure_ascii=ascii_only, indent=indent)
    wanted = [expected(document)] if expected(document) else []

    assert same(scan(*pieces_of(text.encode(), cuts)), wanted)

    by_line: list[Seen] = []
    Scanner(Tree(PATHS), by_line.append).line(text.encode())
    assert same(by_line, wanted)


@given(st.lists(DOCUMENTS, max_size=3), CUTS)
@settings(LOADED, max_examples=50)
def test_lines_and_a_list_are_documents_one_by_one(
    documents: list[dict[str, Any]], cuts: list[int]
) -> None:
    wanted = [seen for seen in map(expected, documents) if seen]
    lines = "\n".join(json.dumps(each) for each in documents).encode()
    listed = json.dumps(documents, indent=2).encode()

    assert same(scan(*pieces_of(lines, cuts)), wanted)
    assert same(scan(*pieces_of(listed, cuts)), wanted)


@given(st.binary(max_size=300), CUTS)
@settings(LOADED, max_examples=200)
def test_whatever_comes_nothing_is_raised(noise: bytes, cuts: list[int]) -> None:
    documents: list[Seen] = []
    scanner = Scanner(Tree(PATHS), documents.append)
    for piece in pieces_of(noise, cuts):
        scanner.feed(piece)
    scanner.reset()
    scanner.feed(b'{"usage": 1}')
    assert documents[-1] == {("usage",): 1}


def test_broken_json_of_every_kind_is_read_on_without_an_error() -> None:
    alphabet = '{}[]",:\\ \n019aeE-.ntu'
    dice = random.Random(7)
    for _ in range(3000):
        text = '{"usage"' + "".join(dice.choices(alphabet, k=40))
        Scanner(Tree(PATHS), lambda seen: None).feed(text.encode())


@pytest.mark.parametrize(
    "text", ['{"usage": 5', '{"usage": {"total": 5}', '{"a": "', '{"a": [1, {"b": 2}', "5"]
)
def test_what_broke_off_is_not_at_rest_and_no_document(text: str) -> None:
    documents: list[Seen] = []
    scanner = Scanner(Tree(PATHS), documents.append)
    scanner.feed(text.encode())
    assert not scanner.at_rest
    assert documents == []


def test_a_long_text_is_cut_and_a_long_name_or_number_is_none() -> None:
    text = json.dumps({"usage": "x" * 5000, "x" * (NAME_KEPT + 1): 1})
    paths = (("usage",), ("x" * NAME_KEPT,), ("x" * (NAME_KEPT + 1),))
    assert scan(text.encode(), paths=paths) == [{("usage",): "x" * TEXT_KEPT}]

    digits = b"9" * (SCALAR_KEPT + 1)
    cut_where_full = scan(b'{"usage": ' + digits[:-1], digits[-1:] + b"}")
    assert cut_where_full == [{("usage",): None}]


def test_a_hundred_megabytes_need_no_memory_and_little_time() -> None:
    documents: list[Seen] = []
    scanner = Scanner(Tree(PATHS), documents.append)
    filler = b'"' + b"A" * 1_000_000 + b'", ' + b"[1.5, -2.25e3, {}], " * 1000
    started = time.process_time()
    tracemalloc.start()
    scanner.feed(b'{"data": [')
    for _ in range(20):
        scanner.feed(filler)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most < 20_000
    assert time.process_time() - started < 5  # it takes a tenth of a second
    assert not documents
