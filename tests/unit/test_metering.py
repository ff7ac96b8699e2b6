"""What a model call reserves and what its answer reports, in the shapes that the vendors send."""

from __future__ import annotations

import gzip
import json
import random
import time
import tracemalloc
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.intent import readable
from proxy.core.matching import RuleSet
from proxy.core.metering import MOST, UsageReader, reserved
from proxy.core.model import Answer, Body, Request
from proxy.core.rules import Endpoint
from proxy.core.views import RequestView
from proxy.rulefile.loader import load, load_text

RULES: RuleSet = load([Path(__file__).parents[2] / "rules"])
SSE = ("Content-Type", "text/event-stream; charset=utf-8")
JSON = ("Content-Type", "application/json")


def endpoint(title: str, rules: RuleSet = RULES) -> Endpoint:
    service, _, name = title.partition(".")
    found = rules.endpoint(service, name)
    assert found is not None, title
    assert found.meter is not None, title
    return found


def metered(meter: str) -> Endpoint:
    """An endpoint whose rule says so."""
    text = f"""
service: toy
hosts: [toy.test]
source: https://toy.test
confidence: documented
key: none
endpoints:
  chat: {{match: POST /chat, effect: read, meter: {meter}}}
"""
    return load_text(text).service.endpoints[0]


def used(
    end: Endpoint | str, *pieces: bytes, status: int = 200, whole: bool = True, **fields: str
) -> int | None:
    headers = tuple((name.replace("_", "-"), value) for name, value in fields.items())
    answered = end if isinstance(end, Endpoint) else endpoint(end)
    reader = UsageReader(answered, Answer(status, "", headers, None))
    for piece in pieces:
        reader.feed(piece)
    return reader.end(whole)


def events(*data: Any, line_end: str = "\n", named: bool = False) -> bytes:
    """Server-sent events of JSON values, and of words as they are."""
    lines = []
    for each in data:
        if named and isinstance(each, dict):
            lines.append(f"event: {each['type']}")
        lines += [f"data: {each if isinstance(each, str) else json.dumps(each)}", ""]
    return "".join(f"{line}{line_end}" for line in lines).encode()


def chunk(**members: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "gpt-4o", **members}


def delta(text: str) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    return chunk(choices=[choice], usage=None)


