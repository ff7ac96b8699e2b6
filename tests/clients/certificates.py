"""A test CA, and certificates of it for what stands upstream."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey


def make(folder: Path) -> tuple[Path, Path]:
    """Files: the CA's certificate; the server's certificate with its key."""
    authority = Authority(folder)
    return authority.file, authority.certificate("localhost", "127.0.0.1")


class Authority:
    """A CA that certifies any name. ``file``: its certificate."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self.file = folder / "upstream-ca.pem"
        made = _builder("onceproxy test CA", self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        signed = made.issuer_name(_name("onceproxy test CA")).sign(self._key, hashes.SHA256())
        self.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def certificate(self, *names: str) -> Path:
        """A server's certificate with its key; an address is a name too."""
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = (
            _builder(names[0], key)
            .issuer_name(_name("onceproxy test CA"))
            .add_extension(x509.SubjectAlternativeName([*map(_alternative, names)]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        file = self._folder / f"{names[0]}.pem"
        file.write_bytes(
            leaf.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return file


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: str, key: Key) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
