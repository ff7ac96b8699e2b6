"""``runs``, ``budget``, ``revoke``: runs of the running proxy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import click

from proxy.cli.client import ControlClient, Refused, run_path
from proxy.cli.common import (
    CHECK_FAILED,
    json_option,
    moment,
    print_json,
    print_table,
    stop,
    talks,
    visible,
    with_config,
)
from proxy.configload import Loaded

UNITS = ("turns", "tokens", "tool_calls", "writes")
PAGE = 200  # runs that one request lists at most
NO_SUCH_RUN = "there is no such run; onceproxy runs lists them"


class Limit(click.ParamType[int | str]):
    name = "N|none"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | str:
        if value == "none":
            return "none"
        if not (value.isascii() and value.isdigit()):
            self.fail("is a whole number, or none for no limit of its own", param, ctx)
        return int(value)


@click.command()
@click.argument("run", required=False)
@click.option("--tree", is_flag=True, help="Each run below the one that began it.")
@click.option("--limit", type=click.IntRange(1, PAGE), default=100, show_default=True)
@json_option
@with_config
@talks
def runs(loaded: Loaded, run: str | None, tree: bool, limit: int, as_json: bool) -> None:
    """List runs, newest first, or show one. RUN is its name, or as lists show it."""
    client = ControlClient(loaded.config)
    if run is not None:
        _, found = _found(client, run)
        below = list(_below(client, found)) if tree else []
        if as_json:
            print_json(found | {"below": [one for _, one in below]} if tree else found)
            return
        _print_run(found)
        if tree:
            click.echo()
            _print_list([(0, found), *below])
        return
    listed = client.get("/v1/runs", limit=limit)["runs"]
    if as_json:
        print_json(listed)
    elif not listed:
        click.echo("no runs")
    else:
        _print_list(_as_tree(listed) if tree else [(0, one) for one in listed])


@click.command()
@click.argument("run")
@click.option("--turns", type=Limit(), help="Model calls.")
@click.option("--tokens", type=Limit(), help="Tokens of model calls.")
@click.option("--tool-calls", type=Limit(), help="All other calls, reads included.")
@click.option("--writes", type=Limit(), help="The governed writes among them.")
@json_option
@with_config
@talks
def budget(loaded: Loaded, run: str, as_json: bool, **limits: int | str | None) -> None:
    """Show what a run may use and has used, or set limits; none takes one away.

    What is used stays used: a limit is about all that the run does, in all its starts.
    """
    client = ControlClient(loaded.config)
    given = {unit: limits[unit] for unit in UNITS if limits[unit] is not None}
    if given:
        # A limit may be set before the run's first call.
        name = _name(client, run) or run
        body = {unit: None if limit == "none" else limit for unit, limit in given.items()}
        told = client.put(run_path(name, "/budget"), body)["budget"]
    else:
        told = _found(client, run)[1]["budget"]
    if as_json:
        print_json(told)
        return
    _print_budget(told)
    if not given:
        click.echo(
            f"\nto set one: onceproxy budget {visible(run)} --writes N, or none for no limit"
        )


@click.command()
@click.argument("run", required=False)
@click.option(
    "--token", help="Only this token of the run: its text, or as `onceproxy runs` has it."
)
@click.option("--approval", metavar="ID", help="Take back what was allowed with this approval.")
@click.option("--reason", help="Why; the agent is told.")
@click.option("--undo", is_flag=True, help="Let a run go on that was revoked or closed.")
@json_option
@with_config
@talks
def revoke(
    loaded: Loaded,
    run: str | None,
    token: str | None,
    approval: str | None,
    reason: str | None,
    undo: bool,
    as_json: bool,
) -> None:
    """Stop a run and all runs below it, or one token, or an approval.

    When it returns, nothing more begins to be sent; what had begun before is listed.
    """
    if (run is None and token is None) == (approval is None):
        raise click.UsageError("name a RUN, or a --token of one, or an --approval")
    if undo and (token is not None or approval is not None):
        raise click.UsageError("--undo is for runs: a token or an approval is made anew")
    client = ControlClient(loaded.config)
    said = {"reason": reason} if reason else {}
    if approval is not None:
        note = {"note": reason} if reason else {}
        told = client.post(f"/v1/approvals/{_segment(approval)}/revoke", note)
        done = f"revoked {approval}: nothing more is sent under it"
    else:
        if run is None:
            name = unquote(_holder_of(client, str(token)))
        else:
            name, _ = _found(client, run)
        if undo:
            told = client.post(run_path(name, "/restore"), said)
            done = f"restored {name}: its calls are sent again"
        elif token is not None:
            told = client.post(run_path(name, "/revoke"), {**said, "token": token})
            done = f"revoked a token of {name}: nothing that carries it is sent any more"
        else:
            told = client.post(run_path(name, "/revoke"), said)
            done = f"revoked {name}: nothing of it or of runs below it is sent any more"
    if as_json:
        print_json(told)
        return
    click.echo(visible(done))
    for key in told.get("in_flight", ()):
        click.echo(f"had begun before: {visible(key)}; see onceproxy show {visible(key)}")


def _name(client: ControlClient, run: str) -> str | None:
    """The name of a run that is there. Lists have it as it stands in operation keys, which is the
    name itself unless that has characters which a key encodes."""
    for name in dict.fromkeys((run, unquote(run))):
        try:
            client.get(run_path(name, "/budget"))
        except Refused as refused:
            if refused.status != 404:
                raise
        else:
            return name
    return None


def _found(client: ControlClient, run: str) -> tuple[str, dict[str, Any]]:
    """The run's name and what is known of it; the command ends if there is none."""
    name = _name(client, run)
    if name is None:
        stop(CHECK_FAILED, f"{visible(run)}: {NO_SUCH_RUN}")
    found = client.get(run_path(name))
    assert isinstance(found, dict)
    return name, found


