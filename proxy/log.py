"""Log lines: one JSON object or one readable line each, to stderr, with secrets taken out.

Lines of this program and of the libraries it uses go through the same steps. Redaction is not left
to the places that log: fields with a secret-sounding name are starred, texts that look like a
credential are starred, and so is every secret that was registered with ``hide``.

Whatever is logged is one line, and the same line more than ``SAME_PER_SECOND`` times a second is
counted instead: a caller must not be able to fill a disk.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, MutableMapping
from functools import lru_cache
from typing import Any, TextIO, cast

import orjson
import structlog

Line = MutableMapping[str, Any]

_SECRET_NAMES = re.compile(
    r"(?i)(authorization|cookie|secret|password|passwd|api[-_]?key|(^|[-_])token$|credential)"
)
_SECRET_TEXTS = (
    re.compile(r"(?i)\b((?:bearer|basic|token)\s+)[A-Za-z0-9._~+/=-]{8,}"),  # header values
    re.compile(r"(://)[^/\s:@]+:[^/\s@]+(?=@)"),  # user and password in a URL
    re.compile(r"(?i)([?&](?:access_token|api_?key|key|token|sig|signature)=)[^&\s\"']+"),
    re.compile(r"\b((?:sk|rk|pk|xox[abp]|ghp|gho|ghs|github_pat|whsec)[-_])[A-Za-z0-9_-]{8,}"),
)
_SUSPICIOUS = re.compile(
    r"(?i)bearer |basic |token|://|key|sig|[srp]k[-_]|xox|gh[pos]_|github_pat|whsec"
)
"""One cheap look before the patterns above: nearly all texts of a line are harmless words."""
_STARS = "***"
_UNPRINTED = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_UNPRINTED |= {10: "\\n", 13: "\\r", 0x2028: "\\u2028", 0x2029: "\\u2029"}
_MAX_TEXT = 4_000  # one value of a line; more is a body, and bodies do not belong into a log

SAME_PER_SECOND = 10
LINES_REMEMBERED = 4096  # different ones, within a second
DEPTH = 8  # of a value; deeper is no log line

_hidden: set[str] = set()


def hide(secrets: Iterable[str]) -> None:
    """Never let these texts appear in a line, whatever field they are in."""
    _hidden.update(secret for secret in secrets if len(secret) >= 8)  # shorter ones are also words


def configure(
    level: str = "info", form: str = "auto", stream: TextIO | None = None, *, final: bool = False
) -> None:
    """Set up the whole process. ``form``: json | text | auto (text on a terminal).

    Calling it again replaces the set-up, unless it was ``final``: then loggers keep what they had
    when they were first used, which makes a line three times cheaper.
    """
    out = cast("TextIO", Unfailing(stream or sys.stderr))
    text = form == "text" or (form == "auto" and out.isatty())
    threshold = logging.getLevelNamesMapping()[level.upper()]
    repeats = Repeats()
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
        redact,
    ]
    render = _text_renderer(out) if text else _render_json
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, repeats.processor, *shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=final,
    )
    handler = logging.StreamHandler(out)
    handler.addFilter(repeats.filter)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.PositionalArgumentsFormatter(),
                structlog.stdlib.add_logger_name,
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.contextvars.merge_contextvars,
                *shared,
                render,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # What libraries say below a warning is about their insides.
    root.setLevel(max(threshold, logging.WARNING))


def catch_strays() -> None:
    """What Python itself would write to stderr becomes lines as well: warnings, and exceptions that
    nobody can catch."""
    log = logging.getLogger("python")
    logging.captureWarnings(True)

    def unraisable(stray: sys.UnraisableHookArgs) -> None:
        log.error("%s: %r", stray.err_msg or "exception ignored", stray.exc_value)

    def in_thread(stray: threading.ExceptHookArgs) -> None:
        log.error("a thread ended by an exception: %r", stray.exc_value)

    sys.unraisablehook = unraisable
    threading.excepthook = in_thread


class Repeats:
    """Lets a line through so many times a second, and says with the next one of its kind how many
    were left out."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began = 0.0
        self._seen: dict[Hashable, int] = {}
        self._left_out: dict[Hashable, int] = {}

    def admit(self, line: Hashable) -> int | None:
        """How many times that line was left out before, None if it is left out now."""
        now = self._now()
        if now - self._began >= 1.0:
            self._began = now
            self._seen.clear()
        times = self._seen.get(line, 0)
        if times >= SAME_PER_SECOND:
            self._left_out[line] = self._left_out.get(line, 0) + 1
            return None
        if len(self._seen) < LINES_REMEMBERED:
            self._seen[line] = times + 1
        return self._left_out.pop(line, 0) if self._left_out else 0

    def processor(self, _logger: object, method: str, line: Line) -> Line:
        """For structlog. Raises DropEvent."""
        key: Hashable = (method, *line.items())
        try:
            left_out = self.admit(key)
        except TypeError:  # a value that cannot be hashed
            left_out = self.admit((method, _shown(line)))
        if left_out is None:
            raise structlog.DropEvent
        if left_out:
            line["left_out"] = left_out
        return line

    def filter(self, record: logging.LogRecord) -> bool:
        """For the standard library's loggers."""
        left_out = self.admit((record.name, record.levelno, record.getMessage()))
        if left_out:
            record.msg, record.args = f"{record.getMessage()} (left out before: {left_out})", ()
        return left_out is not None


