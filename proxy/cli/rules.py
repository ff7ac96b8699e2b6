"""``rules``: list, test, explain and begin rule files. Needs no running proxy."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from proxy.cli.common import (
    CHECK_FAILED,
    CONFIG,
    LEDGER,
    PORT,
    json_option,
    print_json,
    print_table,
    stop,
    visible,
    with_config,
)
from proxy.cli.generate import generate
from proxy.cli.newrules import named_after, new_file
from proxy.cli.seenrules import Seen, seen_file
from proxy.configload import Loaded
from proxy.core.coverage import is_generated, mechanism, settles_by, totals
from proxy.rulefile import RuleErrors, json_schema, load
from proxy.rulefile.complete import too_few
from proxy.rulefile.explain import explain as explain_call
from proxy.rulefile.loader import RuleFile, load_file, load_files
from proxy.rulefile.testing import run_examples
from proxy.service.operations import describe_rules


@click.group()
def rules() -> None:
    """List, test and explain rules."""


rules.add_command(generate)


@rules.command("list", short_help="List the endpoints of rule files.")
@click.argument("names", nargs=-1, metavar="[SERVICE]...")
@json_option
@with_config
def list_rules(loaded: Loaded, names: Sequence[str], as_json: bool) -> None:
    """List the endpoints of each SERVICE, or of all rule files, in the order in which they are
    tried: by what their service deduplicates or shows them, what settles a call whose answer is
    lost, and for how many that takes no person."""
    try:
        services = load(loaded.config.rule_dirs, loaded.config.models, loaded.config.mcp).services
    except RuleErrors as error:
        stop(CONFIG, *error.problems)
    unknown = sorted(set(names) - {service.name for service in services})
    if unknown:
        stop(CHECK_FAILED, *(f"there are no rules for {visible(name)}" for name in unknown))
    if names:
        services = tuple(service for service in services if service.name in names)
    if as_json:
        print_json(describe_rules(services))
        return
    print_table(
        ["SERVICE", "ENDPOINT", "EFFECT", "MECHANISM", "SETTLES BY", "CONFIDENCE", "MODE"],
        [
            [
                endpoint.service,
                endpoint.name,
                endpoint.effect,
                mechanism(endpoint),
                settles_by(endpoint),
                endpoint.confidence,
                endpoint.mode,
            ]
            for service in services
            for endpoint in service.endpoints
        ],
    )
    click.echo(f"\n{totals(services)}")
    written = [service for service in services if not is_generated(service)]
    if len(written) < len(services):
        click.echo(f"without the generated files: {totals(written)}")


@rules.command(short_help="Run the examples of rule files.")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--strict", is_flag=True, help="Fail also where an endpoint has too few examples.")
@json_option
@with_config
def test(loaded: Loaded, files: Sequence[Path], strict: bool, as_json: bool) -> None:
    """Run the examples of FILES, or of all rule files. Exits with 1 if one fails, with 3 if a file
    is faulty.

    --strict asks of every endpoint that writes for a success, an unknown end, what is placed, a hit
    and a miss of each lookup, and at least five such lines.
    """
    try:
        read = _read(loaded, files)
        results = [*run_examples(read), *(too_few(read) if strict else ())]
    except RuleErrors as error:
        stop(CONFIG, *error.problems)
    failed = [result for result in results if result.problems]
    if as_json:
        print_json([{"example": r.title, "problems": list(r.problems)} for r in results])
    else:
        for result in failed:
            for problem in result.problems:
                click.echo(f"{result.title}: {problem}")
        count = sum(not result.missing for result in results)
        examples = "1 example" if count == 1 else f"{count} examples"
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
@click.argument("service", required=False)
@click.option("--host", help="Where it is called, such as api.example.com.")
@click.option("--seen", metavar="HOST", help="The same, begun with the calls that were seen there.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Where the file goes; name it under rules: in the configuration.  [default: here]",
)
@with_config
def new(
    loaded: Loaded, service: str | None, host: str | None, seen: str | None, directory: Path
) -> None:
    """Write SERVICE.yaml to begin with, with examples that `rules test` runs.

    --seen makes an endpoint of each kind of write that the ledger holds of that host: its path,
    the names of its fields and its statuses, never a value.
    """
    if (host is None) == (seen is None):
        raise click.UsageError("one of --host and --seen")
    named = service or named_after(host or seen or "")
    file = directory / f"{named}.yaml"
    try:
        text = new_file(named, host or seen or "")
        if seen is not None:
            text = seen_file(named, seen, _seen_at(loaded, seen))
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


def _seen_at(loaded: Loaded, host: str) -> list[Seen]:
    from proxy.app import calls_to
    from proxy.ledger.base import LedgerError

    config = loaded.config
    if not config.ledger_path.is_file():
        stop(LEDGER, f"there is no ledger {config.ledger_path}; is it another --state-dir?")
    try:
        calls = asyncio.run(calls_to(config, host))
    except LedgerError as error:
        stop(LEDGER, str(error))
    if not calls:
        stop(
            CHECK_FAILED,
            f"no write to {host} is in the ledger: only calls that name their run are recorded. "
            f"Without them: onceproxy rules new SERVICE --host {host}",
        )
    return [Seen(request, answer) for request, answer in calls]


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
