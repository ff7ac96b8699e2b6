"""How rules compare and write values: exact numbers, text, and moments in time."""

from __future__ import annotations

import datetime
from decimal import Decimal, InvalidOperation
from email.utils import parsedate_to_datetime
from typing import Any

MILLISECONDS = 1e11  # a Unix time beyond it (year 5138) is in milliseconds


def text_of(value: Any) -> str | None:
    """A scalar as it would stand in a URL or a form; None for null, lists and objects."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int | Decimal):
        return str(value)
    return None


def same(left: Any, right: Any) -> bool:
    """Equal by meaning: 1 and 1.0 and, since forms know only text, "1"; true and "true"."""
    if isinstance(left, str) != isinstance(right, str):
        return text_of(left) == text_of(right) and text_of(left) is not None
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    return bool(left == right)


def number_of(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        return None
    if isinstance(value, str) and "_" in value:
        return None
    try:
        number = Decimal(value)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def time_of(value: Any) -> float | None:
    """Seconds since the epoch from a Unix time (seconds or milliseconds), ISO 8601 or RFC 2822."""
    if isinstance(value, float):
        return value
    number = number_of(value)
    if number is not None:
        seconds = float(number)
        return seconds / 1000 if abs(seconds) > MILLISECONDS else seconds
    if not isinstance(value, str):
        return None
    for read in (datetime.datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(value)
        except (ValueError, TypeError, IndexError):  # what the standard readers raise
            continue
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        return moment.timestamp()
    return None


def iso(seconds: float) -> str:
    """2026-11-30T12:00:00Z; whole seconds, rounded down."""
    moment = datetime.datetime.fromtimestamp(int(seconds // 1), datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def utf8(text: str) -> bytes:
    """Text of a header field has undecodable bytes as U+DC80 and on; text of JSON may have any half
    of a surrogate pair."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
