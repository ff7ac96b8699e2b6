"""The page of figures says what the run registered, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import reliability

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "figures"
    monkeypatch.setenv(reliability.FILE_VARIABLE, str(file))
    return file


def page(file: Path) -> str:
    with file.open() as lines:
        return reliability.document(reliability.gather(lines), "Here.")


def test_counts_of_one_bar_add_up_and_other_values_are_replaced(file: Path) -> None:
    for seconds in (1.25, 2.0):
        reliability.figure("R1", "kills", kills=250, duplicates=0, slowest_seconds=seconds)
    assert "| R1 | kills | 500 kills, 0 duplicates, 2 slowest seconds |  |" in page(file)


def test_controls_stand_beside_their_bar_and_bars_come_in_order(file: Path) -> None:
    reliability.figure("R10", "damaged | files", files=300)
    reliability.figure("R2", "every point", points=41)
    reliability.control("R2", "a blind re-send", "2 effects at 3 points")
    text = page(file)
    assert text.index("| R2 |") < text.index("| R10 | damaged \\| files")
    assert "| a blind re-send: **red**, 2 effects at 3 points |" in text


def test_other_parts_have_a_heading_of_their_own(file: Path) -> None:
    reliability.figure("S1", "secrets", found=0, part="Secrets")
    reliability.figure("R1", "kills", kills=1)
    text = page(file)
    assert text.index(f"## {reliability.PART}") < text.index("## Secrets") < text.index("| S1 |")


def test_nothing_is_kept_outside_of_the_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(reliability.FILE_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    reliability.figure("R1", "kills", kills=1)
    assert list(tmp_path.iterdir()) == []


def test_the_whole_run_is_what_writes_the_page() -> None:
    recipe = re.search(
        r"^test-all:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert recipe is not None
    assert reliability.FILE_VARIABLE in recipe[1]
    assert "tests.reliability" in recipe[1]
