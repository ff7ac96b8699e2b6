"""``prune``: take what is older than it has to be kept."""

from __future__ import annotations

import asyncio

import click

from proxy.cli.client import ControlClient, NotRunning
from proxy.cli.common import LEDGER, json_option, print_json, stop, talks, with_config
from proxy.configload import Loaded


@click.command()
@json_option
@with_config
@talks
def prune(loaded: Loaded, as_json: bool) -> None:
    """Take bodies and recorded answers of models older than ledger.keep_outcomes and checkpoints
    older than runs.checkpoints_kept_for, and forget keys older than ledger.keep_keys.

    The running proxy does it, as it does by itself every hour; without one this command does. What
    is in flight or unknown is never touched.
    """
    try:
        pruned = ControlClient(loaded.config).post("/v1/ledger/prune", {})
    except NotRunning:
        pruned = _here(loaded)
    if as_json:
        print_json(pruned)
        return
    click.echo(
        f"bodies of {pruned['bodies']} operations taken, {pruned['keys']} keys forgotten, "
        f"{pruned['checkpoints']} checkpoints and {pruned['answers']} answers of models taken"
    )


def _here(loaded: Loaded) -> dict[str, int]:
    from proxy.app import prune_alone
    from proxy.ledger.base import LedgerError

    if not loaded.config.ledger_path.is_file():
        stop(LEDGER, f"there is no ledger {loaded.config.ledger_path}")
    try:
        return asyncio.run(prune_alone(loaded.config)).as_json()
    except LedgerError as error:
        stop(LEDGER, str(error))
