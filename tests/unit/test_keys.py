"""Upstream keys. Expected values come from openssl, sha256sum, basenc and perl's Digest::SHA."""

from __future__ import annotations

import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.keys import (
    NAMESPACE,
    RENDERINGS,
    UnfitKey,
    characters,
    is_minted,
    keyed_digest,
    render,
    verify,
)

KEY = "support-case-1842/issue-refund/stripe.refunds.create/v1"
SECRET = b"s3cret"
SHA256 = "e41bc559efe728b152dbbabff6f1bf1855aff8dacfe53f3fc4de08b31ffd305a"
HMAC = "820c43eb4d4c5e6c39dcb7fc07236bc60d2b4dd2a7eb6d4876ae2e8aae0ef046"
BASE32HEX = "sgdsamffsskb2kmrnavvdsdv31aqvu6qpvijufu4ro4b67vt61d0"

key_texts = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=1)


@pytest.mark.parametrize(
    ("rendering", "limits", "expected"),
    [
        ("raw", {}, KEY),
        ("raw", {"prefix": "op_"}, f"op_{KEY}"),
        ("raw", {"max_length": len(KEY)}, KEY),
        ("raw", {"max_length": len(KEY) - 1}, SHA256[: len(KEY) - 1]),
        ("raw", {"max_length": 45}, SHA256[:45]),
        ("raw", {"min_length": 60}, SHA256),
        ("raw", {"alphabet": "A-Za-z0-9_:-"}, SHA256),  # Telnyx: no slash, no dot
        ("raw", {"alphabet": "A-Za-z0-9./-"}, KEY),
        ("digest", {}, SHA256),
        ("digest", {"max_length": 40}, SHA256[:40]),
        ("digest", {"max_length": 36, "prefix": "op_"}, f"op_{SHA256[:33]}"),
        ("hex", {"max_length": 40}, SHA256[:40]),
        ("hex", {"max_length": 24}, SHA256[:24]),
        ("base32hex", {}, BASE32HEX),
        ("base32hex", {"min_length": 5, "max_length": 40}, BASE32HEX[:40]),
        ("uuid5", {}, "e00ca8f3-9531-5638-937d-c87f79b33aa4"),
        ("uuid4", {}, "e41bc559-efe7-48b1-92db-babff6f1bf18"),
        ("raw", {"secret": SECRET}, HMAC),
        ("digest", {"secret": SECRET, "max_length": 40}, HMAC[:40]),
        ("uuid5", {"secret": SECRET}, "581ac3ef-b37e-5e86-9e8b-c83fa097783e"),
        ("uuid4", {"secret": SECRET}, "820c43eb-4d4c-4e6c-b9dc-b7fc07236bc6"),
    ],
)
def test_a_key_is_rendered_as_the_rule_says(
    rendering: str, limits: dict[str, object], expected: str
) -> None:
    assert render(KEY, rendering, **limits) == expected  # type: ignore[arg-type]


def test_the_name_space_of_uuid5_keys_never_changes() -> None:
    assert str(NAMESPACE) == "5ef270b0-2731-59d5-a50b-d758aa7814e0"
    assert render(KEY, "uuid5") == str(uuid.uuid5(NAMESPACE, KEY))


@given(key_texts)
def test_uuids_are_valid_of_their_version(text: str) -> None:
    for rendering, version in (("uuid4", 4), ("uuid5", 5)):
        key = render(text, rendering)
        parsed = uuid.UUID(key)
        assert (parsed.version, parsed.variant) == (version, uuid.RFC_4122)
        assert key == str(parsed)


@given(key_texts, st.sampled_from(RENDERINGS), st.none() | st.binary(min_size=1))
def test_a_key_is_a_pure_function_of_its_text(
    text: str, rendering: str, secret: bytes | None
) -> None:
    assert render(text, rendering, secret=secret) == render(text, rendering, secret=secret)
    assert render(text + "x", rendering, secret=secret) != render(text, rendering, secret=secret)


@given(st.text(), st.sampled_from(RENDERINGS), st.integers(36, 300))
def test_every_key_fits_a_header_and_its_length(text: str, rendering: str, longest: int) -> None:
    key = render(text, rendering, max_length=longest)
    assert re.fullmatch(r"[!-~]+", key)
    assert len(key) <= longest


@given(st.text(), st.integers(13, 60))
def test_base32hex_uses_only_its_alphabet(text: str, longest: int) -> None:
    assert re.fullmatch(r"[0-9a-v]{13,52}", render(text, "base32hex", max_length=longest))


@given(st.text())
def test_a_secret_hides_the_text(text: str) -> None:
    assert render(text, "raw", secret=SECRET) != render(text, "raw", secret=b"other")
    assert re.fullmatch(r"[0-9a-f]{64}", render(text, "raw", secret=SECRET))


