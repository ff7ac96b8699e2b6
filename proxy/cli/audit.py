"""``audit``: is the ledger as it was written, and its history for others to read."""

from __future__ import annotations

from pathlib import Path

import click

from proxy.cli.common import CHECK_FAILED, LEDGER, json_option, print_json, stop, with_config
from proxy.configload import Loaded


@click.group()
def audit() -> None:
    """Check the ledger's history, or write it out."""


@audit.command()
@click.option("--run", metavar="RUN", help="Only this run.")
@json_option
@with_config
def verify(loaded: Loaded, run: str | None, as_json: bool) -> None:
    """Check every event, row and body against its hash, and the end against the head file.

    Works beside a running proxy. Exit code 1: something was changed, removed or cut off; each
    line says what and where.
    """
    from proxy.core.identity import encode_part
    from proxy.ledger.audit import verify_file
    from proxy.ledger.base import LedgerError
    from proxy.ledger.seal import load_keys

    path = loaded.config.ledger_path
    try:
        key = load_keys(loaded.config.ledger_key_path, create=False)
        faults = verify_file(path, key, encode_part(run) if run is not None else None)
    except LedgerError as error:
        stop(LEDGER, str(error))
    if as_json:
        print_json({"ledger": str(path), "ok": not faults, "faults": faults})
    else:
        for fault in faults:
            click.echo(fault)
        click.echo(f"{path}: {f'{len(faults)} faults' if faults else 'as it was written'}")
    if faults:
        stop(CHECK_FAILED)


@audit.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--run", metavar="RUN", help="Only this run.")
@json_option
@with_config
def export(loaded: Loaded, file: Path, run: str | None, as_json: bool) -> None:
    """Write the history into FILE as JSON lines, and its digest into FILE.sha256.

    Bodies are not part of it. `sha256sum -c FILE.sha256` checks the copy.
    """
    from proxy.core.identity import encode_part
    from proxy.ledger.audit import export as write
    from proxy.ledger.base import LedgerError

    try:
        scope = encode_part(run) if run is not None else None
        made = write(loaded.config.ledger_path, file, scope)
    except LedgerError as error:
        stop(LEDGER, str(error))
    if as_json:
        print_json(
            {
                "file": str(made.file),
                "digest_file": str(made.digest_file),
                "events": made.events,
                "sha256": made.sha256,
            }
        )
        return
    click.echo(f"{made.file}: {made.events} events, sha256 {made.sha256}")
