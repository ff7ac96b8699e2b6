from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from proxy.core.model import Request
from proxy.net import repeats
from proxy.net.exchange import Arrival
from proxy.net.repeats import Repeats


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
    known.keep(spelled, kept := arrival())
    assert known.find(known.spelling(incoming(b"x"))) is kept  # type: ignore[arg-type]
    assert known.find(known.spelling(incoming(b"y"))) is None  # type: ignore[arg-type]
    assert known.find(known.spelling(incoming(b"x", "other"))) is None  # type: ignore[arg-type]


def test_what_is_not_here_yet_too_long_or_switches_is_not_spelled() -> None:
    known = Repeats()
    assert known.spelling(incoming(None)) is None
    assert known.spelling(incoming(b"x" * (repeats.BODY_LIMIT + 1))) is None
    assert known.spelling(incoming(b"", upgrade=True)) is None


def test_the_oldest_are_given_up_first_by_number_and_by_size() -> None:
    known = Repeats()
    for number in range(repeats.REMEMBERED + 1):
        known.keep(known.spelling(incoming(b"%d" % number)), arrival())  # type: ignore[arg-type]
    assert known.find(known.spelling(incoming(b"0"))) is None  # type: ignore[arg-type]
    assert known.find(known.spelling(incoming(b"1"))) is not None  # type: ignore[arg-type]
    long = repeats.REMEMBERED_BYTES // repeats.BODY_LIMIT
    for number in range(long + 1):
        data = b"%d" % number + b"x" * (repeats.BODY_LIMIT - 4)
        known.keep(known.spelling(incoming(data)), arrival())  # type: ignore[arg-type]
    assert known.find(known.spelling(incoming(b"2"))) is None  # type: ignore[arg-type]
    assert known.find(known.spelling(incoming(data))) is not None  # type: ignore[arg-type]
