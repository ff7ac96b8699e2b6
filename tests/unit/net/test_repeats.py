from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import HttpVersion11

from proxy.core.model import Body, Request
from proxy.net import repeats
from proxy.net.exchange import Arrival, Reply
from proxy.net.outgoing import packed
from proxy.net.repeats import Known, Repeats


def incoming(data: bytes | None, site: object = "site", upgrade: bool = False) -> Any:
    message = SimpleNamespace(
        version=(1, 1), method="POST", path="/", raw_headers=((b"A", b"b"),), upgrade=upgrade
    )
    return SimpleNamespace(data=data, message=message, connection=SimpleNamespace(site=site))


def arrival() -> Arrival:
    return Arrival(Request("POST", "http", "a", 80, "/", ()))


def test_only_the_same_site_and_the_same_bytes_are_found() -> None:
    known = Repeats()
    spelled = known.spelling(incoming(b"x"))
    assert spelled is not None
    known.keep(spelled, kept := arrival(), b"A: b\r\n\r\nx")
    found = known.find(known.spelling(incoming(b"x")))  # type: ignore[arg-type]
    assert found is not None
    assert found.arrival is kept
    assert known.find_piece("site", b"A: b\r\n\r\nx") is found  # type: ignore[arg-type]
    assert known.find_piece("other", b"A: b\r\n\r\nx") is None  # type: ignore[arg-type]
    assert known.find_piece("site", b"A: b\r\n\r\ny") is None  # type: ignore[arg-type]
    assert known.find(known.spelling(incoming(b"y"))) is None  # type: ignore[arg-type]
    assert known.find(known.spelling(incoming(b"x", "other"))) is None  # type: ignore[arg-type]


def test_what_is_not_here_yet_too_long_or_switches_is_not_spelled() -> None:
    known = Repeats()
    assert known.spelling(incoming(None)) is None
    assert known.spelling(incoming(b"x" * (repeats.BODY_LIMIT + 1))) is None
    assert known.spelling(incoming(b"", upgrade=True)) is None


def test_the_oldest_are_given_up_first_by_number_and_by_size() -> None:
    known = Repeats()

    def keep(number: int, size: int) -> Any:
        spelled = known.spelling(incoming(b"%d" % number + b"x" * size))
        assert spelled is not None
        known.keep(spelled, arrival(), b"piece" + spelled[-1])
        return spelled

    first, second = keep(0, 0), keep(1, 0)
    for number in range(2, repeats.REMEMBERED + 1):
        keep(number, 0)
    assert known.find(first) is None
    assert known.find_piece("site", b"piece0") is None  # type: ignore[arg-type]
    assert known.find(second) is not None
    assert known.find_piece("site", b"piece1") is not None  # type: ignore[arg-type]
    size = repeats.BODY_LIMIT - 10
    last = [keep(number, size) for number in range(repeats.REMEMBERED_BYTES // size // 2 + 1)]
    assert known.find(second) is None
    assert known.find(last[0]) is None, "a piece counts as much as its body"
    assert known.find(last[1]) is not None
    assert known._bytes == sum(len(s[-1]) + len(k.piece or b"") for s, k in known._known.items())


def test_pieces_alone_do_not_outgrow_the_limit() -> None:
    known = Repeats()
    for number in range(repeats.REMEMBERED):
        spelled = known.spelling(incoming(b"%d" % number))
        assert spelled is not None
        known.keep(spelled, arrival(), None)
        found = known.find(spelled)
        assert found is not None
        known.keep_piece(spelled, found, b"%d" % number + b"x" * (repeats.BODY_LIMIT - 4))
    assert known._bytes <= repeats.REMEMBERED_BYTES
    assert len(known._pieces) == len(known._known) < repeats.REMEMBERED


def test_of_two_pieces_of_one_spelling_the_newer_is_kept() -> None:
    known = Repeats()
    spelled = known.spelling(incoming(b"x"))
    assert spelled is not None
    known.keep(spelled, arrival(), b"A: b")
    known.keep(spelled, arrival(), b"A:  b")
    assert list(known._pieces) == [("site", b"A:  b")]
    known.keep(spelled, arrival(), b"y" * (repeats.BODY_LIMIT + 1))
    assert list(known._pieces) == [("site", b"A:  b")], "too long to be kept"


HEADERS = (("Onceproxy-Attempts", "1"),)


def test_an_answer_is_packed_once_as_long_as_it_is_the_same() -> None:
    known = Known(arrival(), "POST", HttpVersion11)
    first = known.written(Reply(200, "OK", HEADERS, Body.of(b"abc")))
    head = b"HTTP/1.1 200 OK\r\nOnceproxy-Attempts: 1\r\nContent-Length: 3\r\n\r\n"
    assert first == head + b"abc"
    known.head = b"as kept "
    assert known.written(Reply(200, "OK", HEADERS, Body.of(b"xyz"))) == b"as kept xyz"


@pytest.mark.parametrize(
    "other",
    [
        Reply(201, "OK", HEADERS, Body.of(b"abc")),
        Reply(200, "Fine", HEADERS, Body.of(b"abc")),
        Reply(200, "OK", HEADERS, Body.of(b"abcd")),
        Reply(200, "OK", (("Onceproxy-Attempts", "2"),), Body.of(b"abc")),
    ],
    ids=["status", "reason", "size", "headers"],
)
def test_another_answer_is_packed_anew(other: Reply) -> None:
    known = Known(arrival(), "POST", HttpVersion11)
    known.written(Reply(200, "OK", HEADERS, Body.of(b"abc")))
    assert known.written(other) == b"".join(packed("POST", HttpVersion11, other))


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 304)])
def test_an_answer_without_its_body_stays_without(method: str, status: int) -> None:
    known = Known(arrival(), method, HttpVersion11)
    for _ in range(2):
        assert known.written(Reply(status, "", HEADERS, Body.of(b"abc"))).endswith(b"\r\n\r\n")
