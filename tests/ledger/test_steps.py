"""What is known of a run's steps without asking the file."""

from __future__ import annotations

import pytest

from proxy.ledger import steps
from proxy.ledger.sqlite import SqliteLedger
from proxy.ledger.steps import Steps
from tests.ledger.conftest import KEY
from tests.ledger.support import first, operation


class File:
    def __init__(self, **runs: set[str]) -> None:
        self.runs = runs
        self.asked: list[str] = []

    def __call__(self, run: str, limit: int) -> list[str]:
        self.asked.append(run)
        return sorted(self.runs.get(run, ()))[:limit]


def test_a_run_is_read_once_and_what_is_begun_since_is_known() -> None:
    file = File(a={"1"})
    known = Steps(file)
    assert (known.has("a", "1"), known.has("a", "2"), known.has("b", "1")) == (True, False, False)
    known.add("a", "2")
    known.add("c", "1")
    assert (known.has("a", "2"), known.has("c", "1"), known.has("c", "2")) == (True, True, False)
    assert file.asked == ["a", "b", "c"]


def test_what_is_begun_in_a_run_that_was_given_up_is_known_after_it_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "RUNS", 1)
    file = File()
    known = Steps(file)
    assert known.has("a", "1") is False
    assert known.has("b", "1") is False
    known.add("a", "1")  # its commit has not landed, so the file does not know it
    assert known.has("a", "1") is True
    assert file.asked == ["a", "b", "a"]


def test_of_a_run_with_very_many_steps_the_file_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "STEPS_OF_RUN", 3)
    known = Steps(File(a={"1", "2", "3"}))
    assert known.has("a", "4") is False
    known.add("a", "4")
    assert known.has("a", "4") is None
    assert known.has("a", "5") is None


def test_the_number_of_all_steps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "STEPS", 3)
    file = File()
    known = Steps(file)
    for run in "abc":
        known.add(run, "1")
        known.add(run, "2")
    assert known.has("c", "1") is True
    assert known.has("a", "1") is False, "read again: this file never got it"
    assert file.asked == ["a", "b", "c", "a"]


async def test_a_ledger_that_is_opened_again_knows_the_steps(sqlite: SqliteLedger) -> None:
    assert not sqlite.has_step("case-7", "refund")
    await sqlite.commit(first(operation("refund")))
    assert sqlite.has_step("case-7", "refund")
    assert not sqlite.has_step("case-7", "other")
    assert not sqlite.has_step("case-8", "refund")
    await sqlite.close()
    again = SqliteLedger(sqlite.path, key=KEY, clock=sqlite._clock)
    await again.open()
    assert again.has_step("case-7", "refund")
    assert not again.has_step("case-7", "other")
    await again.close()
