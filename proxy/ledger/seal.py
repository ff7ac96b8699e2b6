"""Sealing of bodies (AES-256-GCM), and the key file: a key in each line, the first one in use.

What is sealed is bound to what it belongs to: opened under another identity, or changed by a bit,
it is ``Damaged``. Nonces are random, 96 bits, which one key may use about 2^32 times.
"""

from __future__ import annotations

import binascii
import hashlib
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from proxy.ledger.base import Damaged, LedgerError

KEY_BYTES = 32  # AES-256
NONCE_BYTES = 12  # what GCM is made for
ID_BYTES = 4  # tells apart the few keys of one file; the seal itself tells whether it is the key
HEAD_BYTES = ID_BYTES + NONCE_BYTES
CANARY = b"onceproxy ledger key"

log = logging.getLogger(__name__)


class Sealer:
    """Seals under the first of its keys, and opens under any of them."""

    def __init__(self, keys: bytes | Sequence[bytes]) -> None:
        keys = (keys,) if isinstance(keys, bytes) else tuple(keys)
        for key in keys:
            if len(key) != KEY_BYTES:
                raise LedgerError(f"a ledger key has {KEY_BYTES} bytes, this one has {len(key)}")
        self._keys = {key_id(key): AESGCM(key) for key in keys}
        self.ids = tuple(self._keys)
        self._aead = self._keys[self.ids[0]]

    def seal(self, plain: bytes, identity: str) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return self.ids[0] + nonce + self._aead.encrypt(nonce, plain, identity.encode())

    def unseal(self, sealed: bytes, identity: str) -> bytes:
        """Raises Damaged."""
        if not isinstance(sealed, bytes):  # a column can be damaged into anything
            raise Damaged(f"the stored {identity} cannot be opened: it was damaged")
        named = sealed[:ID_BYTES]
        aead = self._keys.get(named)
        if aead is None:
            plain = self._unseal_unnamed(sealed, identity)
            if plain is not None:
                return plain
            raise Damaged(
                f"the stored {identity} was damaged, or sealed under a key ({named.hex()}) that "
                "the key file does not hold"
            )
        try:
            nonce, rest = sealed[ID_BYTES:HEAD_BYTES], sealed[HEAD_BYTES:]
            return aead.decrypt(nonce, rest, identity.encode())
        except (InvalidTag, ValueError, TypeError) as error:
            raise Damaged(f"the stored {identity} cannot be opened: it was damaged") from error

    def anew(self, sealed: bytes, identity: Callable[[], str]) -> bytes | None:
        """The same, sealed under the key in use; None if it is already, or is damaged and stays as
        it is. ``identity`` may raise Damaged."""
        if isinstance(sealed, bytes) and sealed[:ID_BYTES] == self.ids[0]:
            return None
        try:
            name = identity()
            return self.seal(self.unseal(sealed, name), name)
        except Damaged as damage:
            log.error("left as it is: %s", damage)
            return None

    def _unseal_unnamed(self, sealed: bytes, identity: str) -> bytes | None:
        """What was sealed before seals named their key; None if it is not that."""
        for aead in self._keys.values():
            try:
                nonce, rest = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
                return aead.decrypt(nonce, rest, identity.encode())
            except (InvalidTag, ValueError):
                continue
        return None

    def canary(self) -> bytes:
        """Something that only this key opens, to notice a wrong key at the start."""
        return self.seal(CANARY, "canary")

    def opens(self, canary: bytes) -> bool:
        try:
            return self.unseal(canary, "canary") == CANARY
        except Damaged:
            return False


def key_id(key: bytes) -> bytes:
    """What stands before all that a key has sealed."""
    return hashlib.sha256(b"onceproxy key id" + key).digest()[:ID_BYTES]


def content_identity(key: str, kind: str, number: int) -> str:
    """What a sealed content is bound to."""
    return f"{kind} of {key} ({number})"


def load_keys(path: Path, *, create: bool = True) -> tuple[bytes, ...]:
    """The keys in a file with 64 hex digits in each line, the one in use first; made, readable by
    its owner only, if it is absent.

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


def _parse(path: Path, data: bytes) -> tuple[bytes, ...]:
    try:
        keys = tuple(binascii.unhexlify(line) for line in data.split())
    except binascii.Error:
        keys = ()
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise LedgerError(
            f"the key file {path} does not hold {KEY_BYTES * 2} hex digits in each of its lines"
        )
    return keys


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
