"""Operations and events as rows, requests and answers as bytes, and back.

Laws kept here: a row that does not fit its hash is ``Damaged``, never a value and never absent;
what is read back is equal to what was written (text that is not UTF-8, endless durations and big
numbers included). Fields that hold their default are left out, so that a field added later needs
no migration.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import orjson

from proxy.core.model import Answer, Body, Request
from proxy.core.operation import Attempt, End, Event, Intent, Kind, Operation, Outcome, State
from proxy.ledger.base import Damaged, RunRow

COLUMNS = (
    "key",
    "run",
    "step",
    "name",
    "version",
    "service",
    "endpoint",
    "method",
    "url",
    "state",
    "blocked_by",
    "account",
    "external_id",
    "caller_key",
    "started_at",
    "created_at",
    "updated_at",
    "delivered_epoch",
    "revision",
    "intent",
    "attempts",
    "outcome",
    "hash",
)
"""The columns of an operation's row, in the order of ``encode`` and ``decode``."""

RUN_COLUMNS = (
    "run",
    "epoch",
    "status",
    "generation",
    "created_at",
    "parent",
    "input_digest",
    "token_digest",
    "limits",
    "counters",
    "revision",
    "hash",
)

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event without its place in the history."""

    kind: str
    at: float
    data: str


# Operations


def encode(operation: Operation) -> Row:
    """The row of an operation, its hash last."""
    intent, outcome = operation.intent, operation.outcome
    columns = (
        operation.key,
        operation.run,
        operation.step,
        operation.name,
        operation.version,
        operation.service,
        operation.endpoint,
        operation.method,
        text(operation.url),
        operation.state.value if operation.state else "",
        operation.blocked_by,
        intent.account,
        text(outcome.external_id) if outcome and outcome.external_id is not None else None,
        operation.caller_key,
        _started_at(operation.attempts),
        float(operation.created_at),
        float(operation.updated_at),
        operation.delivered_epoch,
        operation.revision,
        dumps(_sparse(intent, _INTENT)),
        dumps([_sparse(attempt, _ATTEMPT) for attempt in operation.attempts]),
        None if outcome is None else dumps(_sparse(outcome, _OUTCOME)),
    )
    return (*columns, row_hash(columns))


def decode(row: Sequence[Any]) -> Operation:
    """The operation of a row. Raises Damaged when it does not fit its hash."""
    if row_hash(tuple(row[:-1])) != row[-1]:
        raise Damaged(f"the ledger's row of {_name(row[0])} does not fit its hash: it was damaged")
    outcome = None if row[21] is None else Outcome(**loads(row[21]))
    return Operation(
        run=row[1],
        step=row[2],
        name=row[3],
        version=row[4],
        service=row[5],
        endpoint=row[6],
        method=row[7],
        url=untext(row[8]),
        state=State(row[9]) if row[9] else None,
        blocked_by=row[10],
        caller_key=row[13],
        created_at=row[15],
        updated_at=row[16],
        delivered_epoch=row[17],
        revision=row[18],
        intent=_intent(loads(row[19])),
        attempts=tuple(_attempt(attempt) for attempt in loads(row[20])),
        outcome=outcome,
    )


def row_hash(columns: Sequence[Any]) -> bytes:
    """SHA-256 over the columns, with their types and borders."""
    return hashlib.sha256(orjson.dumps(columns, default=_plain)).digest()


def place_code(url: str) -> int:
    """A small number that operations on the same URL share."""
    return zlib.crc32(url.encode("utf-8", "surrogatepass"))


def _started_at(attempts: Sequence[Attempt]) -> float | None:
    return max((float(a.started_at) for a in attempts if a.maybe_sent), default=None)


# Runs


def encode_run(row: RunRow) -> Row:
    columns = (
        row.run,
        row.epoch,
        row.status,
        row.generation,
        float(row.created_at),
        None,
        None,
        None,
        "{}",
        "{}",
        1,
    )
    return (*columns, row_hash(columns))


def decode_run(row: Sequence[Any]) -> RunRow:
    """Raises Damaged when the row does not fit its hash."""
    if row_hash(tuple(row[:-1])) != row[-1]:
        raise Damaged(f"the ledger's row of run {_name(row[0])} does not fit its hash")
    return RunRow(row[0], row[1], row[2], row[4], row[3])


def next_epoch(row: Sequence[Any]) -> Row:
    """A run's row at its next epoch, whatever else it holds. Raises Damaged."""
    decode_run(row)
    run, epoch, *middle, revision, _ = row
    columns = (run, epoch + 1, *middle, revision + 1)
    return (*columns, row_hash(columns))


