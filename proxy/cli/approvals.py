"""``approvals``, ``approve``, ``deny``: what waits for a person, and their word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import click

from proxy.cli.client import ControlClient
from proxy.cli.common import (
    json_option,
    moment,
    print_json,
    print_table,
    talks,
    visible,
    with_config,
)
from proxy.configload import Loaded
from proxy.core.operation import Consent


@click.command()
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([str(state) for state in Consent]),
    help="Only this state; may be repeated.",
)
@json_option
@with_config
@talks
def approvals(loaded: Loaded, states: Sequence[str], as_json: bool) -> None:
    """List what waits for a person and what was decided, newest first."""
    client = ControlClient(loaded.config)
    found = client.get("/v1/approvals", state=",".join(states))["approvals"]
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("no approvals" if not states else f"no approvals are {' or '.join(states)}")
        return
    print_table(
        ["ID", "STATE", "EXPIRES", "WHAT", "OPERATION"],
        [
            [one["id"], one["state"], moment(one["expires_at"]), one["summary"], one["operation"]]
            for one in found
        ],
    )
    if any(one["state"] == "waiting" for one in found):
        click.echo("\nto decide: onceproxy approve ID, or onceproxy deny ID --note WHY")


@click.command()
@click.argument("number", metavar="ID")
@click.option("--note", help="Kept in the history.")
@click.option("--by", help="Who says so, beside the name of the token.")
@json_option
@with_config
@talks
def approve(loaded: Loaded, number: str, note: str | None, by: str | None, as_json: bool) -> None:
    """Allow one call, exactly as it was asked for.

    This sends nothing: the call that is held for it is sent, or the next one that is the same.
    """
    told = _decide(loaded, number, "grant", note, by)
    if as_json:
        print_json(told)
        return
    _print_approval(told)
    click.echo("\nthe call that is held for it is sent now, or the next one that is the same")
    click.echo(f"to take it back before that: onceproxy revoke --approval {visible(told['id'])}")


@click.command()
@click.argument("number", metavar="ID")
@click.option("--note", required=True, help="Why; the agent is told.")
@click.option("--by", help="Who says so, beside the name of the token.")
@json_option
@with_config
@talks
def deny(loaded: Loaded, number: str, note: str, by: str | None, as_json: bool) -> None:
    """Refuse one call; the agent is told why."""
    told = _decide(loaded, number, "deny", note, by)
    if as_json:
        print_json(told)
        return
    _print_approval(told)
    click.echo("\nthe agent is told so when it makes the call again, or at once if it is held")


def _decide(
    loaded: Loaded, number: str, act: str, note: str | None, by: str | None
) -> dict[str, Any]:
    body = {name: value for name, value in (("note", note), ("by", by)) if value}
    told = ControlClient(loaded.config).post(f"/v1/approvals/{quote(number, safe='')}/{act}", body)
    assert isinstance(told, dict)
    return told


def _print_approval(told: Mapping[str, Any]) -> None:
    request = told["request"]
    rows = [
        ("id", told["id"]),
        ("state", told["state"]),
        ("what", told["summary"]),
        ("operation", told["operation"]),
        ("request", f"{request['method']} {request['url']}"),
        ("expires", moment(told["expires_at"])),
        ("by", told["by"]),
        ("note", told["note"]),
    ]
    for name, value in rows:
        if value not in (None, ""):
            click.echo(f"{name:10}  {visible(value)}")
