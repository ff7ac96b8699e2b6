"""Which keys have sealed a ledger, and how it goes over from one to the next.

What is sealed for the ledger itself follows the key in use at once; bodies follow one by one.
"""

from __future__ import annotations

import hashlib
import hmac
import sqlite3
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from proxy.ledger.base import WrongKey
from proxy.ledger.schema import remember
from proxy.ledger.seal import Sealer, content_identity


class Keys(NamedTuple):
    """``digest_key``: of digests that must outlive a key. ``to_remember``: what a ledger that is
    made now writes down."""

    digest_key: bytes
    to_remember: dict[str, Any]


def settle_keys(
    db: sqlite3.Connection, meta: Mapping[str, Any], sealer: Sealer, oldest: bytes, path: Path
) -> Keys:
    """Check that every key that sealed something is here, and have the ledger's own follow the one
    in use. ``oldest``: of the keys given. Raises WrongKey."""
    held = [name.hex() for name in sealer.ids]
    under = orjson.loads(meta["sealed_under"]) if "sealed_under" in meta else []
    if missing := [name for name in under if name not in held]:
        raise WrongKey(
            f"{path} has bodies sealed under keys that the key file no longer holds (ids "
            f"{', '.join(missing)}): put their lines back, behind the first"
        )
    if "digest_key" in meta:
        digest_key = sealer.unseal(meta["digest_key"], "digest key")
    else:
        digest_key = hmac.digest(oldest, b"onceproxy digests", hashlib.sha256)
    if meta and under[:1] == held[:1]:
        return Keys(digest_key, {})
    known: dict[str, Any] = {
        "canary": sealer.canary(),
        "digest_key": sealer.seal(digest_key, "digest key"),
        "sealed_under": orjson.dumps(list(dict.fromkeys([held[0], *under]))),
    }
    if not meta:
        return Keys(digest_key, known)
    remember(db, **known)
    return Keys(digest_key, {})


def reseal(db: sqlite3.Connection, sealer: Sealer, after: int, most: int, last: int) -> int | None:
    """Seal up to ``most`` bodies behind the content ``after``, none behind ``last``, under the key
    in use, in one transaction; the last one looked at, None when there are no more."""
    db.execute("BEGIN IMMEDIATE")
    try:
        rows = db.execute(
            "SELECT id, key, kind, sealed FROM contents WHERE id > ? AND id <= ?"
            " AND sealed IS NOT NULL ORDER BY id LIMIT ?",
            (after, last, most),
        ).fetchall()
        for number, key, kind, sealed in rows:
            again = sealer.anew(sealed, partial(content_identity, key, kind, number))
            if again is not None:
                db.execute("UPDATE contents SET sealed = ? WHERE id = ?", (again, number))
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return rows[-1][0] if rows else None
