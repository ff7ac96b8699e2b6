"""One file of certificates for all clients: the roots they would have trusted, and the local CA.

The variables replace a client's roots instead of adding to them, so the file must hold both.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

CA_VARIABLES = (
    "SSL_CERT_FILE",  # OpenSSL: httpx, aiohttp, urllib, curl
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "AWS_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
)
_USUAL = (  # where distributions keep their roots, for a Python that was built elsewhere
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
BUNDLE = "ca-bundle.pem"


def write_bundle(
    state_dir: Path, authority: Path, environ: Mapping[str, str] | None = None
) -> Path:
    """The merged file in the state directory. A bundle that the user's own variables name is part
    of it. Raises OSError."""
    environ = os.environ if environ is None else environ
    bundle = state_dir / BUNDLE
    parts = [authority.read_text("ascii").strip()]
    for source in _sources(environ):
        if source != bundle and source.is_file():
            text = source.read_text("utf-8", "replace").strip()
            if text not in parts:
                parts.append(text)
    temporary = bundle.with_name(f".{bundle.name}.{os.getpid()}")
    temporary.write_text("\n".join(parts) + "\n", "utf-8")
    temporary.replace(bundle)  # whole, since a client may be reading the earlier one
    return bundle


def _sources(environ: Mapping[str, str]) -> list[Path]:
    named = [Path(environ[name]) for name in CA_VARIABLES if environ.get(name)]
    return [*named, *system_roots()]


def system_roots() -> list[Path]:
    """The file of roots this machine trusts, if one is found."""
    built_in = ssl.get_default_verify_paths().cafile
    for candidate in (built_in, *_USUAL):
        if candidate and Path(candidate).is_file():
            return [Path(candidate)]
    try:
        import certifi
    except ImportError:
        return []
    return [Path(certifi.where())]
