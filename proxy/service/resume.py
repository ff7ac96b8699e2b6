"""The resume of a run: everything that an agent which starts again has to know, in one piece.

"Since the checkpoint" are the operations that something happened to after it was saved: an attempt,
an answer, a lookup, a person's word. The order of the ledger's history decides, not the clock. An
operation that had its end before is in the checkpoint, or its caller had the answer in hand
when it saved; an operation that is still unresolved is listed however old it is. What is left out
is not lost: its call, made again, is answered from the ledger.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from proxy.authority import token_digest
from proxy.clock import Clock
from proxy.core.operation import State
from proxy.core.runs import Run, resume
from proxy.errors import ServiceError
from proxy.ledger.base import Checkpoint, Damaged, Ledger, Query
from proxy.service.approvals import ApprovalService
from proxy.service.bodies import Reading
from proxy.service.checkpoints import NO_RUN, damaged, described, shown
from proxy.service.names import key_of
from proxy.service.operations import OperationService
from proxy.service.runs import RunService, amended, new_token

LIST_MAX: Final = 1_000  # operations; ``more`` says that there are others
_UNRESOLVED: Final = (State.UNKNOWN, State.IN_FLIGHT)


class Resumes:
    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        operations: OperationService,
        runs: RunService,
        approvals: ApprovalService,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._operations = operations.operations
        self._runs = runs
        self._approvals = approvals

    async def begin(
        self, run: str, body: object, by: str, *, minting: bool = True, every: bool = False
    ) -> dict[str, Any]:
        """Begin the run's next start and tell what its earlier ones did. ``run`` as the agent names
        it. In ``body`` may be ``new`` (the name was made just now, so that no ledger but this one
        can know it), ``input_digest``, and ``token`` (the start gets one of its own); ``minting``:
        whoever asks may have one. Raises ServiceError."""
        reading = Reading(body, ("new", "token", "input_digest"), '{"token": true}')
        new, wanted = reading.truth("new"), reading.truth("token")
        digest = reading.text("input_digest", most=200)
        reading.end()
        if wanted and not minting:
            raise ServiceError("forbidden", "A run's own token makes no further ones.")
        name = key_of(self._ledger, run)
        checkpoint = await self._checkpoint(name)  # one that is damaged begins nothing
        token = new_token() if wanted else None
        act = resume(
            self._clock.time(),
            input_digest=digest,
            token=token_digest(token) if token is not None else None,
            by=by,
        )
        row = await amended(self._ledger, name, act, new=new)
        bundle = await self._bundle(row, checkpoint, every)
        return bundle if token is None else bundle | {"token": token}

    async def look(self, run: str, *, every: bool = False) -> dict[str, Any]:
        """The same without beginning anything. Raises ServiceError."""
        name = key_of(self._ledger, run)
        row = self._ledger.run(name)
        if row is None:
            raise ServiceError("not-found", NO_RUN)
        return await self._bundle(row, await self._checkpoint(name), every)

    async def _checkpoint(self, run: str) -> Checkpoint | None:
        try:
            return await self._ledger.checkpoint(run)
        except Damaged as error:
            raise damaged(error) from error

    async def _bundle(self, row: Run, checkpoint: Checkpoint | None, every: bool) -> dict[str, Any]:
        after = checkpoint.after if checkpoint is not None and not every else None
        most = LIST_MAX + 1
        found = await self._operations(Query(run=row.run, limit=most, moved_after=after))
        unresolved = await self._operations(Query(run=row.run, states=_UNRESOLVED, limit=most))
        more = max(len(found), len(unresolved)) > LIST_MAX
        del found[LIST_MAX:], unresolved[LIST_MAX:]
        known = {one["key"] for one in found}
        found += [one for one in unresolved if one["key"] not in known]
        found.sort(key=lambda one: one["created_at"], reverse=True)
        return {
            "run": row.run,
            "epoch": row.epoch,
            "budget": self._runs.budget_of(row),
            "approvals": await self._approvals.of_run(row.run),
            "checkpoint": None if checkpoint is None else _told(checkpoint),
            "operations": found,
            "unresolved": unresolved,
            "more": more,
        }


def _told(checkpoint: Checkpoint) -> object:
    if checkpoint.content is None:
        return described(checkpoint)
    return orjson.Fragment(shown(checkpoint))