# Events


def encode_event(event: Event) -> EventRow:
    return EventRow(event.kind.value, float(event.at), dumps(dict(event.data)))


def decode_event(kind: str, at: float, data: str) -> Event:
    """Raises Damaged when the event cannot be read."""
    try:
        return Event(Kind(kind), at, loads(data))
    except (ValueError, TypeError) as error:
        raise Damaged(f"an event of the ledger cannot be read: {error}") from error


# Contents


def pack_request(request: Request) -> bytes:
    meta = [request.method, request.scheme, request.host, request.port, request.target]
    return _pack([*meta, request.headers], request.body)


def unpack_request(packed: bytes) -> Request:
    meta, body = _unpack(packed)
    method, scheme, host, port, target, headers = meta
    return Request(method, scheme, host, port, target, _headers(headers), body or Body.of(b""))


def pack_answer(answer: Answer) -> bytes:
    return _pack([answer.status, answer.reason, answer.headers], answer.body)


def unpack_answer(packed: bytes) -> Answer:
    meta, body = _unpack(packed)
    status, reason, headers = meta
    return Answer(status, reason, _headers(headers), body)


def _pack(meta: list[Any], body: Body | None) -> bytes:
    """One line of JSON, then the bytes of the body."""
    data = _bytes(body)
    about = None if body is None else [body.size, body.sha256, data is not None]
    return b"".join((dumps([meta, about]).encode(), b"\n", data or b""))


def _unpack(packed: bytes) -> tuple[list[Any], Body | None]:
    line, _, data = packed.partition(b"\n")
    meta, about = loads(line)
    if about is None:
        return meta, None
    size, sha256, kept = about
    return meta, Body(size, sha256, data if kept else None)


def _bytes(body: Body | None) -> bytes | None:
    if body is None:
        return None
    if body.data is None and body.spool is not None:
        return b"".join(body.spool.chunks())
    return body.data


def _headers(pairs: Sequence[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in pairs)


# JSON and text


def dumps(value: Any) -> str:
    """JSON of any value made of the usual types; what orjson cannot say goes the standard way."""
    try:
        raw = orjson.dumps(value, default=_plain)
    except TypeError:  # lone surrogates, integers above 64 bits
        return _slow_dumps(value)
    if b"null" in raw and _endless(value):  # orjson writes infinity as null
        return _slow_dumps(value)
    return raw.decode()


def loads(data: str | bytes) -> Any:
    try:
        return orjson.loads(data)
    except ValueError:
        return json.loads(data)


def text(value: str) -> str | bytes:
    """Text as SQLite takes it: what is not valid Unicode is kept as bytes."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")
    return value


def untext(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "surrogatepass")


def _slow_dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a {type(value).__name__} cannot be stored in the ledger")


def _endless(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(map(_endless, value.values()))
    return isinstance(value, list | tuple) and any(map(_endless, value))


# Dataclasses


def _defaults(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((f.name, f.default) for f in fields(kind))


_INTENT = _defaults(Intent)
_ATTEMPT = _defaults(Attempt)
_OUTCOME = _defaults(Outcome)


def _sparse(value: Any, known: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """The fields that differ from their default; a field without one is always there."""
    return {name: held for name, usual in known if (held := getattr(value, name)) != usual}


def _intent(data: dict[str, Any]) -> Intent:
    for name in ("key_place", "marker_place"):
        if name in data:
            data[name] = tuple(data[name])
    return Intent(**data)


def _attempt(data: dict[str, Any]) -> Attempt:
    if "end" in data:
        data["end"] = End(data["end"])
    return Attempt(**data)


def _name(value: Any) -> str:
    return untext(value) if isinstance(value, str | bytes) else "?"
