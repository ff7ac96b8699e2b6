"""Log lines hold one object each and no secret, wherever it was put."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from proxy import log

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