class Unfailing:
    """A stream that drops what it cannot take. The log often lies on the disk of the ledger; when
    that is full, a call still gets its answer."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.isatty = out.isatty

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return self._out.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._out.flush()


def get(component: str) -> Any:
    """A logger whose lines say which part of the proxy they are from."""
    return structlog.get_logger(component=component)


def redact(_logger: object, _method: str, line: Line) -> Line:
    """Take secrets out of every field, at any depth."""
    for name, value in line.items():
        line[name] = _STARS if _secret_name(name) and value else _clean(value)
    return line


def redact_text(text: str) -> str:
    """The text without anything that looks like, or is known to be, a credential; cut where it is
    too long for a line."""
    text = without_secrets(text)
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"


def without_secrets(text: str) -> str:
    """The whole text with stars for what looks like, or is known to be, a credential."""
    for secret in _hidden:
        if secret in text:
            text = text.replace(secret, _STARS)
    if _SUSPICIOUS.search(text):
        for pattern in _SECRET_TEXTS:
            text = pattern.sub(r"\1" + _STARS, text)
    return text


@lru_cache(maxsize=1024)  # field names are few, and each line has a dozen
def _secret_name(name: object) -> bool:
    return isinstance(name, str) and _SECRET_NAMES.search(name) is not None


def _clean(value: Any, depth: int = 0) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return redact_text(value)
    if depth > DEPTH:
        return "…"
    if isinstance(value, dict):
        return {
            _shown(name): _STARS if _secret_name(name) and inner else _clean(inner, depth + 1)
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_clean(item, depth + 1) for item in value]
    if isinstance(value, (bytes, bytearray)):
        return f"<{len(value)} bytes>"
    return redact_text(_shown(value))


def _shown(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"


def _render_json(_logger: object, _method: str, line: Line) -> str:
    known = {name: value for name, value in line.items() if value is not None}
    ordered = {name: known.pop(name) for name in ("time", "level", "event") if name in known}
    try:
        return orjson.dumps({**ordered, **known}, default=_shown).decode()
    except TypeError:  # half a character, or a number beyond 64 bits
        return orjson.dumps(_plain({**ordered, **known})).decode()


def _plain(value: Any) -> Any:
    """What every reader of JSON can read."""
    if isinstance(value, dict):
        return {_plain(_shown(name)): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        value = _shown(value)
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def _text_renderer(out: TextIO) -> Callable[[object, str, Line], str]:
    console = structlog.dev.ConsoleRenderer(colors=out.isatty(), pad_event_to=0)

    def render(logger: object, method: str, line: Line) -> str:
        line["timestamp"] = line.pop("time", "")
        for name, value in list(line.items()):
            if value is None:
                del line[name]
            elif isinstance(value, str) and name != "exception":
                line[name] = value.translate(_UNPRINTED)  # a terminal obeys what is in it
        return console(cast("Any", logger), method, line)

    return render
