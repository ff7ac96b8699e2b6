"""Operations and events as rows, requests and answers as bytes, and back.

Laws kept here: a row that does not fit its hash is ``Damaged``, never a value and never absent;
what is read back is equal to what was written (text that is not UTF-8, endless durations and big
numbers included). A field that a row does not have holds its default, so that one added later
needs no migration.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import orjson

from proxy.core.model import Answer, Body, Request
from proxy.core.operation import (
    Approval,
    Attempt,
    Consent,
    End,
    Event,
    Intent,
    Kind,
    Operation,
    Outcome,
    State,
)
from proxy.core.runs import Closing, Revocation, Run, RunToken
from proxy.ledger.base import Damaged

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
    "approval",
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
    "standing",
    "hash",
)

REMEMBERED = 1024  # intents as text, and operations read, at hand: 1 to 3 MB each

Row = tuple[Any, ...]


class EventRow(NamedTuple):
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
        str(operation.state) if operation.state else "",
        operation.blocked_by,
        intent.account,
        text(outcome.external_id) if outcome and outcome.external_id is not None else None,
        operation.caller_key,
        _started_at(operation.attempts),
        float(operation.created_at),
        float(operation.updated_at),
        operation.delivered_epoch,
        operation.revision,
        _intents.text_of(intent),
        _record(operation.attempts),
        None if outcome is None else _record(outcome),
        None if operation.approval is None else _record(operation.approval),
    )
    return (*columns, row_hash(columns))


def decode(row: Row) -> Operation:
    """The operation of a row. Raises Damaged when it does not fit its hash."""
    _check(row)
    return _parsed(row)


class Reader:
    """Decodes rows, each checked against its hash; one that was read a moment ago is not parsed
    again, since a frozen operation can be given out twice."""

    def __init__(self) -> None:
        self._read: dict[bytes, Operation] = {}

    def decode(self, row: Row) -> Operation:
        """Raises Damaged."""
        _check(row)
        known = self._read.get(row[-1])
        if known is None:
            known = _parsed(row)
            if len(self._read) >= REMEMBERED:
                del self._read[next(iter(self._read))]
            self._read[row[-1]] = known
        return known


def _check(row: Row) -> None:
    if not fits(row[:-1], row[-1]):
        raise Damaged(f"the ledger's row of {_name(row[0])} does not fit its hash: it was damaged")


def _parsed(row: Row) -> Operation:
    return Operation(
        run=row[1],
        step=row[2],
        name=row[3],
        version=row[4],
        service=row[5],
        endpoint=row[6],
        method=row[7],
        url=untext(row[8]),
        state=_STATES[row[9]],
        blocked_by=row[10],
        caller_key=row[13],
        created_at=row[15],
        updated_at=row[16],
        delivered_epoch=row[17],
        revision=row[18],
        intent=_intent(loads(row[19])),
        attempts=tuple(map(_attempt, loads(row[20]))),
        outcome=None if row[21] is None else Outcome(**loads(row[21])),
        approval=None if row[22] is None else _approval(loads(row[22])),
    )


def row_hash(columns: Sequence[Any]) -> bytes:
    """SHA-256 over the columns, with their types and borders. The last one was added later: a row
    that has nothing there has the hash of before."""
    if columns[-1] is None:
        columns = columns[:-1]
    return hashlib.sha256(orjson.dumps(columns, default=_plain)).digest()


def fits(columns: Sequence[Any], digest: object) -> bool:
    """Whether a row that was read has the hash that it was written with."""
    try:
        return row_hash(columns) == digest
    except (TypeError, ValueError):  # a column can be damaged into anything
        return False


def place_code(url: str) -> int:
    """A small number that operations on the same URL share."""
    return zlib.crc32(url.encode("utf-8", "surrogatepass"))


def _started_at(attempts: Sequence[Attempt]) -> float | None:
    newest: float | None = None
    for attempt in attempts:
        if attempt.maybe_sent and (newest is None or attempt.started_at > newest):
            newest = float(attempt.started_at)
    return newest


# Runs


def encode_run(run: Run) -> Row:
    columns = (
        run.run,
        run.epoch,
        OPEN if run.closed is None else run.closed.outcome,
        run.generation,
        float(run.created_at),
        run.parent,
        run.input_digest,
        None,
        dumps(run.limits),
        dumps(run.used),
        run.revision,
        _standing(run),
    )
    return (*columns, row_hash(columns))


def decode_run(row: Sequence[Any]) -> Run:
    """Raises Damaged when the row does not fit its hash."""
    if not fits(row[:-1], row[-1]):
        raise Damaged(f"the ledger's row of run {_name(row[0])} does not fit its hash")
    standing = {} if row[11] is None else loads(row[11])
    closed, revoked = standing.get("closed"), standing.get("revoked")
    return Run(
        run=row[0],
        epoch=row[1],
        created_at=row[4],
        generation=row[3],
        parent=row[5],
        input_digest=row[6],
        limits=loads(row[8]),
        used=loads(row[9]),
        by=standing.get("by"),
        closed=None if closed is None else Closing(**closed),
        revoked=_revocation(revoked),
        tokens=tuple(
            RunToken(each["digest"], each["epoch"], _revocation(each["revoked"]))
            for each in standing.get("tokens", ())
        ),
        revision=row[10],
    )


OPEN = "open"


def _standing(run: Run) -> str | None:
    if run.by is None and run.closed is None and run.revoked is None and not run.tokens:
        return None
    standing = {"by": run.by, "closed": run.closed, "revoked": run.revoked, "tokens": run.tokens}
    return dumps(standing)


def _revocation(data: dict[str, Any] | None) -> Revocation | None:
    return None if data is None else Revocation(**data)


# Events


def encode_event(event: Event) -> EventRow:
    data = event.data
    plain = data if type(data) is dict else dict(data)
    return EventRow(str(event.kind), float(event.at), dumps(plain))


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
    return tuple([(name, value) for name, value in pairs])


# JSON and text


def dumps(value: Any) -> str:
    """JSON of any value made of the usual types; what orjson cannot say goes the standard way."""
    try:
        raw = orjson.dumps(value, default=_plain)
    except TypeError:  # lone surrogates, integers above 64 bits
        return _slow_json(value)
    # orjson writes infinity as null: each null that no None accounts for may be one.
    nulls = raw.count(b"null")
    if nulls and nulls != _nones(value) and _endless(value):
        return _slow_json(value)
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


def _slow_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a {type(value).__name__} cannot be stored in the ledger")


def _nones(value: Any) -> int:
    """How many members are None, not counting those of members."""
    return list(value.values()).count(None) if type(value) is dict else 0


def _endless(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(map(_endless, value.values()))
    return isinstance(value, list | tuple) and any(map(_endless, value))


# Dataclasses


def _record(value: Intent | Outcome | Approval | tuple[Attempt, ...]) -> str:
    """JSON of a dataclass, or of several. Without a walk over its fields in Python: an operation's
    row is made twice for each call."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # lone surrogates
        return _slow_json(list(map(asdict, value)) if isinstance(value, tuple) else asdict(value))


