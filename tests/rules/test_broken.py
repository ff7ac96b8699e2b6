"""Each file under broken/ is refused, with the messages that its first comments expect."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.rulefile import RuleErrors
from proxy.rulefile.loader import load_file

BROKEN = sorted((Path(__file__).parent / "broken").glob("*.yaml"))
MARK = "# expect: "


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.stem)
def test_a_broken_file_is_refused_with_every_message_it_deserves(path: Path) -> None:
    lines = path.read_text().splitlines()
    expected = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    assert expected, "a broken file says what it expects"

    with pytest.raises(RuleErrors) as caught:
        load_file(path)

    for message in expected:
        shifted = _below_comments(message, len(expected))
        assert any(shifted in problem for problem in caught.value.problems), (
            f"{shifted!r} not in:\n{caught.value}"
        )


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.stem)
def test_every_message_begins_with_file_line_and_column(path: Path) -> None:
    with pytest.raises(RuleErrors) as caught:
        load_file(path)

    for problem in caught.value.problems:
        line, column, _ = problem.removeprefix(f"{path}:").split(":", 2)
        assert int(line) >= 1
        assert int(column) >= 1


def _below_comments(message: str, comments: int) -> str:
    """``:8:5:`` counts lines from the first one below the expectations."""
    if not message.startswith(":"):
        return message
    _, line, rest = message.split(":", 2)
    return f":{int(line) + comments}:{rest}"
