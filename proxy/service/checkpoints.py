"""Checkpoints: what an agent saves of its run, to go on from after a crash.

What is inside is the agent's business. It is kept to the byte and given back to the byte, so that
numbers, the order of members and odd characters are what they were. Only the outer object is read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from proxy.core.identity import encode_part
from proxy.errors import ServiceError
from proxy.ledger.base import (
    CHECKPOINTS_KEPT,
    Checkpoint,
    Condition,
    Damaged,
    Ledger,
    StaleCheckpoint,
)
from proxy.service.names import key_of

MEMBERS: Final = ("step", "messages", "state")
SIZE_MAX: Final = 10_000_000
READ_APART: Final = 64_000  # bytes; longer ones are checked in a thread, for the calls' sake
STEP_MAX: Final = 1_000  # characters
_WHITESPACE: Final = b" \t\r\n"
_EXAMPLE: Final = 'such as {"step": "issue-refund", "messages": [], "state": {}}'


class Stale(ServiceError):
    """A condition did not hold. ``newest``: the version that is there, 0 for none."""

    def __init__(self, newest: int, detail: str) -> None:
        super().__init__("stale-checkpoint", detail)
        self.newest = newest


class CheckpointService:
    """``kept``: versions of one run. ``size_max``: bytes of one."""

    def __init__(
        self, ledger: Ledger, *, kept: int = CHECKPOINTS_KEPT, size_max: int = SIZE_MAX
    ) -> None:
        self._ledger = ledger
        self._kept = kept
        self.size_max = size_max

    async def save(self, run: str, raw: bytes, conditions: Sequence[Condition] = ()) -> int:
        """Save the next version of a run, which begins with it if it is new. Raises Stale,
        ServiceError."""
        if len(raw) > self.size_max:
            raise self.too_large(f"this one has {len(raw)}")
        raw = raw.strip(_WHITESPACE)
        step = await _apart(raw, read)
        try:
            saved = await self._ledger.save_checkpoint(
                key_of(self._ledger, run), raw, step=step, conditions=conditions, keep=self._kept
            )
        except StaleCheckpoint as error:
            raise Stale(error.newest, _stale(error.newest)) from error
        return saved.version

    async def one(self, run: str, version: int | None = None) -> Checkpoint:
        """That version, or the newest, with its content. Raises ServiceError."""
        name = key_of(self._ledger, run)
        try:
            found = await self._ledger.checkpoint(name, version)
        except Damaged as error:
            raise damaged(error) from error
        if found is None or found.content is None:
            raise ServiceError("not-found", await self._why_not(name, version, found))
        return found

    async def listed(self, run: str) -> list[dict[str, Any]]:
        """Newest first, without what is in them. Raises ServiceError."""
        name = key_of(self._ledger, run)
        if self._ledger.run(name) is None:
            raise ServiceError("not-found", NO_RUN)
        return [described(found) for found in await self._ledger.checkpoints(name)]

    def too_large(self, what: str) -> ServiceError:
        return ServiceError(
            "too-large",
            f"A checkpoint may have {self.size_max} bytes, {what}: leave out what can be fetched "
            "again, or raise limits.checkpoint.",
        )

    async def _why_not(self, run: str, version: int | None, found: Checkpoint | None) -> str:
        if found is not None:
            return f"Version {found.version} is older than runs.checkpoints_kept_for: it was taken."
        if self._ledger.run(run) is None:
            return NO_RUN
        versions = [one.version for one in await self._ledger.checkpoints(run) if one.kept]
        if version is None or not versions:
            return "This run has no checkpoint yet: PUT one."
        there = ", ".join(map(str, versions))
        return f"This run has no version {version} (any more). There are: {there}."


NO_RUN: Final = "No run has this name. A run begins with its first call or its first checkpoint."


def damaged(error: Damaged) -> ServiceError:
    return ServiceError(
        "damaged",
        f"{error}. GET .../checkpoints lists the others; one that is fetched with ?version=N and "
        "PUT again is the newest.",
    )


def described(checkpoint: Checkpoint) -> dict[str, Any]:
    """A checkpoint without what is in it."""
    return {
        "version": checkpoint.version,
        "step": checkpoint.step,
        "saved_at": checkpoint.created_at,
        "size": checkpoint.size,
        "kept": checkpoint.kept,
    }


def shown(checkpoint: Checkpoint) -> bytes:
    """JSON of a whole one: its version, then the members as the agent wrote them."""
    head = orjson.dumps({"version": checkpoint.version, "saved_at": checkpoint.created_at})
    assert checkpoint.content is not None
    inner = checkpoint.content[1:].lstrip(_WHITESPACE)
    return b"".join((head[:-1], b",", inner))


def read(raw: bytes) -> str | None:
    """The step of a checkpoint's JSON, as it stands in operation keys. A member that comes twice
    counts as its last, which is how parsers read it. Raises ServiceError naming everything that is
    wrong."""
    members = _members(raw)
    problems = [_unknown(name) for name in members if name not in MEMBERS]
    if not members:
        problems.append(f"there is nothing in it: give {', '.join(MEMBERS)} or some of them")
    if not isinstance(members.get("messages", []), list):
        problems.append("messages: must be an array")
    step = members.get("step")
    if type(step) is int:
        step = str(step)
    if step is not None and not _is_name(step):
        problems.append(f"step: must be text of at most {STEP_MAX} characters, or a whole number")
    if problems:
        raise ServiceError("bad-request", "; ".join(problems), problems)
    return None if step is None else encode_part(step)


def _members(raw: bytes) -> dict[str, Any]:
    """Raises ServiceError."""
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        found = _slowly(raw)
    if not isinstance(found, dict):
        raise ServiceError("bad-request", f"Send a JSON object {_EXAMPLE}.")
    return found


def _slowly(raw: bytes) -> Any:
    """What orjson does not take, if it is JSON: halves of surrogate pairs, where a model's text was
    cut. It is some twenty times slower; the hook lets other threads have their turn."""
    try:
        return json.loads(raw.decode(), object_hook=lambda one: one, parse_constant=_refused)
    except RecursionError:
        raise ServiceError("bad-request", "The body is nested too deeply.") from None
    except ValueError as error:  # not JSON, or not UTF-8
        raise ServiceError("bad-request", f"The body is not JSON: {_told(error)}") from None


def _refused(word: str) -> None:
    raise ValueError(f"{word} is no JSON; write null, or a text")


def _told(error: ValueError) -> str:
    """Without the text itself, which is nobody's business."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    return str(error)


def _unknown(name: str) -> str:
    if name in ("version", "saved_at"):
        return f'{name}: is given by the proxy; what must be the newest goes into If-Match: "3"'
    return f"{name[:100]!r}: unknown member; all that is the agent's own goes into state"


def _is_name(step: object) -> bool:
    if not isinstance(step, str) or len(step) > STEP_MAX:
        return False
    return not any("\ud800" <= char <= "\udfff" for char in step)


def _stale(newest: int) -> str:
    if not newest:
        return "There is no checkpoint yet: send If-None-Match: * with the first one, or neither."
    return (
        f"The newest version is {newest}: another writer has saved it. Read it, and go on from it "
        "or stop."
    )


async def _apart(raw: bytes, check: Callable[[bytes], str | None]) -> str | None:
    return check(raw) if len(raw) < READ_APART else await asyncio.to_thread(check, raw)
