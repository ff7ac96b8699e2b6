"""``doctor``: would the proxy do well on this machine, with this configuration?"""

from __future__ import annotations

import os

import click

from proxy.cli.common import CHECK_FAILED, json_option, print_json, stop, visible, with_config
from proxy.configload import Loaded

SIGNS = {"ok": "ok  ", "warning": "warn", "failed": "FAIL"}


@click.command()
@click.option(
    "--offline", is_flag=True, help="Do not connect to a service that the own rules name."
)
@json_option
@with_config
def doctor(loaded: Loaded, offline: bool, as_json: bool) -> None:
    """Look at this machine and this configuration; each fault has a line that mends it.

    Changes nothing, and sends nothing but connection attempts. Exit code 1 if a check failed;
    warnings do not count.
    """
    from proxy.cli.checks import examine

    found = examine(loaded, os.environ, online=not offline)
    failed = [one for one in found if one.state == "failed"]
    if as_json:
        print_json(
            {
                "ok": not failed,
                "checks": [
                    {"check": one.name, "state": one.state, "found": one.found, "fix": one.fix}
                    for one in found
                ],
            }
        )
    else:
        for one in found:
            click.echo(f"{SIGNS[one.state]}  {one.name}: {visible(one.found)}")
            if one.fix:
                click.echo(f"      -> {visible(one.fix)}")
        worth = sum(one.state == "warning" for one in found)
        click.echo(f"{len(found)} checks, {len(failed)} failed, {worth} warnings")
    if failed:
        stop(CHECK_FAILED)
