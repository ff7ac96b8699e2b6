"""Each example is killed and started again, as a reader would do it: one effect, the right end.

What the shop did is judged first. ``--without`` is the control: without the proxy there are two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from examples.crash import EXAMPLES, Story, play

ROOT = Path(__file__).parents[2]
EXAMPLES_DIR = ROOT / "examples"
ALL = tuple(name for name in EXAMPLES if name != "langgraph-async")
RUNS = {"many-runs": [f"case-{number}" for number in range(1, 21)]}
QUICK = ("plain-loop", "node", "mcp-http")


def here(names: Iterable[str], *, quick: Iterable[str] = ()) -> list[Any]:
    """All but ``quick`` are slow. Those that are not installed skip, and say what to do."""
    params = []
    for name in names:
        missing = EXAMPLES[name].missing()
        marks = [pytest.mark.skipif(bool(missing), reason=f"{name}: {missing}")]
        params.append(pytest.param(name, marks=marks + [pytest.mark.slow] * (name not in quick)))
    return params


def assert_one_each(name: str, story: Story) -> None:
    """Every run has one refund, one operation under its own name, and came to its end."""
    runs = RUNS.get(name, ["case-1842"])
    charges = [f"ch_{run}" for run in runs] if name in RUNS else ["ch_1842"]
    assert sorted(one.charge for one in story.refunds) == sorted(charges)
    assert set(story.asked) == set(charges)
    # Of many, some are killed while the model answers, and ask it that again.
    again = 1 if name in RUNS and len(story.said) > 1 else 0
    for charge, turns in story.asked.items():
        assert 2 <= turns <= 2 + again, f"turns for {charge} were made again"
    ends = [line for line in story.said[-1] if "It is refunded:" in line]
    if len(runs) == 1:
        assert story.said[-1][-1] == ends[0]
    for refund, charge in ((one.id, one.charge) for one in story.refunds):
        [end] = [line for line in ends if f'"{charge}"' in line]
        assert f'"{refund}"' in end

    assert sorted(one["run"] for one in story.operations) == sorted(runs)
    for one in story.operations:
        assert one["state"] == "succeeded"
        assert one["step"].startswith("call_")
    assert len({one["step"] for one in story.operations}) == len(runs)
    by_key = {refund.key: refund.charge for refund in story.refunds}
    if name in RUNS:  # no call was made under another's run
        for one in story.operations:
            assert by_key[one["key"]] == f"ch_{one['run']}"


@pytest.mark.parametrize("name", here(ALL, quick=QUICK))
def test_killed_after_the_effect_it_resumes_and_there_is_one(name: str, tmp_path: Path) -> None:
    story = play(name, tmp_path)
    assert_one_each(name, story)
    assert len(story.said) == 2
    ended = [line for line in story.said[0] if "It is refunded" in line]
    assert len(ended) < len(RUNS[name]) if name in RUNS else not ended


@pytest.mark.parametrize("name", here(ALL, quick=["plain-loop"]))
def test_the_proxy_may_be_killed_in_the_same_moment(name: str, tmp_path: Path) -> None:
    assert_one_each(name, play(name, tmp_path, proxy_too=True))


@pytest.mark.parametrize("name", here(ALL, quick=["plain-loop"]))
def test_without_the_proxy_there_are_two(name: str, tmp_path: Path) -> None:
    """The control: the kill is where it must be, and it is the proxy that makes the difference."""
    story = play(name, tmp_path, without=True)
    assert len(story.refunds) > len(RUNS.get(name, [name]))


@pytest.mark.parametrize("name", here(EXAMPLES))
def test_it_runs_to_its_end(name: str, tmp_path: Path) -> None:
    assert_one_each(name, play(name, tmp_path, kill=False))


@pytest.mark.parametrize("name", here(["langgraph-async"]))
def test_a_checkpoint_that_was_not_written_loses_the_step(name: str, tmp_path: Path) -> None:
    """The limit that the example is about: what the proxy is told is another step, and it sees no
    reason to hold it back."""
    story = play(name, tmp_path)
    assert [one.charge for one in story.refunds] == ["ch_1842"] * 2
    assert story.asked.total() == 3  # the first turn was made again
    assert len({one["step"] for one in story.operations}) == 2


# The pages


def test_every_example_has_its_page_and_its_packages() -> None:
    page = (EXAMPLES_DIR / "README.md").read_text()
    for name, example in EXAMPLES.items():
        folder = EXAMPLES_DIR / example.folder
        assert f"[{example.folder}]({example.folder}/README.md)" in page
        assert re.search(rf"ARGS={name}$|ARGS={name} ", (folder / "README.md").read_text(), re.M)
        assert (folder / "requirements.txt").exists() != example.node


def test_the_versions_of_the_examples_are_those_that_are_tested() -> None:
    locked = "".join((ROOT / "requirements" / f"{n}.txt").read_text() for n in ("dev", "clients"))
    for file in EXAMPLES_DIR.glob("*/requirements.txt"):
        for line in file.read_text().splitlines():
            assert f"\n{line} \\\n" in locked, f"{file}: {line}"
