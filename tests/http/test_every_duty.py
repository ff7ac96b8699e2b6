"""No duty of a proxy (A) and no complaint about one (C) is without a test that bears its number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.http.test_duties import CASES, COMPLAINTS

TESTS = Path(__file__).parents[1]
MARK = re.compile(r"^(?: *)@pytest\.mark\.duty\((.*?)\)$", re.MULTILINE | re.DOTALL)


def marked() -> set[str]:
    found: set[str] = set()
    for file in TESTS.rglob("test_*.py"):
        for ids in MARK.findall(file.read_text()):
            found.update(re.findall(r'"([AC]-\d+)"', ids))
    return found


@pytest.mark.parametrize(("letter", "count"), [("A", 50), ("C", 37)])
def test_every_one_has_a_test(letter: str, count: int) -> None:
    covered = marked() | {case.duty for case in CASES} | set(COMPLAINTS)
    expected = {f"{letter}-{number}" for number in range(1, count + 1)}
    assert expected - covered == set()


def test_what_a_complaint_is_answered_by_exists() -> None:
    names = {(case.duty, case.name) for case in CASES}
    assert set(COMPLAINTS.values()) <= names


@pytest.mark.duty("C-36")
def test_the_documents_say_which_no_proxy_entries_clients_ignore() -> None:
    text = (TESTS.parent / "docs" / "clients.md").read_text()
    assert re.search(r"`NO_PROXY`.*network.*curl", text)
