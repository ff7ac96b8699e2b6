"""openai-python: a new boundary for each upload, model calls that may repeat, its retries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from openai import APIStatusError, OpenAI

from tests.clients.conftest import Enter
from tests.clients.upstream import Arrival
from tests.clients.world import WAYS, Seen, Way, World, seen

LINES = b'{"custom_id": "1"}\n'


@contextmanager
def openai(base: str) -> Iterator[OpenAI]:
    with OpenAI(api_key="sk-c4n4ry5ecret", base_url=f"{base}/v1", timeout=30) as client:
        yield client


def upload(base: str, content: bytes = LINES) -> Seen:
    with openai(base) as client:
        raw = client.files.with_raw_response.create(
            file=("calls.jsonl", content), purpose="batch", extra_headers={"X-Test": "1"}
        )
        return seen(raw.status_code, raw.headers, raw.content)


def boundary(arrival: Arrival) -> str:
    found = re.search(r"boundary=(\S+)", arrival.values("Content-Type")[0])
    assert found is not None
    return found[1]


@pytest.mark.parametrize("way", WAYS)
def test_an_upload_is_the_same_operation_whatever_its_boundary(
    w: World, enter: Enter, way: str
) -> None:
    run, before = f"upload-{way}", len(w.upstream.came("/v1/files"))
    base = enter(w.way(way, run, "upload", "openai"))
    first, second = upload(base), upload(base)
    assert [first.outcome, second.outcome] == ["sent", "replayed"]
    assert second.body == first.body
    assert second.headers["idempotent-replayed"] == "true"
    arrivals = w.upstream.came("/v1/files")[before:]
    assert len(arrivals) == 1
    assert arrivals[0].values("Authorization") == ["Bearer sk-c4n4ry5ecret"]
    [operation] = w.operations(run)
    assert (operation["state"], operation["attempts"]) == ("succeeded", 1)

    other = upload(base, b'{"custom_id": "2"}\n')  # no rule: another content is another operation
    assert other.outcome == "sent"
    arrivals = w.upstream.came("/v1/files")[before:]
    assert len({boundary(arrival) for arrival in arrivals}) == 2


@pytest.mark.parametrize("way", WAYS)
def test_model_calls_are_sent_each_time_and_never_recorded(
    w: World, enter: Enter, way: str
) -> None:
    run, before = f"chat-{way}", len(w.upstream.came("/v1/chat/completions"))
    ask = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    with openai(enter(w.way(way, run, "think", "openai"))) as client:
        answers = [client.chat.completions.create(**ask) for _ in range(2)]  # type: ignore[call-overload]
        stream = client.chat.completions.create(**ask, stream=True)  # type: ignore[call-overload]
        said = [chunk.choices[0].delta.content for chunk in stream]
    assert answers[0].id != answers[1].id
    assert len(said) == 1
    assert len(w.upstream.came("/v1/chat/completions")) == before + 3
    assert w.operations(run) == []


def test_a_lost_upload_is_not_sent_again_by_the_sdks_own_retries(w: World, enter: Enter) -> None:
    """Neither key nor query: a person decides. The SDK would send it up to three times."""
    way: Way = w.way("tunnel", "upload-lost", "upload", "openai")
    before, refused = len(w.upstream.came("/v1/files")), w.refusals()
    w.upstream.lose("/v1/files")
    with pytest.raises(APIStatusError) as caught:
        upload(enter(way))
    assert caught.value.status_code == 424
    assert "do not repeat" in str(caught.value)
    assert len(w.upstream.came("/v1/files")) == before + 1
    assert w.refusals() == refused + 1
    [operation] = w.operations("upload-lost")
    assert operation["state"] == "unknown"
