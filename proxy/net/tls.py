"""The local certificate authority and the certificates it makes for intercepted hosts.

The authority's key never leaves its file (0600, in a 0700 directory) and signs nothing but leaf
certificates. Those have a key of their own, made anew by each process, so that a handshake never
uses the authority's key; they live a week and are replaced at half of that.

An authority that is replaced (it nears its end, or the hosts it may speak for have changed) is kept
as an *earlier* one: clients that were started while it was in force know no other, so it goes on
signing for them. Clients that are started later trust all of them.
"""

from __future__ import annotations

import datetime
import ipaddress
import logging
import os
import ssl
import stat
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CERT_FILE = "ca.pem"
KEY_FILE = "ca-key.pem"
NEXT_FILE = "ca-next.pem"  # a new certificate, until its key is in place

EARLIER = "earlier-"  # before a serial number, in the names of files

CA_DAYS = 90  # short, because it is renewed by itself
RENEW_DAYS = 30  # an authority this close to its end is replaced; clients may run on for as long
LEAF_DAYS = 7  # from notBefore, the backdating included; 30 is the most that is promised
EARLIER_KEPT = 8  # authorities; each reload of rules for other hosts makes one
RETRY_SECONDS = 3600.0  # between two tries to renew, where the disk refuses
BACKDATE_DAYS = 1  # clocks in containers and sandboxes run late
CACHE = 256  # contexts kept; about 50 kB each

_DAY = 86_400.0

log = logging.getLogger(__name__)


class CaError(Exception):
    """The authority cannot be used; the text says what to do."""


class Certificates(Protocol):
    """What hands out the certificates of a tunnel's end."""

    def context(self, host: str) -> ssl.SSLContext: ...


