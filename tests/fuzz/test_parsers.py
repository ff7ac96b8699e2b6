"""Parsers of what others write take any bytes (S19): examples by Hypothesis always, 10,000 of them
and a minute of atheris each in ``make test-all``.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import reliability
from tests.fuzz.targets import SEEDS, TARGETS

ROOT = Path(__file__).parent.parent.parent
SECONDS = 60
NEEDS_ATHERIS = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not installed: no coverage-guided fuzzing here "
    "(pip install -r requirements/fuzz.txt; there are wheels for Linux on x86-64)",
)


def inputs(name: str) -> st.SearchStrategy[bytes]:
    """Noise, the seeds with a piece put in, taken out or doubled, and the seeds' own characters."""
    seeds = st.sampled_from(SEEDS[name])
    alphabet = sorted({byte for seed in SEEDS[name] for byte in seed} | set(b'{}[]"%:/.\\\0 \n'))
    pieces = st.lists(st.sampled_from(alphabet), max_size=30).map(bytes)

    def mutated(seed: bytes, at: int, cut: int, piece: bytes) -> bytes:
        at %= len(seed) + 1
        return seed[:at] + piece + seed[at + cut :]

    return st.one_of(
        st.binary(max_size=60),
        pieces,
        st.builds(mutated, seeds, st.integers(0, 200), st.integers(0, 8), pieces),
        st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
    )


def examples(name: str, count: int) -> None:
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs(name))
    def run(data: bytes) -> None:
        TARGETS[name](data)

    for seed in SEEDS[name]:
        TARGETS[name](seed)
    run()


@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_takes_any_bytes(name: str) -> None:
    examples(name, 150)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_takes_ten_thousand_examples(name: str) -> None:
    examples(name, 10_000)
    reliability.figure(
        "S19", "Hypothesis over parsers", part="Security", parsers=1, examples=10_000, failures=0
    )


@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 4)
@NEEDS_ATHERIS
@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_survives_a_minute_of_atheris(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.campaign", name, str(SECONDS)],
        cwd=tmp_path,  # where atheris leaves the input that broke it
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    tried = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
    assert tried is not None, done.stderr[-1000:]
    assert int(tried[1]) > 1000
    reliability.figure(
        "S19",
        f"atheris, {SECONDS} s each",
        part="Security",
        parsers=1,
        inputs=int(tried[1]),
        failures=0,
    )


def test_a_parser_that_breaks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a fault that one input in many meets."""
    real = TARGETS["durations"]

    def broken(data: bytes) -> None:
        if b"%" in data:
            raise IndexError
        real(data)

    monkeypatch.setitem(TARGETS, "durations", broken)
    with pytest.raises(IndexError):
        examples("durations", 2000)
    reliability.control(
        "S19", "an IndexError where an input has a %", "found by Hypothesis", part="Security"
    )
