"""One way to run a coroutine for every process of the bench: on uvloop where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

try:
    import uvloop
except ImportError:  # the `speed` extra is optional, here as in the product
    uvloop = None

NAME = "uvloop" if uvloop else "asyncio"


def run(main: Coroutine[Any, Any, None]) -> None:
    if uvloop:
        uvloop.run(main)
    else:
        asyncio.run(main)