class CertificateAuthority:
    """Signs leaf certificates, and keeps a ready ``SSLContext`` per host."""

    def __init__(
        self,
        certificate: x509.Certificate,
        key: CertificateIssuerPrivateKeyTypes,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``now``: seconds since the epoch. Raises CaError if key and certificate do not match."""
        if _public(certificate.public_key()) != _public(key.public_key()):
            raise CaError("the CA's key and certificate do not belong together")
        self.certificate = certificate
        self._key = key
        self._now = now
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._contexts: OrderedDict[str, tuple[float, ssl.SSLContext]] = OrderedDict()

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        names: Sequence[str] | None = None,
        now: Callable[[], float] = time.time,
    ) -> CertificateAuthority:
        """The authority in ``directory``, made on first use, replaced when it is about to end or
        was made for other names. ``names``: the only hosts it may speak for (a name covers its
        subdomains, addresses count too); None: all. Raises CaError, OSError."""
        certificate_file, key_file = directory / CERT_FILE, directory / KEY_FILE
        _finish(directory)
        if certificate_file.exists() and key_file.exists():
            authority = cls.load(certificate_file, key_file, now=now)
            if authority.lasts(RENEW_DAYS) and authority.speaks_for(names):
                return authority
        return cls.replace(directory, names=names, now=now)

    @classmethod
    def replace(
        cls,
        directory: Path,
        *,
        names: Sequence[str] | None = None,
        keep_key: bool = True,
        now: Callable[[], float] = time.time,
    ) -> CertificateAuthority:
        """A new authority in ``directory``; the one that is there becomes an earlier one, which
        signs no more without ``keep_key``. Raises CaError, OSError."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        certificate_file, key_file = directory / CERT_FILE, directory / KEY_FILE
        if certificate_file.exists() and key_file.exists():
            known = cls.load(certificate_file, key_file, now=now)
            # Copied first: a crash in between leaves an authority that is both, and no harm.
            earlier = directory / f"{EARLIER}{known.certificate.serial_number:x}.pem"
            _replace(earlier, certificate_file.read_bytes(), 0o644)
            if keep_key:
                _replace(_key_of(earlier), key_file.read_bytes(), 0o600)
        certificate, key = create(names, now())
        encoded = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        _replace(directory / NEXT_FILE, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
        _replace(key_file, encoded, 0o600)
        _finish(directory)
        return cls(certificate, key, now=now)

    @classmethod
    def load(
        cls, certificate_file: Path, key_file: Path, *, now: Callable[[], float] = time.time
    ) -> CertificateAuthority:
        """An authority from its files. Raises CaError if they cannot be used or others can read the
        key."""
        try:
            mode = stat.S_IMODE(key_file.stat().st_mode)
            if mode & 0o077:
                raise CaError(
                    f"{key_file} can be read by others: run chmod 600 on it, or have a new CA made"
                )
            certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
            key = serialization.load_pem_private_key(key_file.read_bytes(), None)
        except OSError as error:
            raise CaError(f"the CA's files cannot be read: {error}") from None
        except (ValueError, TypeError) as error:
            raise CaError(
                f"{certificate_file} and {key_file} are not a PEM certificate and an unencrypted "
                f"PEM key: {error}"
            ) from None
        try:
            constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        except x509.ExtensionNotFound:
            raise CaError(f"{certificate_file} is not the certificate of a CA") from None
        if not constraints.value.ca:
            raise CaError(f"{certificate_file} is not the certificate of a CA")
        if not isinstance(key, ec.EllipticCurvePrivateKey) and not hasattr(key, "sign"):
            raise CaError(f"{key_file} holds a key that cannot sign")
        return cls(certificate, key, now=now)  # type: ignore[arg-type]

    @property
    def pem(self) -> bytes:
        """The certificate that clients have to trust."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def lasts(self, days: float) -> bool:
        return self.certificate.not_valid_after_utc.timestamp() - self._now() > days * _DAY

    def speaks_for(self, names: Sequence[str] | None) -> bool:
        """True if its name constraints are exactly these."""
        try:
            extension = self.certificate.extensions.get_extension_for_class(x509.NameConstraints)
        except x509.ExtensionNotFound:
            return names is None
        return names is not None and extension.value == _constraints(names)

    def may_sign(self, host: str) -> bool:
        """True if its name constraints permit a certificate for ``host``."""
        try:
            extension = self.certificate.extensions.get_extension_for_class(x509.NameConstraints)
        except x509.ExtensionNotFound:
            return True
        return any(_permits(one, host) for one in extension.value.permitted_subtrees or ())

    def context(self, host: str) -> ssl.SSLContext:
        """A server's context with a certificate for ``host`` (a name or an address)."""
        now = self._now()
        known = self._contexts.get(host)
        if known is not None and now < known[0]:
            self._contexts.move_to_end(host)
            return known[1]
        context = self._context(host, now)
        self._contexts[host] = (now + LEAF_DAYS / 2 * _DAY, context)
        self._contexts.move_to_end(host)
        if len(self._contexts) > CACHE:
            self._contexts.popitem(last=False)
        return context

    def leaf(self, host: str, now: float) -> x509.Certificate:
        """A certificate for ``host``, valid from a day before ``now`` on."""
        start = _moment(now - BACKDATE_DAYS * _DAY)
        end = min(start + datetime.timedelta(days=LEAF_DAYS), self.certificate.not_valid_after_utc)
        name = _name(host)
        subject = []
        if isinstance(name, x509.IPAddress):
            # OpenSSL takes a common name for a DNS name, which the constraints would forbid.
            subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "onceproxy")]
        elif len(host) < 64:
            subject = [x509.NameAttribute(NameOID.COMMON_NAME, host)]
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=False,
            crl_sign=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(subject))
            .issuer_name(self.certificate.subject)
            .public_key(self._leaf_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
            # RFC 5280 4.2.1.6: critical where there is no subject.
            .add_extension(x509.SubjectAlternativeName([name]), critical=not subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._leaf_key.public_key()),
                critical=False,
            )
            .add_extension(self._issuer_id(), critical=False)
        )
        return builder.sign(self._key, _hash(self._key))

    def _context(self, host: str, now: float) -> ssl.SSLContext:
        chain = self.leaf(host, now).public_bytes(serialization.Encoding.PEM) + self.pem
        key = self._leaf_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        with _readable(key + chain) as path:
            context.load_cert_chain(path)
        return context

    def _issuer_id(self) -> x509.AuthorityKeyIdentifier:
        """Copied from the issuer, not computed: strict verifiers compare the bytes."""
        try:
            extension = self.certificate.extensions.get_extension_for_class(
                x509.SubjectKeyIdentifier
            )
        except x509.ExtensionNotFound:
            return x509.AuthorityKeyIdentifier.from_issuer_public_key(
                self.certificate.public_key()  # type: ignore[arg-type]
            )
        return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(extension.value)


