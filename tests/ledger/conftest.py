"""The ledgers under test, and the clock they get."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.ledger.base import Ledger
from proxy.ledger.memory import MemoryLedger
from proxy.ledger.sqlite import SqliteLedger
from tests.fakes.clock import FakeClock
from tests.ledger.support import KEY


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture(params=["memory", "sqlite"])
async def ledger(request: pytest.FixtureRequest, path: Path) -> AsyncIterator[Ledger]:
    """Each ledger there is: the conformance suite asks all of them the same."""
    one: Ledger = (
        MemoryLedger(FakeClock())
        if request.param == "memory"
        else SqliteLedger(path, key=KEY, clock=FakeClock())
    )
    await one.open()
    yield one
    await one.close()


@pytest.fixture
async def sqlite(path: Path) -> AsyncIterator[SqliteLedger]:
    one = SqliteLedger(path, key=KEY, clock=FakeClock())
    await one.open()
    yield one
    await one.close()
