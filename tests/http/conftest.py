"""One world for each file of this folder: its proxy lives as long as the file's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.http.world import WAYS, World, world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with world(tmp_path_factory.mktemp("http"), patience="1s") as opened:
        yield opened


@pytest.fixture
def w(made: World) -> World:
    made.reset()
    return made


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)
