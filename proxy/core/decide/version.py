"""Which version of an operation a call is bound to, fixed when it arrives.

A call gets the end of its version, whatever it is, and never starts the next one. A refusal that no
caller has had yet belongs to the next identical call; only a call after that is a new version.
"""

from __future__ import annotations

from proxy.core.operation import Operation, State


def bind(newest: Operation | None, fingerprint: str) -> int:
    """The version, counted from 1, that a call with this fingerprint belongs to."""
    if newest is None:
        return 1
    same = newest.intent.fingerprint == fingerprint
    if newest.state is State.FAILED:
        assert newest.outcome is not None
        if newest.outcome.abandoned:
            return newest.version  # a person gave it up: no later version is begun
        heard = newest.delivered_epoch is not None
        return newest.version + 1 if heard or not same else newest.version
    if newest.state is State.NOT_APPLIED and newest.ever_left and not same:
        # The API has seen the first request under the key; another one needs another key.
        return newest.version + 1
    return newest.version
