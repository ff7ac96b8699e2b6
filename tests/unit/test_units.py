from __future__ import annotations

import math

import pytest

from proxy.units import duration, retention, show_duration, show_size, size


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("64KiB", 65_536),
        ("10MB", 10_000_000),
        ("1.5 kb", 1500),
        ("7B", 7),
        ("2gib", 2**31),
    ],
)
def test_sizes_have_units(text: str, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "MB", "-1", "1iB", "0IB", "1 M", "1TB", "٣B"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="for example 10MB"):
        size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("20s", 20), ("1h30m", 5400), ("500ms", 0.5), ("0", 0), ("1.5h", 5400)]
)
def test_durations_add_up(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "20", "s", "-5s", "5 m", "1h 30m", "٣s"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="for example 20s"):
        duration(text)


def test_for_ever_is_a_retention_and_no_duration() -> None:
    assert retention(" forever ") == math.inf
    with pytest.raises(ValueError, match="not a duration"):
        duration("forever")


@pytest.mark.parametrize("text", ["20s", "24h", "90d", "2w"])
def test_what_is_shown_can_be_read_again(text: str) -> None:
    assert duration(show_duration(duration(text))) == duration(text)


@pytest.mark.parametrize("text", ["10MB", "64KiB", "1GB", "7B"])
def test_a_size_that_is_shown_can_be_read_again(text: str) -> None:
    assert size(show_size(size(text))) == size(text)
