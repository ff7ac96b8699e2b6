"""An answer from the ledger has the id of the request that it answers; the rest stays."""

from __future__ import annotations

import json

import pytest

from proxy.core.jsonrpc import addressed
from proxy.core.model import Answer, Body, Request

JSON = (("Content-Type", "application/json"),)
STREAM = (("Content-Type", "text/event-stream; charset=utf-8"),)


def request(data: bytes) -> Request:
    return Request("POST", "https", "mcp.test", 443, "/mcp", JSON, Body.of(data))


def told(data: str, caller: bytes, headers: tuple[tuple[str, str], ...] = JSON) -> str:
    answer = addressed(Answer(200, "", headers, Body.of(data.encode())), request(caller))
    assert answer.body is not None
    assert answer.body.data is not None
    return answer.body.data.decode()


@pytest.mark.parametrize("number", [7, 0, "a-7", 12345678901234567890])
def test_the_id_is_the_callers_and_every_other_byte_stays(number: object) -> None:
    caller = json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call"}).encode()
    before = '{ "jsonrpc":"2.0", "id" : 3,\n "result": {"id": 3, "n": 1.50} }'
    assert told(before, caller) == before.replace('"id" : 3', f'"id" : {json.dumps(number)}')


@pytest.mark.parametrize(
    ("answer", "headers"),
    [
        ('{"id": 3, "error": {"code": -1}}', JSON),
        ('{"id": 3, "result": {}}', (("Content-Type", "application/vnd.x+json"),)),
        ('event: message\r\ndata: {"id": 3, "result": {}}\r\n\r\n', STREAM),
        ('data:{"method": "progress", "id": 9}\n\ndata:{"id": 3, "result": {}}\n\n', STREAM),
    ],
)
def test_errors_and_streams_are_addressed_too(
    answer: str, headers: tuple[tuple[str, str], ...]
) -> None:
    assert told(answer, b'{"id": 8}', headers) == answer.replace('"id": 3', '"id": 8')


@pytest.mark.parametrize(
    ("answer", "caller", "headers"),
    [
        ('{"id": 3, "result": {}}', b'{"id": 3}', JSON),
        ('{"id": null, "error": {}}', b'{"id": 8}', JSON),
        ('{"id": 3, "method": "ping"}', b'{"id": 8}', JSON),
        ('[{"id": 3, "result": {}}]', b'{"id": 8}', JSON),
        ('{"id": 3, "result"', b'{"id": 8}', JSON),
        ('{"id": 3, "result": {}}', b'{"method": "x"}', JSON),
        ('{"id": 3, "result": {}}', b"[]", JSON),
        ('{"id": 3, "result": {}}', b'{"id": 8}', (("Content-Type", "text/plain"),)),
        (': {"id": 3, "result": {}}\n\n', b'{"id": 8}', STREAM),
    ],
)
def test_what_is_no_answer_of_another_id_is_left_alone(
    answer: str, caller: bytes, headers: tuple[tuple[str, str], ...]
) -> None:
    assert told(answer, caller, headers) == answer


def test_bytes_that_are_no_text_are_left_alone() -> None:
    answer = Answer(200, "", JSON, Body.of(b"\xff\xfe"))
    assert addressed(answer, request(b'{"id": 8}')) is answer
    assert addressed(Answer(200, "", JSON, None), request(b'{"id": 8}')).body is None
