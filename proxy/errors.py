"""Why a question or an act of the control side is refused, in words that API and CLI share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Meaning:
    status: int
    title: str


CODES: Final[Mapping[str, Meaning]] = {
    "bad-request": Meaning(400, "The request cannot be understood"),
    "unauthorized": Meaning(401, "The token is missing or wrong"),
    "forbidden": Meaning(403, "This token may not do that"),
    "foreign-host": Meaning(403, "This name or page may not talk to the control port"),
    "not-found": Meaning(404, "There is no such thing"),
    "method-not-allowed": Meaning(405, "This address does not take that method"),
    "not-resolvable": Meaning(409, "There is nothing to resolve"),
    "in-flight": Meaning(409, "The operation is being sent or settled right now"),
    "conflict": Meaning(409, "The operation has changed"),
    "stale-checkpoint": Meaning(412, "The newest checkpoint is not the one that was named"),
    "run-closed": Meaning(409, "The run is closed"),
    "run-revoked": Meaning(409, "The run was revoked"),
    "run-reused": Meaning(409, "This run id belongs to another case"),
    "not-waiting": Meaning(409, "There is nothing left to decide"),
    "too-large": Meaning(413, "The body is too large"),
    "invalid-rules": Meaning(422, "The rules cannot be used; the earlier ones stay"),
    "damaged": Meaning(424, "The ledger's record fails its check"),
    "internal-error": Meaning(500, "The proxy met a fault of its own"),
    "ledger-unavailable": Meaning(503, "The ledger cannot be used"),
}


class ServiceError(Exception):
    """A question or act that is refused. ``problems``: one line each, where there are several."""

    def __init__(self, code: str, detail: str, problems: Sequence[str] = ()) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.problems = tuple(problems)

    @property
    def meaning(self) -> Meaning:
        return CODES[self.code]
