"""docs/field-reports.md says what the tests play, and names tests that exist."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent
AGAIN = "write it anew with python tools/field_reports.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("field_reports", ROOT / "tools/field_reports.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # where its dataclasses look for their own module
    spec.loader.exec_module(module)
    return module


def test_the_table_is_as_the_marks_say(tool: ModuleType) -> None:
    assert (ROOT / "docs" / "field-reports.md").read_text() == tool.document(), AGAIN


def test_at_least_35_reports_are_played(tool: ModuleType) -> None:
    assert len(tool.reports()) >= 35


@pytest.mark.parametrize(
    ("marks", "says"),
    [
        ('@pytest.mark.report("R99")\nasync def test_a(): ...\n', "no test tells"),
        ('@pytest.mark.report("R99", "l", "h")\ndef test_a(): ...\n', "not whole"),
        ('@pytest.mark.report("R99", "l", "h", "d")\ndef test_a(): ...\n' * 2, "told twice"),
    ],
)
def test_a_report_that_is_not_told_whole_is_an_error(
    tool: ModuleType, tmp_path: Path, marks: str, says: str
) -> None:
    (tmp_path / "test_x.py").write_text(marks)
    with pytest.raises(ValueError, match=says):
        tool.reports(tmp_path)


def test_a_changed_mark_makes_the_table_stale(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = tmp_path / "field-reports.md"
    stale.write_text(tool.document().replace("R04", "R00", 1))
    monkeypatch.setattr(tool, "DOCUMENT", stale)
    assert tool.main(["--check"]) == 1
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0