@pytest.mark.parametrize(
    ("rendering", "limits"),
    [
        ("digest", {"max_length": 31}),
        ("raw", {"max_length": 31}),
        ("digest", {"max_length": 34, "prefix": "op_"}),
        ("digest", {"min_length": 65}),
        ("hex", {"max_length": 15}),
        ("base32hex", {"max_length": 12}),
        ("uuid4", {"max_length": 35}),
        ("uuid5", {"min_length": 40}),
        ("uuid5", {"alphabet": "0-9a-f"}),
        ("digest", {"alphabet": "0-9"}),
        ("digest", {"prefix": "a b"}),
        ("base64", {}),
    ],
)
def test_a_rendering_that_cannot_fit_is_an_error_when_rules_are_loaded(
    rendering: str, limits: dict[str, object]
) -> None:
    with pytest.raises(UnfitKey):
        verify(rendering, **limits)  # type: ignore[arg-type]
    with pytest.raises(UnfitKey):
        render(KEY + "/" + "x" * 300, rendering, **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("rendering", RENDERINGS)
def test_the_defaults_hold_every_key(rendering: str) -> None:
    verify(rendering)


def test_an_alphabet_is_written_with_ranges_or_without() -> None:
    assert characters("0-9a-v") == set("0123456789abcdefghijklmnopqrstuv")
    assert characters("_a-c-") == set("_abc-")
    assert characters("abc-") == set("abc-")
    assert characters("A-C.\n é") == set("ABC.")


# --- keys of callers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shapes", "minted"),
    [
        ("7d9f4c1e-2b7a-4c55-9a63-0d9b1c0c2f11", ("uuid4",), True),
        ("7D9F4C1E-2B7A-4C55-9A63-0D9B1C0C2F11", ("uuid4",), True),
        ('"7d9f4c1e-2b7a-4c55-9a63-0d9b1c0c2f11"', ("uuid4",), True),
        ("7d9f4c1e-2b7a-1c55-9a63-0d9b1c0c2f11", ("uuid4",), False),  # version 1
        ("7d9f4c1e-2b7a-5c55-9a63-0d9b1c0c2f11", ("uuid4",), False),  # derived from a name
        ("7d9f4c1e-2b7a-4c55-1a63-0d9b1c0c2f11", ("uuid4",), False),
        ("7d9f4c1e2b7a4c559a630d9b1c0c2f11", ("uuid4",), False),
        ("invoice-7d9f4c1e-2b7a-4c55-9a63-0d9b1c0c2f11", ("uuid4",), False),
        ("7d9f4c1e-2b7a-4c55-9a63-0d9b1c0c2f11-2", ("uuid4",), False),
        ("invoice-42", ("uuid4",), False),
        ("7d9f4c1e-2b7a-4c55-9a63-0d9b1c0c2f11", ("uuid",), True),
        ("b665264e-7b58-e131-5edd-e2c04217dc25", ("uuid",), True),  # as stripe-python makes them
        ("b665264e-7b58-e131-5edd-e2c04217dc25", ("uuid4",), False),
        ("7d9f4c1e-2b7a-1c55-9a63-0d9b1c0c2f11", ("uuid",), False),  # version 1
        ("7d9f4c1e-2b7a-5c55-9a63-0d9b1c0c2f11", ("uuid",), False),  # derived from a name
        ("7d9f4c1e-2b7a-7c55-9a63-0d9b1c0c2f11", ("uuid",), False),  # the id of a row, often
        ("b665264e7b58e1315edde2c04217dc25", ("uuid",), False),
        ("uuid-42", ("uuid",), False),
        ("", ("uuid4", "x-"), False),
        (
            "stainless-python-retry-7d9f4c1e-2b7a-4c55-9a63-0d9b1c0c2f11",
            ("uuid4", "stainless-python-retry-"),
            True,
        ),
        ("stripe-node-retry-7d9f4c1e-2b7a-4c55-9a63-0d9b1c0c2f11", ("stripe-node-retry-",), True),
        ("stripe-node-retry-", ("stripe-node-retry-",), False),
        ("7d9f4c1e-2b7a-4c55-9a63-0d9b1c0c2f11", ("stripe-node-retry-",), False),
        ("invoice-42", ("",), False),
        ("invoice-42", (), False),
    ],
)
def test_only_keys_of_the_named_shapes_are_taken_for_minted(
    value: str, shapes: tuple[str, ...], minted: bool
) -> None:
    assert is_minted(value, shapes) is minted


def test_what_we_render_as_uuid4_looks_minted_and_uuid5_does_not() -> None:
    assert is_minted(render(KEY, "uuid4"), ("uuid4",))
    assert not is_minted(render(KEY, "uuid5"), ("uuid4",))


def test_a_keyed_digest_is_an_hmac_over_its_parts() -> None:
    assert keyed_digest(b"k", "stripe", "invoice-42") == (
        "775149ab73045c7019c236fbf8bcd7025301dbbc9b30a93a148792abe0f98b90"
    )


@given(st.lists(st.text(), max_size=3), st.lists(st.text(), max_size=3))
def test_other_parts_give_another_keyed_digest(a: list[str], b: list[str]) -> None:
    assert (keyed_digest(b"k", *a) == keyed_digest(b"k", *b)) == (a == b)
    assert keyed_digest(b"k", *a) != keyed_digest(b"l", *a)