class Authorities:
    """The authority in force and the earlier ones, oldest first."""

    def __init__(
        self,
        directory: Path,
        *,
        names: Sequence[str] | None = None,
        now: Callable[[], float] = time.time,
        on_change: Callable[[], object] = lambda: None,
    ) -> None:
        """``names`` as for ``CertificateAuthority.open``. ``on_change`` is called when clients that
        start from now on have another one to trust. Raises CaError, OSError."""
        self._directory = directory
        self._names = names
        self._now = now
        self._on_change = on_change
        self._retry_at = 0.0
        self.current, self._earlier = self._read(())

    def refresh(self, names: Sequence[str] | None) -> None:
        """Look at the files again, where another process may have put a new authority, and make one
        if the hosts are others now. Raises CaError, OSError."""
        self._names = names
        before = self.current
        self.current, self._earlier = self._read((before, *self._earlier))
        if self.current is not before:
            self._on_change()

    def context(self, host: str) -> ssl.SSLContext:
        """A server's context for ``host``, by the oldest authority that may speak for it: that one
        is trusted by all clients that can trust any."""
        if not self.current.lasts(RENEW_DAYS) and self._now() >= self._retry_at:
            self._retry_at = self._now() + RETRY_SECONDS
            try:
                self.refresh(self._names)
            except (CaError, OSError) as error:
                log.error("the local CA nears its end and cannot be renewed: %s", error)
        for authority in self._earlier:
            if authority.lasts(BACKDATE_DAYS) and authority.may_sign(host):
                return authority.context(host)
        return self.current.context(host)

    def _read(
        self, known: Sequence[CertificateAuthority]
    ) -> tuple[CertificateAuthority, list[CertificateAuthority]]:
        current = CertificateAuthority.open(self._directory, names=self._names, now=self._now)
        earlier = []
        for file in earlier_files(self._directory):
            authority = self._usable(file)
            if authority is None:
                _key_of(file).unlink(missing_ok=True)
                file.unlink(missing_ok=True)
            elif authority is not False:
                earlier.append(authority)
        earlier.sort(key=lambda each: each.certificate.not_valid_before_utc)
        for authority in earlier[:-EARLIER_KEPT]:
            file = self._directory / f"{EARLIER}{authority.certificate.serial_number:x}.pem"
            _key_of(file).unlink(missing_ok=True)
            file.unlink(missing_ok=True)
        held = {each.pem: each for each in known}  # with the contexts that they have made
        kept = [held.get(each.pem, each) for each in earlier[-EARLIER_KEPT:]]
        kept = [each for each in kept if each.pem != current.pem]
        return held.get(current.pem, current), kept

    def _usable(self, file: Path) -> CertificateAuthority | Literal[False] | None:
        """An earlier authority; False where only its certificate is left, for clients to trust;
        None where it is of no more use: ended, or free to speak for any host where this is not
        wanted any more."""
        try:
            certificate = x509.load_pem_x509_certificate(file.read_bytes())
            if certificate.not_valid_after_utc.timestamp() <= self._now():
                return None
            constrained = any(
                isinstance(extension.value, x509.NameConstraints)
                for extension in certificate.extensions
            )
            if self._names is not None and not constrained:
                return None
            if not _key_of(file).exists():
                return False
            return CertificateAuthority.load(file, _key_of(file), now=self._now)
        except (CaError, OSError, ValueError) as error:
            log.warning("an earlier CA cannot be used: %s", error)
            return False


def earlier_files(directory: Path) -> list[Path]:
    """The certificates of earlier authorities."""
    return sorted(f for f in directory.glob(f"{EARLIER}*.pem") if not f.stem.endswith("-key"))


