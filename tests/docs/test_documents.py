"""The documents are true: links lead somewhere, commands and codes and words exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from proxy.core.operation import State
from proxy.core.refusal import CODES

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = sorted(
    path
    for folder in (ROOT, ROOT / "docs", ROOT / "rules", ROOT / "bench", ROOT / "examples")
    for path in folder.rglob("*.md")
    if folder != ROOT or path.parent == ROOT
)


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The anchors a reader's browser can jump to, as code hosts make them from headings."""
    titles = re.findall(r"^#+ +(.+)$", prose(path.read_text()), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.strip().replace(" ", "-") for title in plain}


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), f"{target} does not exist"
        assert there.is_relative_to(ROOT), f"{target} leaves the repository"
        if anchor:
            assert anchor in anchors(there), f"{target} has no such heading"


COMMAND = re.compile(r"(?:^|[`$/ ])onceproxy ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)?)")
WORDS = frozenset({"and", "beside", "flushes", "in", "is", "between", "with", "the", "gives"})
"""What may follow the product's name in a sentence."""


def commands() -> list[tuple[Path, str]]:
    found = []
    for path in DOCUMENTS:
        text = path.read_text()
        code = re.findall(r"`([^`\n]+)`", text) + re.findall(r"^\$ .+$", text, re.MULTILINE)
        found += [
            (path, match.group(1))
            for line in code
            for match in COMMAND.finditer(line)
            if match.group(1).split()[0] not in WORDS
        ]
    return sorted(set(found))


@pytest.mark.parametrize(
    ("path", "words"), commands(), ids=[f"{ids(p)}: {words}" for p, words in commands()]
)
def test_every_command_that_a_document_names_exists(path: Path, words: str) -> None:
    from proxy.cli import main

    assert isinstance(main, click.Group)
    first, *rest = words.split()
    context = click.Context(main)
    command = main.get_command(context, first)
    assert command is not None, f"onceproxy {first} does not exist"
    if isinstance(command, click.Group) and rest:
        assert command.get_command(context, rest[0]) is not None, f"onceproxy {words}"


def test_every_refusal_is_documented_with_its_status_and_nothing_else_is() -> None:
    text = (ROOT / "docs" / "refusals.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (\d{3})", text, re.MULTILINE))
    assert rows == {code: str(meaning.status) for code, meaning in CODES.items()}


def test_retryable_refusals_are_marked_as_such() -> None:
    text = (ROOT / "docs" / "refusals.md").read_text()
    marked = set(re.findall(r"^\| `([a-z-]+)` \| \d{3}, retryable", text, re.MULTILINE))
    assert marked == {code for code, meaning in CODES.items() if meaning.retryable}


def test_every_state_is_explained() -> None:
    text = (ROOT / "docs" / "concepts.md").read_text()
    assert {state for state in State if state not in text} == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_make_verbs_exist(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for verb in re.findall(r"(?:`|\$ )make ([a-z-]+)", path.read_text()):
        assert re.search(rf"^{verb}:", makefile, re.MULTILINE), f"make {verb}"


def test_every_call_of_the_control_api_is_documented() -> None:
    text = (ROOT / "docs" / "operating.md").read_text()
    described = json.loads((ROOT / "proxy" / "control" / "openapi.json").read_text())
    assert {path for path in described["paths"] if path not in text} == set()


def test_every_reason_to_stay_unknown_is_explained() -> None:
    text = (ROOT / "docs" / "operating.md").read_text()
    reasons = {"lag", "credentials", "no_query", "query_failed", "ambiguous", "key_expired"}
    assert {reason for reason in reasons if f"| `{reason}` |" not in text} == set()