CHAT = events(
    delta('Say "data: {"usage": {"total_tokens": 1}}" {['),
    delta("你好"),
    chunk(
        choices=[],
        usage={
            "prompt_tokens": 19,
            "completion_tokens": 10,
            "total_tokens": 29,
            "completion_tokens_details": {"reasoning_tokens": 5, "total_tokens": 99},
        },
    ),
    "[DONE]",
)
MESSAGE_START = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "content": [],
        "usage": {
            "input_tokens": 25,
            "cache_creation_input_tokens": 10,
            "cache_read_input_tokens": 400,
            "output_tokens": 1,
        },
    },
}
BEGIN = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
BLOCK = {
    "type": "content_block_delta",
    "index": 0,
    "delta": {"type": "text_delta", "text": "message_stop"},
}
MESSAGE = events(
    MESSAGE_START,
    {"type": "ping"},
    BEGIN,
    BLOCK,
    {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": 15}},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"input_tokens": 60, "cache_read_input_tokens": None, "output_tokens": 40},
    },
    {"type": "message_stop"},
    named=True,
)
RESPONSES = events(
    {"type": "response.created", "response": {"id": "r", "usage": None, "output": []}},
    {"type": "response.output_text.delta", "delta": "usage"},
    {
        "type": "response.completed",
        "response": {
            "output": [{"content": [{"text": "x" * 3000}]}],
            "usage": {"input_tokens": 36, "output_tokens": 87, "total_tokens": 123},
        },
    },
    named=True,
)
GEMINI = [
    {
        "candidates": [{"content": {"parts": [{"text": "a"}]}}],
        "usageMetadata": {"totalTokenCount": 7},
    },
    {
        "candidates": [{"content": {"parts": [{"text": "b"}]}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 4, "thoughtsTokenCount": 9, "totalTokenCount": 33},
    },
]
OLLAMA = b"".join(
    json.dumps(line).encode() + b"\n"
    for line in (
        {"model": "m", "message": {"content": "done: true"}, "done": False},
        {
            "model": "m",
            "message": {"content": ""},
            "done": True,
            "prompt_eval_count": 26,
            "eval_count": 282,
        },
    )
)
STREAMS = {
    "openai.chat": ("models.openai.chat", CHAT, 29),
    "anthropic.messages": ("models.anthropic.messages", MESSAGE, 60 + 10 + 400 + 40),
    "openai.responses": ("models.openai.responses", RESPONSES, 123),
    "gemini.sse": ("models.gemini.stream", events(*GEMINI, line_end="\r\n"), 33),
    "gemini.list": ("models.gemini.stream", json.dumps(GEMINI, indent=1).encode(), 33),
    "groq": (
        "models.openai_v1.chat",
        events(delta("a"), chunk(choices=[], x_groq={"id": "q", "usage": {"total_tokens": 61}})),
        61,
    ),
    "ollama": ("ollama.chat", OLLAMA, 308),
    "plain": (
        "models.openai.embeddings",
        json.dumps({"data": [{"embedding": [0.25] * 900}], "usage": {"total_tokens": 5}}).encode(),
        5,
    ),
}
CODINGS = {
    "identity": lambda data: data,
    "gzip": gzip.compress,
    "x-gzip": lambda data: gzip.compress(data[:100]) + gzip.compress(data[100:]),
    "deflate": zlib.compress,
    "deflate ": lambda data: zlib.compress(data)[2:-4],  # the bare stream, as some servers send it
}


# Streams of the vendors


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_every_stream_is_read_however_it_is_cut_and_coded(
    name: str, coding: str, size: int
) -> None:
    title, data, tokens = STREAMS[name]
    coded = CODINGS[coding](data)
    pieces = [coded[at : at + size] for at in range(0, len(coded), size)]
    assert used(title, *pieces, Content_Encoding=coding.strip()) == tokens


@given(
    st.sampled_from(sorted(STREAMS)),
    st.sampled_from(sorted(CODINGS)),
    st.lists(st.integers(0, 5000), max_size=12),
)
@settings(deadline=None)
def test_where_the_cuts_are_makes_no_difference(name: str, coding: str, cuts: list[int]) -> None:
    title, data, tokens = STREAMS[name]
    coded = CODINGS[coding](data)
    at = sorted({cut for cut in cuts if cut < len(coded)} | {0, len(coded)})
    pieces = [coded[a:b] for a, b in pairwise(at)]
    assert used(title, *pieces, Content_Encoding=coding.strip()) == tokens


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 3, 10**6])
def test_lines_of_events_end_in_any_of_three_ways(line_end: str, size: int) -> None:
    data = b"\xef\xbb\xbf: hello\n\n" + events(
        delta("a"), chunk(choices=[], usage={"total_tokens": 8}), "[DONE]", line_end=line_end
    )
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert used("models.openai.chat", *pieces) == 8


def test_the_data_of_an_event_may_have_several_lines() -> None:
    data = b'data: {"usage":\ndata: {"total_tokens":\nid: 4\ndata:77}}\n\ndata: [DONE]\n\n'
    for text in (data, data.replace(b"\n", b"\r\n"), data.replace(b"\n", b"\r")):
        assert used("models.openai.chat", text) == 77
        assert used("models.openai.chat", *(bytes([byte]) for byte in text)) == 77


def test_an_event_that_is_no_json_spoils_none_but_itself() -> None:
    last = chunk(choices=[], usage={"total_tokens": 8})
    for broken in ('{"usage": {"total_tokens": 5, "a": "', "{[", '{"usage": [', "ping", "[DONE]"):
        assert used("models.openai.chat", events(delta("a"), broken, last)) == 8


