"""``helper``: the two files that put step ids on an agent's calls."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from proxy.cli.common import PORT, json_option, print_json, stop

HELPERS = ("onceproxy_step.py", "preload.cjs")


def helpers_dir() -> Path:
    return Path(__file__).parent.parent / "helpers"


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--config", hidden=True, expose_value=False)  # needs none, and takes it like all
@json_option
def helper(directory: Path, as_json: bool) -> None:
    """Write onceproxy_step.py (Python) and preload.cjs (Node) into DIRECTORY.

    Python: put DIRECTORY on PYTHONPATH. Node: NODE_OPTIONS="--require DIRECTORY/preload.cjs".
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        written = [str(shutil.copyfile(helpers_dir() / name, directory / name)) for name in HELPERS]
    except OSError as error:
        stop(PORT, f"{directory}: {error.strerror}")
    if as_json:
        print_json(written)
    else:
        click.echo("\n".join(written))