def _holder_of(client: ControlClient, token: str) -> str:
    """The run that a token is of, as lists show it; the command ends if there is none."""
    from proxy.authority import token_digest
    from proxy.core.identity import TOKEN_PREFIX

    digest = token_digest(token) if token.startswith(TOKEN_PREFIX) else token
    before: float | None = None
    while True:
        page = client.get("/v1/runs", limit=PAGE, before=before)["runs"]
        for one in page:
            if any(digest.startswith(held["token"]) for held in one["tokens"]):
                return str(one["run"])
        if len(page) < PAGE or page[-1]["created_at"] == before:
            stop(CHECK_FAILED, "no run has such a token; onceproxy runs RUN lists those of one")
        before = page[-1]["created_at"]


def _below(
    client: ControlClient, run: Mapping[str, Any], depth: int = 1
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The runs below one, each with how far below it is."""
    for child in run["children"]:
        found = client.get(run_path(unquote(child)))
        yield depth, found
        yield from _below(client, found, depth + 1)


def _as_tree(listed: Sequence[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Each run after the one above it; those whose parent is not in the list stand at the top."""
    known = {one["run"] for one in listed}
    below: dict[str | None, list[dict[str, Any]]] = {}
    for one in listed:
        below.setdefault(one["parent"] if one["parent"] in known else None, []).append(one)
    rows: list[tuple[int, dict[str, Any]]] = []
    todo = [(0, one) for one in reversed(below.get(None, []))]
    while todo:
        depth, one = todo.pop()
        rows.append((depth, one))
        todo += [(depth + 1, child) for child in reversed(below.get(one["run"], []))]
    return rows


def _print_list(rows: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
    print_table(
        ["RUN", "STATUS", "STARTS", "OPERATIONS", "LEFT", "BEGUN"],
        [
            [
                "  " * depth + one["run"],
                one["status"],
                one["epoch"],
                _counts(one["operations"]),
                _left(one["budget"]),
                moment(one["created_at"]),
            ]
            for depth, one in rows
        ],
    )


def _counts(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()) if count)


def _left(budget: Mapping[str, Mapping[str, int | None]]) -> str:
    """Of the units that are limited."""
    return ", ".join(
        f"{budget[unit]['remaining']} {unit}" for unit in UNITS if budget[unit]["limit"] is not None
    )


def _print_run(run: Mapping[str, Any]) -> None:
    rows: list[tuple[str, object]] = [
        ("run", run["run"]),
        ("status", run["status"]),
        ("starts", run["epoch"]),
        ("begun", moment(run["created_at"])),
        ("by", run["by"]),
        ("above", run["parent"]),
        ("below", ", ".join(run["children"])),
        ("input", run["input_digest"]),
        ("operations", _counts(run["operations"])),
        ("conflicts", run["conflicts"] or None),
    ]
    checkpoint, closed, revoked = run["checkpoint"], run["closed"], run["revoked"]
    if checkpoint is not None:
        at = moment(checkpoint["saved_at"])
        rows.append(("checkpoint", f"version {checkpoint['version']}, saved {at}"))
    if closed is not None:
        rows.append(("closed", f"{moment(closed['at'])} as {closed['outcome']}, by {closed['by']}"))
    if revoked is not None:
        at = moment(revoked["at"])
        rows.append(("revoked", f"{at} by {revoked['by']}: {revoked['reason']}"))
    for token in run["tokens"]:
        ended = "" if token["revoked"] is None else f", revoked: {token['revoked']['reason']}"
        rows.append(("token", f"{token['token']} of start {token['epoch']}{ended}"))
    for name, value in rows:
        if value not in (None, ""):
            click.echo(f"{name:10}  {visible(value)}")
    click.echo()
    _print_budget(run["budget"])
    _print_next(run)


def _print_budget(budget: Mapping[str, Mapping[str, int | None]]) -> None:
    print_table(
        ["BUDGET", "USED", "LIMIT", "LEFT"],
        [
            [unit, told["used"], "none" if told["limit"] is None else told["limit"], left]
            for unit in UNITS
            for told in [budget[unit]]
            for left in [told["remaining"]]
        ],
    )


def _print_next(run: Mapping[str, Any]) -> None:
    """What a person may want to do now."""
    name, states = visible(run["run"]), run["operations"]
    if run["revoked"] is not None or run["closed"] is not None:
        click.echo(f"\nto let it go on: onceproxy revoke {name} --undo")
    if states.get("unknown"):
        click.echo(f"\nto see what is unknown: onceproxy ops --run {name} --state unknown")
    if states.get("awaiting_approval"):
        click.echo("\nsomething waits for a person: onceproxy approvals --state waiting")


def _segment(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")
