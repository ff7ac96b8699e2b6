"""Log lines hold one object each and no secret, wherever it was put."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy import log
from tests import reliability

CANARY = "canary-5f0c9e1d77"


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    earlier = root.handlers[:], root.level
    stream = io.StringIO()
    log.configure("info", "json", stream)
    log.hide([CANARY])
    yield stream
    structlog.reset_defaults()
    root.handlers[:], _ = earlier
    root.setLevel(earlier[1])


@pytest.mark.parametrize(
    "fields",
    [
        {"authorization": "Bearer abc"},
        {"headers": {"Cookie": "session=abcabcabc", "X-Other": "fine"}},
        {"detail": "sent Authorization: Bearer abcabcabc"},
        {"url": "http://user:abcabcabc@host/?api_key=abcabcabc"},
        {"text": "key sk_live_abcabcabc was used"},
        {"deep": [{"client_secret": "abcabcabc"}]},
        {"note": f"it was {CANARY}"},
    ],
)
def test_secrets_are_starred_wherever_they_are(out: io.StringIO, fields: dict[str, object]) -> None:
    log.get("test").info("something", **fields)
    assert "abcabc" not in out.getvalue()
    assert "Bearer abc" not in out.getvalue()
    assert CANARY not in out.getvalue()
    assert "***" in out.getvalue()


def test_a_line_stays_one_object_whatever_is_in_it(out: io.StringIO) -> None:
    log.get("test").info('two\nlines {"level": "x"}', value="\x1b[31m\r\n")
    (line,) = out.getvalue().splitlines()
    assert json.loads(line)["event"] == 'two\nlines {"level": "x"}'


def test_library_lines_pass_the_same_redaction(out: io.StringIO) -> None:
    logging.getLogger("aiohttp.server").error("bad header %s", f"Basic {CANARY}")
    line = json.loads(out.getvalue())
    assert line["level"] == "error"
    assert line["logger"] == "aiohttp.server"
    assert CANARY not in line["event"]


def test_lines_below_the_level_are_not_written(out: io.StringIO) -> None:
    log.get("test").debug("hidden")
    logging.getLogger("asyncio").info("hidden as well")
    assert out.getvalue() == ""


def test_a_terminal_gets_text() -> None:
    stream = io.StringIO()
    log.configure("info", "text", stream)
    log.get("test").warning("look here", password="x")
    structlog.reset_defaults()
    assert "look here" in stream.getvalue()
    assert "password=***" in stream.getvalue()


def test_a_full_disk_under_the_log_fails_nobody(out: io.StringIO) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    log.configure("info", "json", Full())
    structlog.get_logger().info("dropped")
    logging.getLogger("library").warning("dropped")
    log.configure("info", "json", out)
    structlog.get_logger().info("kept")
    assert json.loads(out.getvalue())["event"] == "kept"


# Whatever is logged is one line (bar S21)

TEXTS = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)  # surrogates too
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats()
    | TEXTS
    | st.binary(max_size=20)
    | st.builds(object),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(event=TEXTS, fields=st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), VALUES))
def test_any_input_is_one_json_object_on_one_line(
    out: io.StringIO, event: str, fields: dict[str, object]
) -> None:
    out.seek(0)
    out.truncate()
    log.configure("info", "json", out)  # anew, or lines that come often in one second are left out
    fields.pop("event", None)
    structlog.get_logger().info(event, **fields)
    logging.getLogger("library").warning("%s %r", event, fields)
    ours, theirs, rest = out.getvalue().split("\n")
    assert rest == ""
    for line in (ours, theirs):
        assert isinstance(json.loads(line), dict)
        line.encode()


@pytest.mark.parametrize("event", ["a\nb", "a\r\nb", "a\x1b[2Kb", "a\x85b", "a\u2028b"])
def test_a_readable_line_is_one_line_too(event: str) -> None:
    stream = io.StringIO()
    log.configure("info", "text", stream)
    structlog.get_logger().info(event, value=event)
    structlog.reset_defaults()
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError


def test_a_value_that_cannot_be_shown_does_not_stop_a_line(out: io.StringIO) -> None:
    around: list[object] = []
    around.append(around)
    structlog.get_logger().info("odd", value=Hostile(), around=around)
    assert json.loads(out.getvalue())["value"] == "<Hostile that cannot be shown>"


@pytest.mark.parametrize("whose", ["ours", "a library's"])
def test_the_same_line_over_and_over_is_counted(whose: str, out: io.StringIO) -> None:
    def say(word: str) -> None:
        if whose == "ours":
            structlog.get_logger().warning("full", where=word)
        else:
            logging.getLogger("library").warning("full: %s", word)

    for _ in range(1000):
        say("disk")
    say("other")
    lines = out.getvalue().splitlines()
    assert 11 <= len(lines) <= 21  # a second may end meanwhile
    assert sum("other" in line for line in lines) == 1
    reliability.figure("S21", f"1,000 times the same line, {whose}", part="HTTP", lines=len(lines))


def test_what_was_left_out_is_told_by_the_next_one_of_its_kind() -> None:
    now = [100.0]
    repeats = log.Repeats(lambda: now[0])
    admitted = [repeats.admit("line") for _ in range(50)]
    assert admitted == [0] * log.SAME_PER_SECOND + [None] * (50 - log.SAME_PER_SECOND)
    assert repeats.admit("another") == 0
    now[0] += 1.0
    assert repeats.admit("line") == 50 - log.SAME_PER_SECOND
    assert repeats.admit("line") == 0


def test_what_is_remembered_of_lines_is_bounded() -> None:
    repeats = log.Repeats(lambda: 100.0)
    for number in range(3 * log.LINES_REMEMBERED):
        assert repeats.admit(number) == 0
    assert len(repeats._seen) == log.LINES_REMEMBERED


def test_lines_that_differ_are_all_written(out: io.StringIO) -> None:
    for number in range(200):
        structlog.get_logger().info("answered", operation=f"r/s/o/v{number}")
    assert len(out.getvalue().splitlines()) == 200


def test_what_python_itself_would_write_is_a_line(
    out: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    showing = warnings.showwarning
    try:
        log.catch_strays()

        class Unlucky:
            def __del__(self) -> None:
                raise ValueError("of no\nuse")

        Unlucky()
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        warnings.showwarning("careful", UserWarning, "file.py", 1)
    finally:
        logging.captureWarnings(False)
        assert warnings.showwarning is showing
    lines = [json.loads(line)["event"] for line in out.getvalue().splitlines()]
    assert len(lines) == 3
    assert "ZeroDivisionError" in lines[1]