def rotate(
    directory: Path,
    *,
    names: Sequence[str] | None,
    revoke: bool = False,
    now: Callable[[], float] = time.time,
) -> None:
    """A new authority; earlier ones sign no more once their processes have ended or reloaded.
    Clients go on trusting them until their end, or with ``revoke`` from their next start on no
    longer. Raises CaError, OSError."""
    CertificateAuthority.replace(directory, names=names, keep_key=False, now=now)
    for file in earlier_files(directory):
        _key_of(file).unlink(missing_ok=True)
        if revoke:
            file.unlink()


def _finish(directory: Path) -> None:
    """The second half of a change: the certificate follows its key, also after a crash between the
    two. One whose key never came is dropped."""
    following = directory / NEXT_FILE
    if not following.exists():
        return
    try:
        CertificateAuthority.load(following, directory / KEY_FILE)
    except CaError:
        following.unlink(missing_ok=True)
    else:
        following.replace(directory / CERT_FILE)


def _key_of(earlier: Path) -> Path:
    return earlier.with_name(f"{earlier.stem}-key.pem")


def create(
    names: Sequence[str] | None, now: float
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A new authority, P-256."""
    key = ec.generate_private_key(ec.SECP256R1())
    start = _moment(now - BACKDATE_DAYS * _DAY)
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "onceproxy"),
            # Unique, so that a client which still trusts an older one does not mix them up.
            x509.NameAttribute(NameOID.COMMON_NAME, f"onceproxy local CA {os.urandom(4).hex()}"),
        ]
    )
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if names is not None:
        builder = builder.add_extension(_constraints(names), critical=True)
    return builder.sign(key, hashes.SHA256()), key


def _constraints(names: Sequence[str]) -> x509.NameConstraints:
    """Addresses have to be excluded expressly: a list of names alone leaves them all open."""
    permitted: list[x509.GeneralName] = []
    versions = set()
    for name in sorted(set(names)):
        try:
            network = ipaddress.ip_network(name)
        except ValueError:
            permitted.append(x509.DNSName(name.removeprefix("*.")))
        else:
            versions.add(network.version)
            permitted.append(x509.IPAddress(network))
    if not any(isinstance(name, x509.DNSName) for name in permitted):
        permitted.append(x509.DNSName("invalid"))  # RFC 6761: never resolves, so: no name at all
    everything = ((4, "0.0.0.0/0"), (6, "::/0"))
    excluded = [
        x509.IPAddress(ipaddress.ip_network(text))
        for version, text in everything
        if version not in versions
    ]
    return x509.NameConstraints(permitted, excluded or None)


def _permits(subtree: x509.GeneralName, host: str) -> bool:
    if isinstance(subtree, x509.DNSName):
        return host == subtree.value or host.endswith(f".{subtree.value}")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    network = subtree.value if isinstance(subtree, x509.IPAddress) else None
    if not isinstance(network, (ipaddress.IPv4Network, ipaddress.IPv6Network)):
        return False
    return address.version == network.version and address in network


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _moment(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)


def _hash(key: CertificateIssuerPrivateKeyTypes) -> hashes.SHA256 | None:
    return None if type(key).__name__.startswith(("Ed25519", "Ed448")) else hashes.SHA256()


def _public(key: object) -> bytes:
    encoded = key.public_bytes(  # type: ignore[attr-defined]
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert isinstance(encoded, bytes)
    return encoded


def _replace(path: Path, data: bytes, mode: int) -> None:
    """Writes a file whole or not at all; it has its mode before it has its bytes."""
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        os.fchmod(handle, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def _readable(data: bytes) -> Iterator[str]:
    """A path under which ``data`` can be read for a moment; in memory where the system has that."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("leaf", os.MFD_CLOEXEC)
        try:
            os.write(handle, data)
            yield f"/proc/self/fd/{handle}"
        finally:
            os.close(handle)
        return
    with tempfile.NamedTemporaryFile() as file:  # 0600 by its nature
        file.write(data)
        file.flush()
        yield file.name
