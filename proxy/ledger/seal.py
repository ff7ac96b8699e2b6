"""Sealing of bodies (AES-256-GCM), and the key file.

What is sealed is bound to what it belongs to: opened under another identity, or changed by a bit,
it is ``Damaged``. Nonces are random, 96 bits, which one key may use about 2^32 times.
"""

from __future__ import annotations

import binascii
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from proxy.ledger.base import Damaged, LedgerError

KEY_BYTES = 32  # AES-256
NONCE_BYTES = 12  # what GCM is made for
CANARY = b"onceproxy ledger key"


class Sealer:
    """Seals and opens under one key."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise LedgerError(f"a ledger key has {KEY_BYTES} bytes, this one has {len(key)}")
        self._aead = AESGCM(key)

    def seal(self, plain: bytes, identity: str) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, plain, identity.encode())

    def unseal(self, sealed: bytes, identity: str) -> bytes:
        """Raises Damaged."""
        try:
            return self._aead.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], identity.encode())
        except (InvalidTag, ValueError, TypeError) as error:
            raise Damaged(f"the stored {identity} cannot be opened: it was damaged") from error

    def canary(self) -> bytes:
        """Something that only this key opens, to notice a wrong key at the start."""
        return self.seal(CANARY, "canary")

    def opens(self, canary: bytes) -> bool:
        try:
            return self.unseal(canary, "canary") == CANARY
        except Damaged:
            return False


def content_identity(key: str, kind: str, number: int) -> str:
    """What a sealed content is bound to."""
    return f"{kind} of {key} ({number})"


def load_key(path: Path, *, create: bool = True) -> bytes:
    """The key in a file of 64 hex digits; made, readable by its owner only, if it is absent.

    ``create=False`` is for a ledger that exists already: a new key would not open it.
    Raises LedgerError."""
    try:
        if create and not path.exists():
            _make(path)
        return _parse(path, path.read_bytes())
    except FileNotFoundError as error:
        raise LedgerError(
            f"the key file {path} is missing: put it back, the ledger cannot be read without it"
        ) from error
    except OSError as error:
        raise LedgerError(f"the key file {path} cannot be used: {error.strerror}") from error


def _parse(path: Path, data: bytes) -> bytes:
    try:
        key = binascii.unhexlify(data.strip())
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise LedgerError(f"the key file {path} does not hold {KEY_BYTES * 2} hex digits")
    return key


def _make(path: Path) -> None:
    """Whole or not at all: a key that sealed something must never be lost to a power cut."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_hex(KEY_BYTES).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return  # another process was faster; its key counts
        sync_directory(path.parent)
    finally:
        draft.unlink()


def sync_directory(directory: Path) -> None:
    """Make new names in a directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
