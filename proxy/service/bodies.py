"""Reading the JSON bodies of acts: every fault of one is told at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from proxy.core.identity import BadIdentity, Sources, identify
from proxy.errors import ServiceError

TEXT_MAX = 2_000  # characters: a reason is a sentence or a link, kept in the history for ever


class Reading:
    """``example``: what to send, for the message about a body that is no object."""

    def __init__(self, body: object, known: tuple[str, ...], example: str) -> None:
        if not isinstance(body, dict):
            raise ServiceError("bad-request", f"Send a JSON object such as {example}.")
        self.body: Mapping[str, Any] = body
        self.problems = [f"{name}: unknown member" for name in body if name not in known]

    def text(self, name: str, *, most: int = TEXT_MAX) -> str | None:
        value = self.body.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip() or len(value) > most:
            self.problems.append(f"{name}: must be a text of at most {most} characters")
            return None
        if any(char < " " and char not in "\n\t" for char in value) or not _readable(value):
            self.problems.append(f"{name}: has control characters")
            return None
        return value

    def run(self, name: str, *, most: int) -> str | None:
        """The name of a run, as a call can give it."""
        value = self.body.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not value or len(value) > most or not _readable(value):
            self.problems.append(f"{name}: must be a text of at most {most} characters")
            return None
        try:
            found = identify(Sources(run=quote(value, safe=""))).run
        except BadIdentity:
            found = None
        if found is None:
            self.problems.append(f"{name}: no call can name such a run: use printable text")
        return found

    def truth(self, name: str) -> bool:
        value = self.body.get(name, False)
        if not isinstance(value, bool):
            self.problems.append(f"{name}: must be true or false")
            return False
        return value

    def whole(self, name: str) -> int | None:
        value = self.body.get(name)
        if value is None:
            return None
        found = whole(value)
        if found is None or not 0 <= found <= 10**12:
            self.problems.append(f"{name}: must be a whole number, 0 or more")
            return None
        return found

    def word(self, name: str, words: tuple[str, ...], default: str) -> str:
        value = self.body.get(name, default)
        if value not in words:
            self.problems.append(f"{name}: must be one of {', '.join(words)}")
            return default
        return str(value)

    def end(self) -> None:
        """Raises ServiceError with all that is wrong."""
        if self.problems:
            raise ServiceError("bad-request", "; ".join(self.problems), self.problems)


def whole(value: object) -> int | None:
    """A whole number as JSON has them: 50.0 is one."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _readable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