# Where it cannot be known


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("coding", CODINGS)
def test_of_a_body_that_broke_off_anywhere_nothing_is_known(name: str, coding: str) -> None:
    title, data, _ = STREAMS[name]
    coded = CODINGS[coding](data)
    for end in range(0, len(coded), 1 + len(coded) // 40):
        assert used(title, coded[:end], whole=False, Content_Encoding=coding.strip()) is None


@pytest.mark.parametrize("name", ["anthropic.messages", "gemini.sse", "gemini.list", "ollama"])
@pytest.mark.parametrize("coding", CODINGS)
def test_a_cut_that_looks_like_an_end_is_told_by_what_is_missing(name: str, coding: str) -> None:
    """HTTP/1.0 and a server that closes politely in the middle: the body seems whole."""
    title, data, tokens = STREAMS[name]
    coded = CODINGS[coding](data)
    for end in range(0, len(coded), 1 + len(coded) // 60):
        assert used(title, coded[:end], Content_Encoding=coding.strip()) in (None, tokens)
    assert used(title, coded[: len(coded) // 2], Content_Encoding=coding.strip()) is None


def test_an_error_in_the_middle_of_a_stream_leaves_the_count_open() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    assert used("models.anthropic.messages", events(MESSAGE_START, BLOCK, error)) is None
    half = events(GEMINI[0], {"error": {"code": 500}})
    assert used("models.gemini.stream", half) is None


def test_a_chat_stream_that_reports_nothing_keeps_its_reservation() -> None:
    assert used("models.openai.chat", events(delta("Hi"), "[DONE]")) is None


def test_a_coding_that_is_not_read_here_is_not_guessed_at() -> None:
    for coding in ("br", "zstd", "gzip, gzip", "compress", "aws-chunked"):
        assert used("models.openai.chat", CHAT, Content_Encoding=coding) is None


def test_what_is_not_of_its_coding_or_kind_is_not_known() -> None:
    for coding in ("gzip", "deflate"):
        assert used("models.openai.chat", CHAT, Content_Encoding=coding) is None
    for data in (
        b"",
        b"<html>usage</html>",
        b"\x00\x00\x00\x91\x00",
        b'{"usage": []}',
        b"[]",
        b"7",
    ):
        assert used("models.openai.chat", data) is None
    assert used("models.openai.chat", b'{"usage": {"total_tokens": 3}') is None


def test_a_compressed_answer_counts_only_when_its_check_sum_has_come_and_holds() -> None:
    packed = gzip.compress(b'{"usage": {"total_tokens": 29}}', 0)  # stored: the text is in it
    assert used("models.openai.chat", packed, Content_Encoding="gzip") == 29
    assert used("models.openai.chat", packed[:-1], Content_Encoding="gzip") is None
    altered = packed.replace(b": 29", b": 21")
    assert altered != packed
    assert used("models.openai.chat", altered, Content_Encoding="gzip") is None


@pytest.mark.parametrize("count", ["null", "-1", '"many"', "true", "1e", "{}", "9" * 200, "-0.5"])
def test_a_count_that_is_none_is_not_taken(count: str) -> None:
    assert used("models.openai.chat", f'{{"usage": {{"total_tokens": {count}}}}}'.encode()) is None


@pytest.mark.parametrize(
    ("count", "tokens"),
    [("0", 0), ("1e3", 1000), ("2.5", 3), ("1e999999999", MOST), ('"12"', 12)],
)
def test_a_count_is_a_whole_number_and_never_absurd(count: str, tokens: int) -> None:
    for text in (
        f'{{"usage": {{"total_tokens": {count}}}}}',
        f'[{{"usage": {{"total_tokens": {count}}}}}]',
    ):
        assert used("models.openai.chat", text.encode()) == tokens
        assert used("models.openai.chat", f"data: {text}\n\n".encode()) in (tokens, None)


# What the status says


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 429, 503, 529])
def test_a_call_that_was_turned_away_used_nothing(status: int) -> None:
    for title in ("models.openai.chat", "models.anthropic.messages", "models.gemini.stream"):
        reader = UsageReader(endpoint(title), Answer(status, "", (JSON,), None))
        reader.feed(b'{"error": {"usage": {"total_tokens": 4}}}')
        assert reader.refused
        assert reader.end(whole=True) == 0
        assert reader.end(whole=False) == 0


@pytest.mark.parametrize("status", [302, 408, 499, 500, 502, 504])
def test_of_a_failure_that_may_have_come_late_nothing_is_known(status: int) -> None:
    answer = b'{"type": "message", "usage": {"total_tokens": 4, "input_tokens": 4}}'
    assert used("models.openai.chat", answer, status=status) is None
    assert used("models.anthropic.messages", answer, status=status) is None


# Reports in the header


def test_counts_may_stand_in_the_header() -> None:
    fields = {"x_amzn_bedrock_input_token_count": "12", "X_Amzn_Bedrock_Output_Token_Count": "30"}
    assert used("models.bedrock.invoke", b"\x00binary", **fields) == 42
    assert used("models.bedrock.invoke", b"{}") is None
    assert used("models.bedrock.invoke", b"{}", whole=False, **fields) is None


def test_half_of_a_count_is_none() -> None:
    end = metered("{usage: [header.X-Input, output]}")
    assert used(end, b'{"output": 5}', X_Input="7") == 12
    assert used(end, b'{"output": 5}', X_Input="7", Content_Encoding="br") is None


# Hostile answers


@given(st.binary(max_size=400), st.sampled_from(["", "gzip", "deflate", "identity", "br"]))
@settings(deadline=None, max_examples=150)
def test_no_answer_makes_it_raise(noise: bytes, coding: str) -> None:
    for title, data, _ in STREAMS.values():
        for body in (noise, data[:50] + noise, noise + data):
            tokens = used(title, body, Content_Encoding=coding)
            assert tokens is None or 0 <= tokens <= MOST


def test_flipped_bits_never_make_it_raise() -> None:
    dice = random.Random(3)
    for title, data, _ in STREAMS.values():
        for coding in ("gzip", "deflate"):
            coded = bytearray(CODINGS[coding](data))
            for _ in range(100):
                broken = bytearray(coded)
                broken[dice.randrange(len(broken))] ^= 1 << dice.randrange(8)
                used(title, bytes(broken), Content_Encoding=coding)


def test_a_bomb_is_given_up_and_a_line_without_end_is_not_kept() -> None:
    bomb = zlib.compress(b'{"a": "' + b"A" * 30_000_000 + b'", "usage": {"total_tokens": 1}}', 9)
    started = time.process_time()
    tracemalloc.start()
    assert used("models.openai.chat", bomb, Content_Encoding="deflate") is None
    endless = UsageReader(endpoint("models.openai.chat"), Answer(200, "", (SSE,), None))
    line = b'data: {"choices": "' + b"x" * 60_000
    for _ in range(200):
        endless.feed(line)
        line = b"x" * 60_000
    assert endless.end(whole=True) is None
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1_000_000
    assert time.process_time() - started < 5  # it takes a fraction of a second


def test_a_large_honest_answer_is_read_to_its_end() -> None:
    dice = random.Random(1)
    vectors = [[round(dice.gauss(0, 1), 6) for _ in range(1500)] for _ in range(100)]
    rows = ", ".join(f'{{"embedding": {json.dumps(vector)}}}' for vector in vectors)
    data = f'{{"data": [{rows}], "usage": {{"total_tokens": 800}}}}'.encode()
    assert len(data) > 1_000_000
    assert used("models.openai.embeddings", data) == 800
    assert used("models.openai.embeddings", gzip.compress(data), Content_Encoding="gzip") == 800


# Reservations


def call(body: Any, kind: str = "application/json", **fields: str) -> RequestView:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = (("Content-Type", kind), *fields.items())
    return RequestView(Request("POST", "https", "x", 443, "/", headers, Body.of(data)))


@pytest.mark.parametrize(
    ("title", "body", "tokens"),
    [
        ("models.openai.chat", {"max_tokens": 100}, 100),
        ("models.openai.chat", {"max_tokens": 100, "max_completion_tokens": 900}, 900),
        ("models.openai.chat", {"max_tokens": 900, "max_completion_tokens": 1}, 900),
        ("models.openai.chat", {"max_tokens": 100, "n": 4}, 400),
        ("models.openai.chat", {"max_tokens": 100, "n": 0}, 100),
        ("models.openai.chat", {"max_tokens": 100, "n": None}, 100),
        ("models.openai.chat", {"n": 2}, 8192),
        ("models.openai.chat", {"max_tokens": None}, 4096),
        ("models.openai.chat", {"max_tokens": -5}, 4096),
        ("models.openai.chat", {"max_tokens": "300"}, 300),
        ("models.openai.chat", {"max_tokens": [1]}, 4096),
        ("models.openai.chat", {"max_tokens": True}, 4096),
        ("models.openai.chat", {"max_tokens": 0}, 0),
        ("models.openai.chat", {"max_tokens": 10**40}, MOST),
        ("models.openai.chat", {"max_tokens": 10**11, "n": 10**11}, MOST),
        ("models.openai.chat", [], 4096),
        ("models.openai.chat", b'{"max_tokens": 1, "max_tokens": 2}', 4096),
        ("models.openai.chat", b"{", 4096),
        ("models.openai.chat", b'{"max_tokens": 1e999999999}', MOST),
        ("models.openai.responses", {"max_output_tokens": 77}, 77),
        ("models.openai.completions", {"n": 2, "best_of": 5}, 80),
        ("models.openai.completions", {"max_tokens": 10, "n": 2}, 20),
        ("models.anthropic.messages", {"max_tokens": 64000}, 64000),
        (
            "models.gemini.generate",
            {"generationConfig": {"maxOutputTokens": 5, "candidateCount": 3}},
            15,
        ),
        ("models.gemini.stream", {"generation_config": {"max_output_tokens": 9}}, 9),
        ("models.bedrock.converse", {"inferenceConfig": {"maxTokens": 11}}, 11),
        ("ollama.generate", {"options": {"num_predict": 64}}, 64),
        ("ollama.generate", {"options": {"num_predict": -1}}, 4096),
    ],
)
def test_what_a_call_may_write_is_reserved(title: str, body: Any, tokens: int) -> None:
    meter = endpoint(title).meter
    assert meter is not None
    assert reserved(meter, call(body)) == tokens


def test_a_compressed_request_is_looked_into_and_a_strange_one_reserves_the_default() -> None:
    meter = endpoint("models.openai.chat").meter
    assert meter is not None
    data = b'{"max_tokens": 70}'
    packed = {"Content-Encoding": "gzip"}
    assert reserved(meter, call(gzip.compress(data), **packed)) == 70
    assert reserved(meter, call(data, **{"Content-Encoding": "br"})) == 4096


def test_a_limit_may_stand_in_the_query_or_the_header() -> None:
    meter = metered("{max_tokens: [query.limit, header.X-Limit], default: 9}").meter
    assert meter is not None
    request = Request("POST", "https", "toy.test", 443, "/chat?limit=40", (("X-Limit", "50"),))
    assert reserved(meter, RequestView(request)) == 50
    assert reserved(meter, RequestView(request.with_(headers=(), target="/chat"))) == 9


# Rules of one's own


def test_a_call_without_usage_is_never_settled() -> None:
    assert used(metered("{max_tokens: body.n}"), b'{"usage": 5}') is None


def test_an_end_may_be_told_by_any_condition() -> None:
    end = metered("{usage: count, complete: [{count: {over: 5}}, {last: true}]}")
    assert used(end, b'{"count": 5}') is None
    assert used(end, b'{"count": 6}') == 6
    assert used(end, b'{"count": "x"}{"last": true}{"count": 2}') == 2
    assert (
        used(metered('{usage: count, complete: {header.X-Done: "1"}}'), b'{"count": 6}', x_done="1")
        == 6
    )


def test_an_endless_sum_stays_a_number_of_64_bits() -> None:
    end = metered("{usage: [a, b]}")
    assert used(end, b'{"a": 1e400, "b": 99999999999999999999}') == MOST


# Asking for what can be read


def test_what_an_answer_is_asked_for_in_can_be_read() -> None:
    """``readable`` narrows what a caller accepts; every coding that it leaves is known here."""
    asked = (("Accept-Encoding", "gzip, deflate, br, zstd, identity"),)
    narrowed = readable(Request("POST", "https", "x", 443, "/", asked)).header("Accept-Encoding")
    assert narrowed == "gzip, deflate, identity"
    for coding in narrowed.split(", "):
        assert used("models.openai.chat", CODINGS[coding](CHAT), Content_Encoding=coding) == 29
