"""``ops``, ``show``, ``resolve``, ``reconcile``: operations of the running proxy."""

from __future__ import annotations

import getpass
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from proxy.cli.client import ControlClient, operation_path
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
from proxy.core.operation import State
from proxy.service.resolution import RESOLUTIONS

NEXT = {
    "lag": "wait: it is too early to conclude that the effect is absent",
    "credentials": "repeat the call: a query needs its credentials, which are not stored",
    "query_failed": "look at the API: it did not answer the query; it is asked again",
    "no_query": "look at the service yourself, then use onceproxy resolve",
    "ambiguous": "look at the service yourself, then use onceproxy resolve",
    "key_expired": "look at the service yourself, then use onceproxy resolve",
}
"""What to do about an unknown operation, by ``blocked_by``; docs/operating.md says more."""


@click.command()
@click.option("--run", help="Only this run.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in State]),
    help="Only this state; may be repeated.",
)
@click.option("--service", help="Only this service.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@json_option
@with_config
@talks
def ops(
    loaded: Loaded,
    run: str | None,
    states: Sequence[str],
    service: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List operations, newest first."""
    found = ControlClient(loaded.config).get(
        "/v1/operations", run=run, state=",".join(states), service=service, limit=limit
    )["operations"]
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("no operations")
        return
    print_table(
        ["STATE", "SENT", "UPDATED", "EXTERNAL ID", "BLOCKED BY", "KEY"],
        [
            [
                one["state"],
                one["attempts"],
                moment(one["updated_at"]),
                one["external_id"],
                one["blocked_by"],
                one["key"],
            ]
            for one in found
        ],
    )


@click.command()
@click.argument("key")
@json_option
@with_config
@talks
def show(loaded: Loaded, key: str, as_json: bool) -> None:
    """Show one operation with its history. KEY is RUN/STEP/OPERATION/vN."""
    client = ControlClient(loaded.config)
    operation = client.get(operation_path(key))
    events = client.get(operation_path(key, "/history"))["events"]
    if as_json:
        print_json({"operation": operation, "events": events})
        return
    _print_operation(operation)
    click.echo()
    for event in events:
        data = {name: value for name, value in event["data"].items() if value not in (None, "")}
        told = " ".join(f"{name}={json.dumps(value)}" for name, value in data.items())
        click.echo(f"{moment(event['at'])}  {event['event']:20}  {visible(told)}".rstrip())


@click.command()
@click.argument("key")
@click.option(
    "--as", "as_", required=True, type=click.Choice(RESOLUTIONS), help="What became of it."
)
@click.option("--external-id", help="The id of what the API made; with happened.")
@click.option(
    "--response",
    type=click.File("r", encoding="utf-8"),
    help="JSON {status, headers, body}: the answer that later calls get; with happened.",
)
@click.option("--evidence", default="", help="How you know; kept in the history.")
@click.option("--by", default=None, help="Who says so.  [default: the name of this user]")
@click.option("--revision", type=int, help="Refuse if the operation has changed since.")
@json_option
@with_config
@talks
def resolve(
    loaded: Loaded,
    key: str,
    as_: str,
    external_id: str | None,
    response: Any,
    evidence: str,
    by: str | None,
    revision: int | None,
    as_json: bool,
) -> None:
    """Say what became of an operation whose outcome is not known.

    Nothing is sent by this. After did_not_happen the next call is sent; after happened and
    abandoned no call is sent again.
    """
    client = ControlClient(loaded.config)
    if revision is None:
        revision = client.get(operation_path(key))["revision"]
    body: dict[str, Any] = {
        "as": as_,
        "evidence": evidence,
        "by": by or getpass.getuser(),
        "revision": revision,
    }
    if external_id:
        body["external_id"] = external_id
    if response is not None:
        try:
            body["response"] = json.load(response)
        except ValueError as error:
            raise click.UsageError(
                f"--response: {Path(response.name)} is not JSON: {error}"
            ) from error
    _done(client.post(operation_path(key, "/resolve"), body), as_json)


@click.command()
@click.argument("key")
@json_option
@with_config
@talks
def reconcile(loaded: Loaded, key: str, as_json: bool) -> None:
    """Ask the API once more whether the effect exists.

    The operation is printed as it is then. It may still be unknown; `next` says what can be done.
    """
    _done(ControlClient(loaded.config).post(operation_path(key, "/reconcile"), {}), as_json)


def _done(operation: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(operation)
    else:
        _print_operation(operation)


def _print_operation(operation: dict[str, Any]) -> None:
    for name in (
        "key",
        "state",
        "blocked_by",
        "external_id",
        "how",
        "status",
        "attempts",
        "method",
        "url",
        "upstream_key",
        "marker",
        "revision",
    ):
        if operation.get(name) not in (None, ""):
            click.echo(f"{name:13} {visible(operation[name])}")
    if operation["state"] == "unknown" and operation.get("blocked_by") in NEXT:
        click.echo(f"{'next':13} {NEXT[operation['blocked_by']]}")
    for attempt in operation.get("attempt_list", ()):
        click.echo(f"{'attempt':13} {attempt['number']}: {_end_of(attempt, operation)}")


def _end_of(attempt: dict[str, Any], operation: dict[str, Any]) -> str:
    """How an attempt ended; its reason is older where a look or a person decided afterwards."""
    end, reason = attempt["end"] or "under way", visible(attempt["reason"])
    if not reason:
        return str(end)
    later = operation.get("how") in ("found", "resolved") and end in ("succeeded", "decided")
    return f"{end}, {operation['how']}; before that: {reason}" if later else f"{end}: {reason}"
