"""Sealing and the key file."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.ledger.base import Damaged, LedgerError
from proxy.ledger.seal import Sealer, load_keys

SEALER = Sealer(bytes(32))


def test_what_is_sealed_opens_under_its_own_identity_only() -> None:
    sealed = SEALER.seal(b"secret", "answer of a")
    assert b"secret" not in sealed
    assert SEALER.unseal(sealed, "answer of a") == b"secret"
    with pytest.raises(Damaged):
        SEALER.unseal(sealed, "answer of b")
    with pytest.raises(Damaged):
        Sealer(b"x" * 32).unseal(sealed, "answer of a")


def test_every_changed_or_missing_byte_is_noticed() -> None:
    sealed = SEALER.seal(b"abc", "a")
    for place in range(len(sealed)):
        spoiled = bytearray(sealed)
        spoiled[place] ^= 1
        with pytest.raises(Damaged):
            SEALER.unseal(bytes(spoiled), "a")
        with pytest.raises(Damaged):
            SEALER.unseal(sealed[:place], "a")


def test_the_same_bytes_are_sealed_differently_each_time() -> None:
    assert SEALER.seal(b"a", "a") != SEALER.seal(b"a", "a")


def test_the_canary_sings_for_its_key_only() -> None:
    assert SEALER.opens(SEALER.canary())
    assert not SEALER.opens(Sealer(b"x" * 32).canary())


def test_a_key_file_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "ledger.key"
    [key] = load_keys(path)
    assert len(key) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_keys(path) == (key,)
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.key"]


def test_a_key_that_must_exist_is_not_made_up(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="missing: put it back"):
        load_keys(tmp_path / "ledger.key", create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "abc", "zz" * 32, "00" * 31])
def test_a_key_file_that_holds_no_key_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ledger.key"
    path.write_text(text)
    with pytest.raises(LedgerError, match="64 hex digits"):
        load_keys(path)
    assert path.read_text() == text


def test_a_key_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(LedgerError, match="32 bytes"):
        Sealer(b"short")
