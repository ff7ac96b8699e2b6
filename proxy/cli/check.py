"""``check``: configuration and rules, without starting anything."""

from __future__ import annotations

import click
import yaml

from proxy.cli.common import CONFIG, json_option, print_json, stop, with_config
from proxy.configload import Loaded
from proxy.options import as_dict


@click.command()
@json_option
@with_config
def check(loaded: Loaded, as_json: bool) -> None:
    """Check configuration and rules, and print the configuration in effect, secrets masked."""
    from proxy.rulefile import RuleErrors, load

    try:
        config = loaded.config
        shipped = config.shipped_rule_dirs  # what is wrong in the user's own files comes first
        rules = load(config.rule_dirs, config.models, config.mcp, later=shipped)
        endpoints = sum(len(service.endpoints) for service in rules.services)
    except RuleErrors as error:
        stop(CONFIG, *error.problems)
    warnings = [*loaded.warnings, *rules.warnings]
    if as_json:
        print_json(
            {
                "config": as_dict(loaded.config),
                "origins": dict(loaded.origins),
                "rules": {"services": len(rules.services), "endpoints": endpoints},
                "warnings": warnings,
            }
        )
        return
    click.echo(yaml.safe_dump(as_dict(loaded.config), sort_keys=False).rstrip())
    for name, origin in loaded.origins.items():
        click.echo(f"# {name} from {origin}")
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"# rules: {len(rules.services)} services, {endpoints} endpoints")
    click.echo("ok")
