"""``rules``: list, test, explain and begin rule files. Needs no running proxy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from proxy.cli.common import (
    CHECK_FAILED,
    CONFIG,
    PORT,
    json_option,
    print_json,
    print_table,
    stop,
    visible,
    with_config,
)
from proxy.cli.generate import generate
from proxy.cli.newrules import new_file
from proxy.configload import Loaded
from proxy.rulefile import RuleErrors, json_schema, load
from proxy.rulefile.explain import explain as explain_call
from proxy.rulefile.loader import RuleFile, load_file, load_files
from proxy.rulefile.testing import run_examples
from proxy.service.operations import describe_rules


@click.group()
def rules() -> None:
    """List, test and explain rules."""


rules.add_command(generate)


@rules.command("list", short_help="List the endpoints of all rule files.")
@json_option
@with_config
def list_rules(loaded: Loaded, as_json: bool) -> None:
    """List the endpoints of all rule files, in the order in which they are tried."""
    try:
        found = describe_rules(
            load(loaded.config.rule_dirs, loaded.config.models, loaded.config.mcp).services
        )
    except RuleErrors as error:
        stop(CONFIG, *error.problems)
    if as_json:
        print_json(found)
        return
    print_table(
        ["SERVICE", "ENDPOINT", "EFFECT", "KEY", "SETTLES BY", "CONFIDENCE", "MODE"],
        [
            [
                one["service"],
                one["endpoint"],
                one["effect"],
                one["key"] or "-",
                one["settles_by"],
                one["confidence"],
                one["mode"],
            ]
            for one in found
        ],
    )


@rules.command(short_help="Run the examples of rule files.")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
@with_config
def test(loaded: Loaded, files: Sequence[Path], as_json: bool) -> None:
    """Run the examples of FILES, or of all rule files. Exits with 1 if one fails, with 3 if a file
    is faulty."""
    try:
        results = run_examples(_read(loaded, files))
    except RuleErrors as error:
        stop(CONFIG, *error.problems)
    failed = [result for result in results if result.problems]
    if as_json:
        print_json([{"example": r.title, "problems": list(r.problems)} for r in results])
    else:
        for result in failed:
            for problem in result.problems:
                click.echo(f"{result.title}: {problem}")
        examples = "1 example" if len(results) == 1 else f"{len(results)} examples"
        click.echo(f"{examples}, {len(failed)} failed")
    sys.exit(CHECK_FAILED if failed else 0)


@rules.command()
@click.argument("method")
@click.argument("url")
@click.option("-H", "--header", "headers", metavar="'NAME: VALUE'", multiple=True)
@click.option("-d", "--data", default="", help="The body; @FILE reads a file.")
@json_option
@with_config
def explain(
    loaded: Loaded, method: str, url: str, headers: Sequence[str], data: str, as_json: bool
) -> None:
    """Say what would be done with a call, and why. Nothing is sent.

    For a rule directory that the configuration does not name: --set rules=DIRECTORY.
    """
    body = Path(data[1:]).read_bytes() if data.startswith("@") else data.encode()
    try:
        lines = explain_call(
            load(loaded.config.rule_dirs, loaded.config.models, loaded.config.mcp),
            method,
            url,
            tuple(_header(one) for one in headers),
            body,
        )
    except RuleErrors as error:
        stop(CONFIG, *error.problems)
    except ValueError as error:
        example = "https://api.example.com/v1/things"
        raise click.UsageError(f"URL is a whole http or https URL, such as {example}") from error
    if as_json:
        print_json([{"name": name, "value": value} for name, value in lines])
        return
    for name, value in lines:
        click.echo(f"{name + ':':18} {visible(value)}")


@rules.command(short_help="Begin a rule file.")
@click.argument("service")
@click.option("--host", required=True, help="Where it is called, such as api.example.com.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Where the file goes; name it under rules: in the configuration.  [default: here]",
)
def new(service: str, host: str, directory: Path) -> None:
    """Write SERVICE.yaml to begin with, with an example that `rules test` runs."""
    file = directory / f"{service}.yaml"
    try:
        text = new_file(service, host)
        directory.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as out:
            out.write(text)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except FileExistsError:
        stop(CHECK_FAILED, f"{file} is there already")
    except OSError as error:
        stop(PORT, f"{file}: {error.strerror}")
    click.echo(f"{file} written; next: onceproxy rules test {file}")


@rules.command()
def schema() -> None:
    """Print the JSON Schema of rule files, for editors."""
    print_json(json_schema())


def _read(loaded: Loaded, files: Sequence[Path]) -> list[RuleFile]:
    return [load_file(file) for file in files] or load_files(loaded.config.rule_dirs)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise click.UsageError("--header is written 'NAME: VALUE'")
    return name.strip(), value.strip()
