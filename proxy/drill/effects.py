"""What the toy API has really done: the judge of duplicates.

Every effect is one line of a file that is written before anybody is told about it, so that the
count outlives the API's own process.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect. ``reference`` names the logical operation: what should happen once.

    ``key`` and ``digest`` are the idempotency key of the request and the digest of its body, so
    that the API's memory of keys can be rebuilt; ``at`` is wall clock, seconds since the epoch."""

    id: str
    collection: str
    reference: str
    body: dict[str, Any]
    at: float
    key: str | None = None
    digest: str = ""


@dataclass(slots=True)
class Effects:
    """All effects, in order. ``file`` None keeps them in memory."""

    file: Path | None = None
    made: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.file is not None and self.file.exists():
            lines = self.file.read_text(encoding="utf-8").splitlines()
            self.made = [Effect(**json.loads(line)) for line in lines]

    def add(self, effect: Effect) -> None:
        if self.file is not None:
            line = json.dumps(asdict(effect)) + "\n"
            # One write call: a kill leaves either the whole line or none of it.
            handle = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)
        self.made.append(effect)

    def counts(self) -> dict[str, int]:
        """How often each logical operation has happened."""
        return dict(Counter(effect.reference for effect in self.made))

    def of(self, reference: str) -> int:
        return self.counts().get(reference, 0)

    def newest_first(self, collection: str) -> Iterator[Effect]:
        return (effect for effect in reversed(self.made) if effect.collection == collection)
