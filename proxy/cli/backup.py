"""``backup``, ``restore``, ``gap``: copies of the ledger, and what a restored one may lack."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import click

from proxy.cli.client import ControlClient
from proxy.cli.common import LEDGER, json_option, print_json, stop, talks, with_config
from proxy.configload import Loaded


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@json_option
@with_config
def backup(loaded: Loaded, file: Path, as_json: bool) -> None:
    """Copy the ledger into FILE, also while a proxy works with it.

    The copy is whole: every operation in it has its events, as they were at one moment. The key is
    not in it, keep that apart.
    """
    from proxy.ledger.backup import copy
    from proxy.ledger.base import LedgerError

    config = loaded.config
    try:
        made = copy(config.ledger_path, file, time.time())
    except LedgerError as error:
        stop(LEDGER, str(error))
    if as_json:
        print_json(
            {
                "file": str(made.file),
                "size": made.size,
                "sha256": made.sha256,
                "operations": made.operations,
                "events": made.events,
                "generation": made.generation,
                "key_file": str(config.ledger_key_path),
            }
        )
        return
    click.echo(
        f"{made.file}: {made.operations} operations, {made.events} events, {made.size} bytes"
    )
    click.echo(f"sha256 {made.sha256}")
    click.echo(f"the key is not in it; keep {config.ledger_key_path} in another place")


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@json_option
@with_config
def restore(loaded: Loaded, file: Path, as_json: bool) -> None:
    """Put FILE, made by `backup`, in the place of the ledger; no proxy may be running.

    What was there is kept under another name. The restored ledger does not know what was sent after
    the backup: calls of runs that it may have missed are asked about before they are sent, see
    `onceproxy gap`.
    """
    from proxy.ledger.backup import restore as put_back
    from proxy.ledger.base import LedgerError
    from proxy.ledger.seal import load_keys

    config = loaded.config
    try:
        config.ledger_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = load_keys(config.ledger_key_path, create=False)
        kept = put_back(file, config.ledger_path, key, time.time())
    except LedgerError as error:
        stop(LEDGER, str(error))
    except OSError as error:
        stop(LEDGER, f"{config.ledger_path.parent}: {error.strerror}")
    if as_json:
        print_json({"ledger": str(config.ledger_path), "kept": [str(path) for path in kept]})
        return
    click.echo(f"{config.ledger_path} is the backup now; the next start begins a new generation")
    for path in kept:
        click.echo(f"kept {path}")


@click.command()
@click.option("--close", is_flag=True, help="No run from before will come back: ask no more.")
@json_option
@with_config
@talks
def gap(loaded: Loaded, close: bool, as_json: bool) -> None:
    """Show of which time the ledger may not know everything, after it was restored or lost.

    While there is a gap, a write of a run that did not begin in this ledger is queried first, sent
    under a key that the API still honours, or left to a person.
    """
    client = ControlClient(loaded.config)
    life = client.post("/v1/ledger/gap/close", {}) if close else client.get("/v1/ledger")
    if as_json:
        print_json(life)
        return
    found = life["gap"]
    if found is None:
        click.echo(f"no gap; life {life['lives']} of this ledger")
        return
    click.echo(f"may lack calls from {_moment(found['since'])} to {_moment(found['until'])}")
    click.echo("once no run from before will come back: onceproxy gap --close")


def _moment(seconds: float) -> str:
    from proxy.ledger.base import FAR_PAST

    if seconds <= FAR_PAST:
        return "its beginning"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
