"""Who makes a call, and that no two of them share a key."""

from __future__ import annotations

import itertools
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.identity import (
    IDENTITY_HEADERS,
    BadIdentity,
    Sources,
    encode_part,
    identify,
    strip_baggage,
)
from proxy.core.model import Identity

KEY_PART = re.compile(r"[!-$&-.0-~]*(?:%[0-9A-F]{2}[!-$&-.0-~]*)*")


# --- where a name comes from ----------------------------------------------------------------------


TOKEN = "once_" + "a" * 43


@pytest.mark.parametrize(
    "sources",
    [
        Sources(run="r1", step="s1"),
        Sources(baggage="run.id=r1,step.id=s1"),
        Sources(baggage=" other=1;p=2 , run.id = r1 ; ttl=3 ,step.id=s1"),
        Sources(path=("r1", "s1")),
        Sources(credential=("r1", "s1")),
        Sources(credential=("r1", "-"), step="s1"),
        Sources(credential=("r1", ""), path=("-", "s1")),
        Sources(credential=("r1", f"s1:{TOKEN}")),
        Sources(credential=("r1", f"s1%3A{TOKEN}")),
        Sources(path=("r1", f"s1:{TOKEN}")),
        Sources(run="r1", step="s1", token_field=TOKEN),
        Sources(run="r1", credential=("r1", "s1"), baggage="run.id=r1", path=("r1", "-")),
    ],
)
def test_every_place_can_name_run_and_step(sources: Sources) -> None:
    assert identify(sources) == Identity("r1", "s1", None)


def test_the_step_is_taken_from_header_then_baggage_then_path_then_password() -> None:
    places = {
        "step": "from-header",
        "baggage": "step.id=from-baggage",
        "path": ("-", "from-path"),
        "credential": ("-", "from-password"),
    }
    found = []
    while places:
        found.append(identify(Sources(**places)).step)  # type: ignore[arg-type]
        places.pop(next(iter(places)))
    assert found == ["from-header", "from-baggage", "from-path", "from-password"]


@pytest.mark.parametrize("nothing", ["", "-", None])
def test_an_empty_name_and_a_dash_name_nothing(nothing: str | None) -> None:
    found = identify(Sources(run=nothing, step=nothing, operation_id=nothing))
    assert found == Identity(None, None, None)


def test_the_derived_step_and_the_operation_id_are_passed_on() -> None:
    assert identify(Sources(run="r", step="~", operation_id="mail-2")) == Identity(
        "r", "~", "mail-2"
    )


@pytest.mark.parametrize(
    "sources",
    [
        Sources(run="r1", credential=("r2", "s")),
        Sources(run="r1", baggage="run.id=r2"),
        Sources(baggage="run.id=r1", path=("r2", "s")),
        Sources(path=("r1", "s"), credential=("r2", "s")),
        Sources(baggage="run.id=r1,run.id=r2"),
        Sources(baggage="run.id=r,step.id=a,step.id=b"),
    ],
)
def test_disagreement_is_refused_without_repeating_the_names(sources: Sources) -> None:
    with pytest.raises(BadIdentity) as caught:
        identify(sources)
    assert "different" in caught.value.detail
    assert not re.search(r"\br[12]\b", caught.value.detail)


def test_names_that_agree_once_decoded_agree() -> None:
    assert identify(Sources(run="a%2Fb", credential=("a/b", "-"))).run == "a/b"


def test_a_name_is_percent_decoded_exactly_once() -> None:
    found = identify(Sources(credential=("case%3A1", "caf%C3%A9%252F"), operation_id="100%25"))
    assert found == Identity("case:1", "café%2F", "100%")


def test_raw_utf8_bytes_are_read_as_what_they_are() -> None:
    raw = "grün".encode().decode("utf-8", "surrogateescape")
    assert identify(Sources(run=raw)).run == "grün"


@pytest.mark.parametrize("raw", ["%FF", "a%C3", b"\xe9".decode("utf-8", "surrogateescape")])
def test_bytes_that_are_not_utf8_are_refused(raw: str) -> None:
    for sources in (Sources(run=raw), Sources(step=raw), Sources(credential=("r", raw))):
        with pytest.raises(BadIdentity, match="UTF-8"):
            identify(sources)


@pytest.mark.parametrize("raw", ["a%0Ab", "%00", "a\tb", "%7F", "%C2%85"])
def test_control_characters_are_refused(raw: str) -> None:
    for sources in (Sources(run=raw), Sources(operation_id=raw), Sources(path=("r", raw))):
        with pytest.raises(BadIdentity, match="control"):
            identify(sources)


