"""``rules generate``: rule files from the models that vendors publish."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from proxy.cli.common import CHECK_FAILED, PORT, stop
from proxy.rulefile.generate import CannotGenerate, Pack, Selection, from_botocore, from_discovery

Make = Callable[[Path, str, Selection, str], Pack]


@click.group()
def generate() -> None:
    """Write rule files from machine-readable descriptions of APIs.

    They say which member of a request is the API's idempotency token, where it stands and what it
    may hold. The same description gives the same file.
    """


def _options(command: Callable[..., None]) -> Callable[..., None]:
    of_file: Any = click.Path(file_okay=False, path_type=Path)
    today = datetime.datetime.now(datetime.UTC).date().isoformat
    for option in (
        click.option(
            "--checked", default=today, help="The day that the files name.  [default: today]"
        ),
        click.option(
            "--directory", type=of_file, default=Path(), help="Where the files go.  [default: here]"
        ),
        click.option(
            "--except",
            "without",
            multiple=True,
            metavar="NAME",
            help="Operations to leave out; * for any text.",
        ),
        click.option(
            "--only",
            multiple=True,
            metavar="NAME",
            help="Operations to take; * for any text.  [default: all]",
        ),
    ):
        command = option(command)
    return command


@generate.command(short_help="From botocore's service models.")
@click.option(
    "--model",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The directory botocore/data.",
)
@click.option(
    "--service", "services", multiple=True, help="As botocore names it: ecs.  [default: all]"
)
@_options
def aws(model: Path, services: Sequence[str], **chosen: Any) -> None:
    """Write aws-SERVICE.yaml for each service with idempotency tokens."""
    known = sorted(each.name for each in model.iterdir() if each.is_dir())
    _write(from_botocore, model, services, known, **chosen)


@generate.command(short_help="From Google's discovery documents.")
@click.option(
    "--discovery",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The directory googleapiclient/discovery_cache/documents.",
)
@click.option(
    "--service", "services", multiple=True, help="Name and version: compute.v1.  [default: all]"
)
@_options
def google(discovery: Path, services: Sequence[str], **chosen: Any) -> None:
    """Write google-SERVICE.yaml for each API whose methods take a requestId."""
    known = sorted(each.stem for each in discovery.glob("*.v[0-9]*.json"))
    known = [name for name in known if "alpha" not in name and "beta" not in name]
    _write(from_discovery, discovery, services, known, **chosen)


def _write(
    make: Make,
    source: Path,
    services: Sequence[str],
    known: Sequence[str],
    *,
    only: tuple[str, ...],
    without: tuple[str, ...],
    directory: Path,
    checked: str,
) -> None:
    for service in services or known:
        try:
            pack = make(source, service, Selection(only, without), checked)
        except CannotGenerate as error:
            if services:
                stop(CHECK_FAILED, str(error))
            continue  # most have no such operation
        file = directory / f"{pack.service}.yaml"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            file.write_text(pack.text, "utf-8")
        except OSError as error:
            stop(PORT, f"{file}: {error.strerror}")
        plural = "" if pack.operations == 1 else "s"
        click.echo(f"{file}: {pack.operations} operation{plural}")
