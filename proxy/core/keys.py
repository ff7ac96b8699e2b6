"""The text an API gets to know an operation by: a pure function of the operation key.

Losing the ledger does not lose an upstream key, because it can be made again from run, step and
operation. With a secret it is an HMAC, which nobody else can make; then the readable text is never
sent.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import string
import uuid
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from proxy.core.values import utf8

RENDERINGS: Final = ("raw", "digest", "hex", "base32hex", "uuid5", "uuid4")

# The name space of `uuid5` keys, itself uuid5(URL, "urn:onceproxy:operation-key"). Changing it
# changes every such key: never.
NAMESPACE: Final = uuid.UUID("5ef270b0-2731-59d5-a50b-d758aa7814e0")

# Fewest characters of a shortened key, counted without the prefix. `digest` keeps 128 bits. `hex`
# and `base32hex` are for fields too short for that (references of 20 to 25 characters); at 64 bits
# two of a million operations meet with a chance below one in ten million.
FLOOR: Final = {"digest": 32, "hex": 16, "base32hex": 13}

# What is safe in a header, a query and a JSON string alike: printable ASCII without space.
_PRINTABLE: Final = frozenset(chr(code) for code in range(0x21, 0x7F))
_RANGE: Final = re.compile(r"([0-9])-([0-9])|([a-z])-([a-z])|([A-Z])-([A-Z])")
_UUID4: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE
)
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_NOT_RANDOM: Final = (1, 2, 3, 5, 6, 7, 8)  # versions of UUIDs; there are none above 8


class UnfitKey(ValueError):
    """No key of this rendering meets the lengths, alphabet and prefix that the rule states."""


def render(
    text: str,
    rendering: str,
    *,
    max_length: int = 255,
    min_length: int = 1,
    alphabet: str | None = None,
    prefix: str = "",
    secret: bytes | None = None,
) -> str:
    """The key for operation key ``text``; lengths are in characters and include ``prefix``.

    ``alphabet`` lists the characters an API takes in the whole key; ``A-Z``, ``a-z``, ``0-9`` and
    parts of them are ranges, any other ``-`` is itself. ``raw`` is the text if it fits, else
    ``digest``. Raises UnfitKey.
    """
    allowed = _PRINTABLE if alphabet is None else characters(alphabet)
    if rendering == "raw":
        key = prefix + text
        if secret is None and min_length <= len(key) <= max_length and allowed.issuperset(key):
            return key
        rendering = "digest"
    key = prefix + _rendered(text, rendering, max_length - len(prefix), secret)
    if not min_length <= len(key) <= max_length:
        raise UnfitKey(
            f"a {rendering} key has {len(key)} characters, the rule wants {min_length} to "
            f"{max_length}: choose another `as` or correct the lengths"
        )
    if not allowed.issuperset(key):
        raise UnfitKey(
            f"a {rendering} key has characters outside the rule's alphabet: choose another `as` "
            f"or correct `alphabet` and `prefix`"
        )
    return key


def of_item(
    whole: str,
    index: int,
    rendering: str,
    *,
    max_length: int = 255,
    min_length: int = 1,
    alphabet: str | None = None,
    prefix: str = "",
) -> str:
    """The key of one item of a batch whose own key is ``whole``: a pure function of that text and
    of the item's place. Whoever cannot make the one cannot make the other, so no secret is needed.
    Raises UnfitKey."""
    text = f"{whole.removeprefix(prefix)}#{index}"
    return render(
        text,
        rendering,
        max_length=max_length,
        min_length=min_length,
        alphabet=alphabet,
        prefix=prefix,
    )


def verify(
    rendering: str,
    *,
    max_length: int = 255,
    min_length: int = 1,
    alphabet: str | None = None,
    prefix: str = "",
) -> None:
    """Raises UnfitKey if some operation key could not be rendered: for the loading of rules."""
    render(
        "a text that no alphabet holds",
        rendering,
        max_length=max_length,
        min_length=min_length,
        alphabet=alphabet,
        prefix=prefix,
    )


@lru_cache(maxsize=256)  # rules have a handful of alphabets
def characters(alphabet: str) -> frozenset[str]:
    """The characters of an alphabet as rules write it, without those that no header may hold."""
    ranges = (_between(match[0]) for match in _RANGE.finditer(alphabet))
    return _PRINTABLE.intersection(_RANGE.sub("", alphabet)).union(*ranges)


def is_minted(value: str, shapes: Iterable[str]) -> bool:
    """Whether a caller's key is one an SDK makes up, and so is worth nothing after a restart.

    A shape is ``uuid4``; or ``uuid``, which is uuid4 and also random digits that are only written
    like a UUID; or a prefix such as ``stripe-node-retry-`` or ``stainless-python-retry-``. Anything
    else is a business key: well-formed UUIDs of other versions too, as ids of database rows and
    hashes of names are such. A UUID without hyphens is not taken for minted: an MD5 of business
    values has one chance in 64 of looking like it.
    """
    bare = value.strip()
    if len(bare) > 2 and bare[0] == bare[-1] == '"':  # the draft standard's quoted form
        bare = bare[1:-1]
    return any(_has_shape(bare, shape) for shape in shapes)


def _has_shape(bare: str, shape: str) -> bool:
    match shape:
        case "":
            return False
        case "uuid4":
            return _UUID4.fullmatch(bare) is not None
        case "uuid":
            return _UUID.fullmatch(bare) is not None and uuid.UUID(bare).version not in _NOT_RANDOM
    return bare.startswith(shape) and len(bare) > len(shape)


def keyed_digest(secret: bytes, *parts: str) -> str:
    """64 hex digits: HMAC-SHA256 over the parts, each preceded by its length."""
    message = bytearray()
    for part in parts:
        data = utf8(part)
        message += len(data).to_bytes(8, "big") + data
    return hmac.digest(secret, message, "sha256").hex()


def _rendered(text: str, rendering: str, room: int, secret: bytes | None) -> str:
    data = utf8(text)
    core = (
        hashlib.sha256(data).digest()
        if secret is None
        else hmac.digest(secret, data, hashlib.sha256)
    )
    match rendering:
        case "digest" | "hex":
            return _cut(core.hex(), rendering, room)
        case "base32hex":
            return _cut(base64.b32hexencode(core).decode().rstrip("=").lower(), rendering, room)
        case "uuid5":
            name = data if secret is None else core.hex().encode()
            sha1 = hashlib.sha1(NAMESPACE.bytes + name, usedforsecurity=False).digest()
            return str(uuid.UUID(bytes=sha1[:16], version=5))
        case "uuid4":
            return str(uuid.UUID(bytes=core[:16], version=4))
    raise UnfitKey(f"there is no rendering {rendering!r}: use one of {', '.join(RENDERINGS)}")


def _cut(digits: str, rendering: str, room: int) -> str:
    if room < FLOOR[rendering]:
        raise UnfitKey(
            f"max_length leaves {max(room, 0)} characters for a {rendering} key, which needs "
            f"{FLOOR[rendering]}: choose another `as`, a shorter prefix, or another place"
        )
    return digits[:room]


def _between(span: str) -> str:
    order = string.digits + string.ascii_lowercase + string.ascii_uppercase
    return order[order.index(span[0]) : order.index(span[2]) + 1]