def test_a_colon_in_a_password_is_part_of_the_step_unless_a_token_follows() -> None:
    assert identify(Sources(credential=("r", "call:7"))).step == "call:7"
    assert Sources(credential=("r", "call:7")).token is None
    with_token = Sources(credential=("r", f"call%3A7:{TOKEN}"))
    assert identify(with_token).step == "call:7"
    assert with_token.token == TOKEN
    alone = Sources(credential=("r", TOKEN))
    assert (identify(alone).step, alone.token) == (None, TOKEN)
    assert Sources(path=("r", f"s:{TOKEN}")).token == TOKEN


def test_two_tokens_in_one_call_are_refused() -> None:
    both = Sources(credential=("r", f"s:{TOKEN}"), token_field="once_" + "b" * 43)
    with pytest.raises(BadIdentity, match="two run tokens"):
        _ = both.token
    same = Sources(credential=("r", f"s:{TOKEN}"), token_field=TOKEN)
    assert same.token == TOKEN


def test_sources_are_read_from_header_fields_in_any_spelling() -> None:
    headers = (
        ("X-RUN-ID", "r"),
        ("x-step-id", "s"),
        ("Baggage", "a=1"),
        ("baggage", "run.id=r"),
        ("X-Operation-Id", "o"),
    )
    assert identify(Sources.of(headers)) == Identity("r", "s", "o")


def test_a_repeated_field_must_repeat_its_value() -> None:
    assert Sources.of((("X-Step-Id", "s"), ("X-Step-Id", "s"))).step == "s"
    with pytest.raises(BadIdentity, match="x-step-id"):
        Sources.of((("X-Step-Id", "s"), ("x-step-id", "t")))


# --- what goes upstream ---------------------------------------------------------------------------


def test_identity_fields_are_listed_in_lower_case() -> None:
    assert {"x-run-id", "x-step-id", "x-operation-id", "x-run-token"} == IDENTITY_HEADERS


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("run.id=r,step.id=s", None),
        ("run.id = r ;p , , step.id=s", None),
        ("a=1", "a=1"),
        ("a=1;x=y, run.id=r , b = 2", "a=1;x=y, b = 2"),
        ("run.idx=1,my.run.id=2,step.id=s", "run.idx=1,my.run.id=2"),
    ],
)
def test_baggage_loses_only_the_members_that_name_run_and_step(
    value: str, left: str | None
) -> None:
    assert strip_baggage(value) == left


# --- key parts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("support-case-1842", "support-case-1842"),
        ("a/b", "a%2Fb"),
        ("a%2Fb", "a%252Fb"),
        ("a b", "a%20b"),
        ("a:b~c", "a:b~c"),
        ("é", "%C3%A9"),
        ("x" * 200, "x" * 200),
    ],
)
def test_a_part_is_encoded_only_where_it_must_be(text: str, part: str) -> None:
    assert encode_part(text) == part


def test_a_long_part_keeps_its_first_40_characters_and_whole_escapes() -> None:
    assert re.fullmatch(r"x{40}~[0-9a-f]{64}", encode_part("x" * 201))
    assert re.fullmatch(r"(%C3%A9){6}%C3~[0-9a-f]{64}", encode_part("é" * 150))


def test_a_short_name_that_looks_like_a_shortened_one_is_another_part() -> None:
    for long in ("x" * 201, "é" * 150):
        imitation = encode_part(long)
        assert encode_part(imitation) != imitation
        assert encode_part(encode_part(imitation)) != encode_part(imitation)


@given(st.text(), st.text())
def test_other_texts_give_other_parts_that_fit_a_header(a: str, b: str) -> None:
    assert (encode_part(a) == encode_part(b)) == (a == b)
    assert KEY_PART.fullmatch(encode_part(a))
    assert len(encode_part(a)) <= 200


def test_no_two_of_100_000_identities_share_a_key() -> None:
    """Names are built from what could be confused: separators, escapes, look-alikes, long texts."""
    rng = random.Random(1842)
    pieces = [
        "/",
        "%",
        "%2F",
        "%252F",
        ":",
        "~",
        "-",
        "v1",
        "a",
        "b",
        " ",
        "é",
        "e\u0301",
        "\u2028",
    ]
    names = {"".join(rng.choices(pieces, k=rng.randint(1, 6))) for _ in range(420)}
    for long in ("n" * 201, "é" * 80, "/" * 300):
        names |= {long, long + "x", long[:-1], encode_part(long), encode_part(encode_part(long))}
    pairs = list(itertools.islice(itertools.product(sorted(names), sorted(names)), 100_000))
    keys = {
        f"{encode_part(run)}/{encode_part(step)}/stripe.refunds.create/v1" for run, step in pairs
    }
    assert len(keys) == len(pairs) == 100_000


def test_a_password_that_a_client_calls_undefined_is_no_step() -> None:
    """axios before 1.0 sends it for ``http://RUN@...``: all its calls would be one step."""
    found = identify(Sources(credential=("case-7", "undefined")))
    assert (found.run, found.step) == ("case-7", None)
