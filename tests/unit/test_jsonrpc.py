"""An answer from the ledger has the id of the request that it answers; the rest stays."""

from __future__ import annotations

import gzip
import json

import pytest

from proxy.core.events import Cutter, events
from proxy.core.fingerprint import canonical
from proxy.core.jsonrpc import NOISE, addressed, asked_by, routed, shape
from proxy.core.model import Answer, Body, Request
from proxy.core.refusal import Refusal

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
        ('event: message\ndata: {"id": 3, "result": {}}\n\n', STREAM),
    ],
)
def test_errors_and_streams_are_addressed_too(
    answer: str, headers: tuple[tuple[str, str], ...]
) -> None:
    assert told(answer, b'{"id": 8}', headers) == answer.replace('"id": 3', '"id": 8')


@pytest.mark.parametrize(
    "before",
    [
        'id: 1\ndata:\n\ndata:{"method": "progress", "id": 9}\n\ndata:{"id": 3, "result": {}}\n\n',
        'event: message\r\nid: 2\r\ndata: {"id": 3, "result": {}}\r\n\r\n',
        'retry: 5\rdata: {"id": 3,\rdata:  "result": {}}',
    ],
)
def test_of_a_stream_the_answer_is_left(before: str) -> None:
    """What the server said on the way was for the first caller, and so were its events' ids."""
    [data] = [e.data for e in events(told(before, b'{"id": 8}', STREAM)) if e.data]
    assert json.loads(data) == {"id": 8, "result": {}}
    assert "progress" not in told(before, b'{"id": 8}', STREAM)


def test_a_compressed_answer_is_readable_afterwards() -> None:
    body = Body.of(gzip.compress(b'{"id": 3, "result": {}}'))
    headers = (*JSON, ("Content-Encoding", "gzip"))
    made = addressed(Answer(200, "", headers, body), request(b'{"id": 8}'))
    assert made.headers == JSON
    assert made.body == Body.of(b'{"id": 8, "result": {}}')


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


@pytest.mark.parametrize(
    ("body", "own"),
    [
        (b'{"id": 7}', 7),
        (b'{"id": "a"}', "a"),
        (b'{"id": {"x": 1}}', None),
        (b'{"id": "%b"}' % (b"x" * 101), None),
        (b"[]", None),
    ],
)
def test_a_refusal_is_an_error_with_the_id_of_the_request(body: bytes, own: object) -> None:
    for code, again in (("outcome-unknown", True), ("outcome-unresolved", False)):
        said = shape(Refusal(code, "why"), request(body))["body"]
        assert (said["jsonrpc"], said["id"]) == ("2.0", own)
        assert said["error"]["message"] == "{next}"
        assert said["error"]["data"]["retryable"] is again
    assert shape(Refusal("run-closed", ""), None)["body"]["id"] is None


def test_what_a_client_says_of_itself_and_of_one_exchange_does_not_count() -> None:
    def meaning(number: int, amount: int) -> object:
        meta = {
            "progressToken": number,
            "traceparent": f"00-{number:032x}-{number:016x}-01",
            "io.modelcontextprotocol/protocolVersion": f"2026-07-{number}",
            "io.modelcontextprotocol/clientInfo": {"name": "mcp", "version": f"2.{number}"},
            "tenant": "acme",
        }
        params = {"name": "refund", "arguments": {"amount": amount}, "_meta": meta}
        body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        return canonical(request(json.dumps(body).encode()), noise=NOISE).body.text

    assert meaning(1, 5) == meaning(2, 5)
    assert meaning(1, 5) != meaning(1, 6)


def test_a_stream_is_cut_into_whole_events_wherever_its_pieces_end() -> None:
    stream = b": hi\r\n\r\nid: 4\rdata: a\r\rdata: b\n\n" + b"data: %b\n\n" % (b"x" * 99)
    for size in (1, 2, 3, 7, 1000):
        cutter = Cutter(1000)
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        found = [whole for piece in pieces for whole in cutter.feed(piece)]
        assert b"".join(found) == stream
        assert cutter.rest() == b""
        data = [e.data for whole in found for e in events(whole.decode()) if e.data]
        assert data == ["a", "b", "x" * 99]
    cutter = Cutter(10)
    assert list(cutter.feed(b"data: 123456")) == [b"data: 123456"], "it is not gathered without end"


def test_fields_that_say_which_call_it_is_follow_another_body() -> None:
    before = (("Mcp-Method", "tools/call"), ("Mcp-Name", "pay"), ("A", "b"))
    look = Body.of(b'{"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "look"}}')
    assert dict(routed(before, look)) == {"Mcp-Method": "tools/call", "Mcp-Name": "look", "A": "b"}
    tasks = Body.of(b'{"jsonrpc": "2.0", "method": "tasks/list"}')
    assert dict(routed(before, tasks)) == {"Mcp-Method": "tasks/list", "A": "b"}
    assert routed(before[2:], look) == before[2:]


@pytest.mark.parametrize("streamed", [False, True])
def test_an_id_that_utf8_cannot_hold_stays_an_escape(streamed: bool) -> None:
    caller = b'{"jsonrpc": "2.0", "id": "\\ud83d", "method": "tools/call"}'
    answer = '{"id": 3, "result": {}}'
    if streamed:
        answer = f"event: message\ndata: {answer}\n\n"
    made = told(answer, caller, STREAM if streamed else JSON)
    assert made == answer.replace("3", '"\\ud83d"')
    again = asked_by(request(b'{"id": 1, "params": {}}'), request(caller))
    assert again is not None
    assert again.body.data == b'{"id": "\\ud83d", "params": {}}'
