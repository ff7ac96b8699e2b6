"""Runs: begin, look at, budget, close, revoke. Nothing here sends."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from typing import Any, Final

import structlog

from proxy.authority import Authority, token_digest
from proxy.clock import Clock
from proxy.core import runs as core
from proxy.core.identity import TOKEN_PREFIX, encode_part
from proxy.core.operation import State
from proxy.core.runs import DEPTH, Amendment, Run, RunRefused
from proxy.errors import ServiceError
from proxy.ledger.base import Ledger, LedgerError, Query, Refused, RunQuery
from proxy.service.bodies import Reading
from proxy.service.checkpoints import described
from proxy.service.names import key_of

TOKEN_BYTES: Final = 32  # 256 bits: beyond guessing
LIST_MAX: Final = 200
NAME_MAX: Final = 2_000  # characters of a run's name
IN_FLIGHT_MAX: Final = 1_000
log: Final = structlog.get_logger("onceproxy")


class RunService:
    def __init__(self, *, ledger: Ledger, clock: Clock, authority: Authority) -> None:
        self._ledger = ledger
        self._clock = clock
        self._authority = authority
        self._defaults = authority.rights.budget

    # Queries

    async def runs(self, query: RunQuery) -> list[dict[str, Any]]:
        """Newest first."""
        return [await self._told(run) for run in await self._ledger.runs(query)]

    async def one(self, name: str) -> dict[str, Any]:
        run = self._get(name)
        children = await self._ledger.children(run.run)
        saved = await self._ledger.checkpoints(run.run)
        return await self._told(run) | {
            "children": list(children),
            "checkpoint": described(saved[0]) if saved else None,
        }

    def budget(self, name: str) -> dict[str, Any]:
        return {"budget": self.budget_of(self._get(name))}

    def budget_of(self, run: Run) -> dict[str, Any]:
        return core.budget(run, self._defaults)

    def holds(self, name: str, token: str) -> bool:
        """Whether it is a token of that run, and not revoked."""
        run = self._ledger.run(key_of(self._ledger, name))
        held = run.token(token_digest(token)) if run is not None else None
        return held is not None and held.revoked is None

    def guarded(self, name: str) -> bool:
        """Whether the run has had tokens, so that only they and operators may act for it. Those
        that were revoked count: taking one away opens the run to nobody else."""
        run = self._ledger.run(key_of(self._ledger, name))
        return run is not None and bool(run.tokens)

    # Acts

    async def begin(self, body: object, by: str) -> dict[str, Any]:
        """Begin a run, or come back to it; with a token for its calls."""
        reading = Reading(body, ("run", "input_digest", "parent"), '{"run": "case-1"}')
        name = reading.run("run", most=NAME_MAX)
        digest = reading.text("input_digest", most=200)
        parent = reading.run("parent", most=NAME_MAX)
        reading.end()
        new = name is None
        run = encode_part(name if name is not None else f"run-{secrets.token_hex(8)}")
        above = encode_part(parent) if parent is not None else None
        if above is not None and (above == run or self._ledger.run(above) is None):
            raise ServiceError("not-found", "There is no such parent: begin that run first.")
        if above is not None and self._ledger.run(run) is None:
            self._must_be_reached(above)
        token = new_token()
        begun = await self._amend(
            run,
            core.begin(
                self._clock.time(),
                input_digest=digest,
                parent=above,
                token=token_digest(token),
                by=by,
            ),
            new=new,
        )
        return await self._told(begun) | {"token": token}

    async def set_budget(
        self, name: str, body: object, by: str, *, raising: bool
    ) -> dict[str, Any]:
        """``raising``: whoever asks may raise a limit, too."""
        units = tuple(unit.value for unit in core.Unit)
        reading = Reading(body, units, '{"tool_calls": 50}')
        limits = {unit: reading.whole(unit) for unit in units if unit in reading.body}
        if not limits and not reading.problems:
            reading.problems.append(f"name at least one of {', '.join(units)}")
        reading.end()
        act = core.set_limits(
            self._clock.time(), limits, raising=raising, by=by, defaults=self._defaults
        )
        run = await self._amend(key_of(self._ledger, name), act)
        return {"budget": self.budget_of(run)}

    async def close(self, name: str, body: object, by: str) -> dict[str, Any]:
        reading = Reading(body, ("outcome",), '{"outcome": "completed"}')
        outcome = reading.word("outcome", ("completed", "failed"), "completed")
        reading.end()
        run = self._get(name)
        after = await self._amend(run.run, core.close(self._clock.time(), outcome, by))
        self._authority.recheck()
        return await self._told(after)

    async def revoke(self, name: str, body: object, by: str) -> dict[str, Any]:
        """After it returns nothing of the run, or of one below it, begins to be sent.
        ``in_flight``: what had begun before. With ``token`` it is one token, and not the run."""
        reading = Reading(body, ("reason", "token"), '{"reason": "the case was withdrawn"}')
        reason = reading.text("reason") or "no reason was given"
        token = reading.text("token", most=200)
        if token is None and "token" in reading.body and not reading.problems:
            # Whoever meant one token does not mean the run.
            reading.problems.append("token: leave it out to revoke the run")
        reading.end()
        run, now = key_of(self._ledger, name), self._clock.time()
        if token is None:
            with self._authority.revoking(run=run):
                after = await self._amend(run, core.revoke(now, reason, by))
        else:
            digest = token_digest(token) if token.startswith(TOKEN_PREFIX) else token
            full = _token_of(self._ledger.run(run), digest)
            with self._authority.revoking(token=full):
                after = await self._amend(run, core.revoke_token(now, digest, reason, by))
        log.warning("revoked", run=run, by=by, reason=reason, token=token is not None)
        return await self._told(after) | {"in_flight": await self._in_flight(run)}

    async def restore(self, name: str, body: object, by: str) -> dict[str, Any]:
        """Undo a revocation or a closing."""
        reading = Reading(body, ("reason",), '{"reason": "it was the wrong case"}')
        reason = reading.text("reason") or ""
        reading.end()
        run = self._get(name)
        return await self._told(
            await self._amend(run.run, core.restore(self._clock.time(), reason, by))
        )

    # Within

    async def _amend(self, run: str, act: Amendment, *, new: bool = False) -> Run:
        return await amended(self._ledger, run, act, new=new)

    def _must_be_reached(self, parent: str) -> None:
        """A child so far below that what holds for the first run above would not hold for it is not
        begun. Parents never change, so that this is true for good."""
        row = self._ledger.run(parent)
        if row is not None and len(self._ledger.above(row)) + 1 > DEPTH:
            detail = f"There may be {DEPTH} runs above one: begin it under one further up."
            raise ServiceError("bad-request", detail)

    def _get(self, name: str) -> Run:
        run = self._ledger.run(key_of(self._ledger, name))
        if run is None:
            raise ServiceError("not-found", "There is no such run: it begins with its first call.")
        return run

    async def _told(self, run: Run) -> dict[str, Any]:
        states = await self._ledger.states(run.run)
        conflicts = await self._ledger.conflicts(run.run)
        return {
            "run": run.run,
            "status": core.status(run, states, conflicts),
            "epoch": run.epoch,
            "budget": self.budget_of(run),
            "operations": states,
            "conflicts": conflicts,
            "parent": run.parent,
            "input_digest": run.input_digest,
            "created_at": run.created_at,
            "by": run.by,
            "closed": None
            if run.closed is None
            else {"outcome": run.closed.outcome, "by": run.closed.by, "at": run.closed.at},
            "revoked": _revoked(run.revoked),
            "tokens": [
                {"token": one.digest[:16], "epoch": one.epoch, "revoked": _revoked(one.revoked)}
                for one in run.tokens
            ],
        }

    async def _in_flight(self, run: str) -> list[str]:
        """What of the run and of those below it is on its way, or may be."""
        found: list[str] = []
        todo, seen = [run], {run}
        while todo and len(found) < IN_FLIGHT_MAX:
            each = todo.pop()
            query = Query(run=each, states=(State.IN_FLIGHT,), limit=IN_FLIGHT_MAX)
            found += [operation.key for operation in await self._ledger.operations(query)]
            below = [child for child in await self._ledger.children(each) if child not in seen]
            seen.update(below)
            todo += below
        return found


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


async def amended(ledger: Ledger, run: str, act: Amendment, *, new: bool = False) -> Run:
    """Change a run. Raises ServiceError."""
    try:
        return await ledger.amend(run, act, new=new)
    except Refused as refused:
        reason = refused.reason
        if isinstance(reason, RunRefused):
            raise ServiceError(reason.code, reason.detail) from refused
        raise
    except LedgerError as error:
        raise ServiceError("ledger-unavailable", f"Not recorded: {error}") from error


def _token_of(run: Run | None, digest: str) -> str:
    """The whole digest, by its first characters; "" where there is none."""
    tokens: Sequence[core.RunToken] = run.tokens if run is not None else ()
    with contextlib.suppress(StopIteration):
        return next(token.digest for token in tokens if token.digest.startswith(digest))
    return ""


def _revoked(revocation: core.Revocation | None) -> dict[str, Any] | None:
    if revocation is None:
        return None
    return {"reason": revocation.reason, "by": revocation.by, "at": revocation.at}
