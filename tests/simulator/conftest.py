from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture
def quiet_log() -> Iterator[None]:
    """Thousands of refusals are nothing to read."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.configure(**before)
