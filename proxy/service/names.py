"""Which run a person or program means."""

from __future__ import annotations

from proxy.core.identity import as_shortened, encode_part
from proxy.ledger.base import Ledger


def key_of(ledger: Ledger, name: str) -> str:
    """The run of that name, as in an operation key. Of a long name lists tell the shortened one,
    and that must mean the very run, not another one that has never been: nothing would be revoked
    then."""
    key = encode_part(name)
    shortened = as_shortened(name)
    if not shortened or ledger.run(key) is not None:
        return key
    return next((part for part in shortened if ledger.run(part) is not None), key)
