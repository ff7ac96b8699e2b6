"""Writes docs/field-reports.md from the ``report`` marks of tests/reports. ``--check`` only says
whether the file is as it would be written.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests" / "reports"
DOCUMENT = ROOT / "docs" / "field-reports.md"
HEAD = """\
# Field reports

What happened to others, and what happens here. Each row is a public report of an external effect
that was repeated, lost or wrongly told; its test plays the failure against the proxy and counts
what the API has done. This file is written by `tools/field_reports.py`.

| report | what happened | what onceproxy does | test |
|---|---|---|---|
"""


@dataclass
class Report:
    id: str
    link: str = ""
    happened: str = ""
    does: str = ""
    tests: list[str] = field(default_factory=list)

    def row(self) -> str:
        tests = "<br>".join(f"`{test}`" for test in self.tests)
        cells = (f"[{self.id}]({self.link})", self.happened, self.does, tests)
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def reports(folder: Path = TESTS) -> list[Report]:
    """All reports in order of their ids. Raises ValueError for one that is not told whole."""
    found: dict[str, Report] = {}
    for path in sorted(folder.glob("test_*.py")):
        for name, told in _marks(path):
            report = found.setdefault(told[0], Report(told[0]))
            report.tests.append(f"{path.stem}.py::{name}")
            if told[1:]:
                if report.link or len(told) != 4:
                    raise ValueError(f"{path.name}: {told[0]} is told twice, or not whole")
                report.link, report.happened, report.does = told[1:]
    for report in found.values():
        if not report.link:
            raise ValueError(f"no test tells what {report.id} is about")
    return [found[key] for key in sorted(found)]


def _marks(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(test, arguments of its mark) for each mark in a file."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            call = isinstance(decorator, ast.Call)
            if call and ast.unparse(decorator.func) == "pytest.mark.report":
                yield node.name, [ast.literal_eval(argument) for argument in decorator.args]


def document() -> str:
    return HEAD + "".join(report.row() for report in reports())


def main(arguments: list[str]) -> int:
    text = document()
    if arguments == ["--check"]:
        return 0 if DOCUMENT.exists() and DOCUMENT.read_text(encoding="utf-8") == text else 1
    DOCUMENT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
