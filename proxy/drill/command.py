"""The commands ``onceproxy drill`` and ``onceproxy demo``."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click

from proxy.drill.demo import demo, teller
from proxy.drill.drill import Options, drill
from proxy.drill.lines import POINTS
from proxy.drill.processes import DrillError
from proxy.drill.targets import TOY_PATHS, Foreign

FAILED = 1  # exit code: a check failed


@click.command("drill")
@click.option("--point", "points", multiple=True, type=click.Choice(list(POINTS)), help="Only it.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(TOY_PATHS)), help="Only it.")
@click.option("--random", "kills", type=click.IntRange(1), help="Instead: kills at random moments.")
@click.option("--seed", type=int, help="Repeats the choices of an earlier --random.")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Side by side.")
@click.option("--ledger", default="sqlite:ledger.db", show_default=True, help="As ledger.url.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of the table.")
@click.option("--keep", is_flag=True, help="Leave ledgers and logs in place.")
@click.option("--upstream", metavar="URL", help="A server of your own instead of the toy API.")
@click.option("--rules", type=click.Path(exists=True, path_type=Path), help="Its rule file.")
@click.option("--send", metavar="'METHOD /PATH'", help="The write; {reference} names it.")
@click.option("--body", metavar="TEXT", default="", help="JSON or form; contains {reference}.")
@click.option("--header", "headers", metavar="'NAME: VALUE'", multiple=True, help="For both calls.")
@click.option("--count", metavar="'GET /PATH'", help="Lists what was made; a test server only.")
@click.option("--within", default=10.0, help="Seconds to wait for that server to answer.")
@click.option("--items", metavar="PATH", help="Where the list is in that answer (JMESPath).")
def drill_command(
    points: Sequence[str],
    kinds: Sequence[str],
    kills: int | None,
    seed: int | None,
    jobs: int,
    ledger: str,
    as_json: bool,
    keep: bool,
    upstream: str | None,
    rules: Path | None,
    send: str | None,
    body: str,
    headers: Sequence[str],
    count: str | None,
    items: str | None,
    within: float,
) -> None:
    """Kill the proxy at every point against every kind of API, restart, resume, and count effects.

    Exits with 1 unless every line holds. With --upstream the same is done to a test server that
    knows nothing of it; it needs --rules, --kind, --send, --body and --count.
    """
    with tempfile.TemporaryDirectory(prefix="onceproxy-rules-") as folder:
        foreign = None
        if upstream is not None:
            if rules is None or send is None or count is None or len(kinds) != 1:
                raise click.UsageError("--upstream needs --rules, one --kind, --send and --count")
            if "{reference}" not in send + body:
                raise click.UsageError("{reference} must stand in --send or --body")
            foreign = Foreign(
                upstream.rstrip("/"),
                _folder_of(rules, Path(folder)),
                kinds[0],
                send,
                body,
                count,
                items,
                dict(_header(text) for text in headers),
            )
        options = Options(
            points=tuple(points),
            kinds=tuple(kinds),
            random=kills or 0,
            seed=seed,
            jobs=jobs,
            json=as_json,
            keep=keep,
            ledger=ledger,
            foreign=foreign,
            within=within,
        )
        try:
            holds = asyncio.run(drill(options, click.echo))
        except DrillError as error:
            raise click.ClickException(str(error)) from error
    sys.exit(0 if holds else FAILED)


def _folder_of(rules: Path, folder: Path) -> Path:
    """The folder that the proxy is given: a file goes into one of its own."""
    if rules.is_dir():
        return rules.resolve()
    shutil.copy(rules, folder)
    return folder


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise click.UsageError("--header is written 'NAME: VALUE'")
    return name.strip(), value.strip()


@click.command("demo")
@click.option("--json", "as_json", is_flag=True, help="One JSON object at the end, no story.")
def demo_command(as_json: bool) -> None:
    """The refund that was paid twice, then the same story with onceproxy. Takes some seconds."""
    tell = teller()
    if as_json:
        tell.write = lambda _: None
    start = time.monotonic()
    try:
        once = asyncio.run(demo(tell))
    except DrillError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps({"holds": once, "seconds": round(time.monotonic() - start, 1)}))
    sys.exit(0 if once else FAILED)
