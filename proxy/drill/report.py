"""How a drill is told: a table for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from proxy.drill.kept import Kept
from proxy.drill.lines import POINTS, Line
from proxy.drill.randomly import Report

HEAD = (
    *("KILLED AT", "API", "EFFECTS", "SENT", "WRITES", "TURNS", "APPROVAL", "CHECKPOINT"),
    *("RUN", "ANSWER", "HOLDS"),
)
KEY = """\
SENT: attempts in the ledger. WRITES, TURNS, CHECKPOINT: before the agent, after the kill, in the
end. One write is charged, with its intent, and one turn of the model, whose recorded answer the
resumed agent is given; a checkpoint stays as it was until the agent saves the next one."""


def table(lines: Sequence[Line]) -> str:
    rows = [HEAD, *(_row(line) for line in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    for line in lines:
        text.extend(f"  {line.point} x {line.kind}: {why}" for why in line.why)
    met = {line.point: POINTS[line.point].story for line in lines}
    text += ["", *(f"{point}: {story}." for point, story in met.items()), KEY]
    return "\n".join(text)


def _row(line: Line) -> tuple[str, ...]:
    end = line.end
    return (
        line.point,
        line.kind,
        str(line.effects),
        str(line.attempts),
        _three(line, lambda found: found.writes),
        _three(line, lambda found: found.turns),
        (", ".join(end.approvals) or "none") if end is not None else "-",
        _three(line, lambda found: found.checkpoint),
        end.status if end is not None else line.state,
        f"{line.answer} {line.outcome}",
        "yes" if line.holds else "NO",
    )


def _three(line: Line, of: Callable[[Kept], int]) -> str:
    looks = (line.before, line.after, line.end)
    return " ".join(str(of(look)) if look is not None else "-" for look in looks)


def summary(lines: Sequence[Line], random: Report | None) -> str:
    failed = sum(not line.holds for line in lines)
    text = []
    if lines:
        text.append(f"{len(lines) - failed} of {len(lines)} lines hold.")
    if random is not None:
        text.append(
            f"{random.kills} random kills (seed {random.seed}), {random.operations} operations: "
            f"{random.duplicates} duplicates, {random.lost} lost, "
            f"{random.wrong_status} wrong status, {random.stuck} stuck, "
            f"{random.budget_resets} budget resets, {random.approvals} wrong approvals; "
            f"{random.succeeded} succeeded, {random.unknown} honestly unknown."
        )
        text.extend(f"  {wrong}" for wrong in random.wrong)
    return "\n".join(text)


def as_json(lines: Sequence[Line], random: Report | None, holds: bool) -> dict[str, Any]:
    return {
        "holds": holds,
        "lines": [{**asdict(line), "holds": line.holds} for line in lines],
        "random": random.as_json() if random is not None else None,
    }
