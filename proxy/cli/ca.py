"""``ca``: the certificate that clients have to trust, and the variables that make them."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from proxy.cli.bundle import CA_VARIABLES, write_bundle
from proxy.cli.common import CONFIG, json_option, print_json, stop, with_config
from proxy.configload import Loaded


@click.group()
def ca() -> None:
    """The local certificate authority."""


@ca.command()
@json_option
@with_config
def path(loaded: Loaded, as_json: bool) -> None:
    """Print the file with the CA's certificate; it is made if there is none yet."""
    certificate = authority_file(loaded)
    if as_json:
        print_json({"ca_cert": str(certificate)})
    else:
        click.echo(certificate)


@ca.command()
@json_option
@with_config
def env(loaded: Loaded, as_json: bool) -> None:
    """Print the variables that make clients trust the CA, for `eval` in a shell."""
    bundle = write_bundle(loaded.config.state_dir, authority_file(loaded))
    variables = dict.fromkeys(CA_VARIABLES, str(bundle))
    if as_json:
        print_json(variables)
        return
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")


def authority_file(loaded: Loaded) -> Path:
    """The CA's certificate, from the configuration or made in the state directory."""
    config = loaded.config
    if config.tls.ca_cert_file is not None:
        return config.tls.ca_cert_file
    from proxy.net.tls import CERT_FILE, CaError, CertificateAuthority

    certificate = config.ca_dir / CERT_FILE
    if not certificate.exists():
        if config.tls.intercept == "rules":
            stop(CONFIG, "with tls.intercept: rules the CA is made by serve: start it once")
        try:
            CertificateAuthority.open(config.ca_dir)
        except (CaError, OSError) as error:
            stop(CONFIG, str(error))
    return certificate
