"""For the whole suite: what no test may leave behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import canaries, reliability

PLANTED = "planted"  # names of directories where a test has put a leak on purpose


@pytest.fixture(scope="session", autouse=True)
def _no_secret_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """After the last test: no credential of any test, and no key or token of any proxy, in a
    ledger, its WAL, a log, or whatever else proxies wrote (S9)."""
    yield
    files, found = canaries.scan(tmp_path_factory.getbasetemp())
    found = [leak for leak in found if f"/{PLANTED}" not in leak]
    if found:
        pytest.fail("secrets were left behind:\n" + "\n".join(found), pytrace=False)
    reliability.figure(
        "S9", "files scanned for secrets after the suite", part="Security", files=files, hits=0
    )
