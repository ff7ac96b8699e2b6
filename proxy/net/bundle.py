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
    "HTTPLIB2_CA_CERTS",  # Google's API client for Python
    "NODE_EXTRA_CA_CERTS",
)
_USUAL = (  # where distributions keep their roots, for a Python that was built elsewhere
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
BUNDLE = "ca-bundle.pem"
OWN_END = "# The certificates above are onceproxy's; those below are the ones trusted without it.\n"


def write_bundle(
    state_dir: Path, authority: Path, environ: Mapping[str, str] | None = None
) -> Path:
    """The merged file in the state directory: the local CA and the earlier ones beside it, and what
    clients trust without it. A bundle that the user's own variables name is part of it. Raises
    OSError."""
    environ = os.environ if environ is None else environ
    bundle = state_dir / BUNDLE
    parts: list[str] = []
    for source in _sources(environ):
        if source != bundle and source.is_file():
            text = source.read_text("utf-8", "replace").strip()
            if text not in parts:
                parts.append(text)
    _write(bundle, authority, "\n".join(parts) + "\n")
    return bundle


def renew_bundle(state_dir: Path, authority: Path) -> None:
    """Have an existing merged file hold the CAs of now; nothing where there is none. Clients read
    it at their start. Raises OSError."""
    bundle = state_dir / BUNDLE
    if bundle.is_file():
        own, marked, rest = bundle.read_text("utf-8", "replace").partition(OWN_END)
        _write(bundle, authority, rest if marked else own)


def _write(bundle: Path, authority: Path, rest: str) -> None:
    beside = sorted(authority.parent.glob("earlier-*.pem")) if _is_own(bundle, authority) else []
    own = [authority, *(file for file in beside if not file.stem.endswith("-key"))]
    text = "".join(file.read_text("ascii").strip() + "\n" for file in own)
    temporary = bundle.with_name(f".{bundle.name}.{os.getpid()}")
    temporary.write_text(f"{text}{OWN_END}{rest}", "utf-8")
    temporary.replace(bundle)  # whole, since a client may be reading the earlier one


def _is_own(bundle: Path, authority: Path) -> bool:
    """Whether the CA is the one that is made here, and not the user's."""
    return authority.parent.parent == bundle.parent


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
