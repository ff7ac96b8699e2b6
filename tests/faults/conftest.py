from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.lives import World, Zygote, nursery, world


@pytest.fixture
async def zygote(tmp_path: Path) -> AsyncIterator[Zygote]:
    async with nursery(tmp_path) as made:
        yield made


@pytest.fixture(name="world")
async def _world(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        yield made