_STATES: dict[str, State | None] = {"": None, **{state.value: state for state in State}}
_ENDS = {end.value: end for end in End}


class _Intents:
    """The text of intents, which go through two commits or more and are made once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Intent, str]] = {}

    def text_of(self, intent: Intent) -> str:
        known = self._known.get(id(intent))
        if known is not None and known[0] is intent:  # a number is used again after its object
            return known[1]
        # orjson would write an endless key as one whose end is not stated.
        made = _slow_json(asdict(intent)) if intent.valid_for == math.inf else _record(intent)
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[id(intent)] = (intent, made)
        return made


_intents = _Intents()


def _intent(data: dict[str, Any]) -> Intent:
    data.setdefault("core_fingerprint", data["fingerprint"])
    for name in ("key_place", "marker_place"):
        if data.get(name) is not None:
            data[name] = tuple(data[name])
    return Intent(**data)


def _attempt(data: dict[str, Any]) -> Attempt:
    if data.get("end") is not None:
        data["end"] = _ENDS[data["end"]]
    return Attempt(**data)


def _approval(data: dict[str, Any]) -> Approval:
    data["state"] = Consent(data["state"])
    return Approval(**data)


def _name(value: Any) -> str:
    return untext(value) if isinstance(value, str | bytes) else "?"
