"""The description of the control API with the names of what is there, so that generated requests
reach it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.fakes.filled import Filled

OPENAPI = Path(__file__).parents[2] / "proxy" / "control" / "openapi.json"


def described() -> dict[str, Any]:
    found = json.loads(OPENAPI.read_text())
    assert isinstance(found, dict)
    return found


def with_data(made: Filled) -> dict[str, Any]:
    """Parameters also take the values that lead somewhere."""
    known = {
        "run": made.runs(),
        "key": made.keys(),
        "id": list(made.approvals.values()),
        "step": ["refunds", "a"],
        "service": ["shop"],
    }
    description = described()
    for methods in description["paths"].values():
        for entry in methods.values():
            for parameter in entry.get("parameters", ()):
                values = known.get(parameter["name"])
                if values and parameter["in"] in ("path", "query"):
                    parameter["schema"] = {"anyOf": [{"enum": values}, parameter["schema"]]}
    return description


def concrete(made: Filled, path: str, run: str) -> str:
    """A path with its parameters filled in."""
    key = quote("open/refunds/shop.refunds.create/v1", safe="")
    return path.format(run=run, key=key, id=made.approvals["waiting"])
