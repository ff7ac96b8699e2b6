"""The local CA over its life (S11): constraints that follow the rules, renewal, rotation, and what
that means for clients in Python and Node that run meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from proxy.net import tls
from proxy.net.bundle import renew_bundle, write_bundle
from proxy.net.tls import (
    EARLIER_KEPT,
    Authorities,
    CaError,
    CertificateAuthority,
    earlier_files,
    rotate,
)
from tests import reliability
from tests.fakes.door import Echo, open_door
from tests.fakes.served import onceproxy
from tests.fakes.tlsclients import NODE_BINARY, Client
from tests.fakes.whole import Door, whole

DAY = 86_400.0
PART = "Security"
NOW = datetime.now(UTC).timestamp()
CLIENTS = [
    "python",
    pytest.param("node", marks=pytest.mark.skipif(not NODE_BINARY, reason="no node")),
]

RULES = """
service: company
hosts: [{hosts}]
source: https://docs.test
confidence: documented
key: none
answers: [{{status: 409, means: rejected}}]
endpoints:
  things.create: {{match: POST /things, external_id: id}}
"""


def constraints(pem: bytes) -> x509.Extension[x509.NameConstraints]:
    certificate = x509.load_pem_x509_certificate(pem)
    return certificate.extensions.get_extension_for_class(x509.NameConstraints)


def certificates(bundle: Path) -> list[bytes]:
    own = bundle.read_text().partition("# The certificates above")[0]
    return [
        c.public_bytes(tls.serialization.Encoding.PEM)
        for c in x509.load_pem_x509_certificates(own.encode())
    ]


# The rules' hosts, and clients that were there before they changed


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_reload_for_other_hosts_renews_the_constraints(tmp_path: Path, client: str) -> None:
    one, two, three = "api.one.test:443", "two.test:443", "10.9.8.7:443"
    rule_file = tmp_path / "rules" / "service.yaml"
    # The shipped rules as well: dozens of hosts in the constraints.
    rules = RULES.format(hosts='"*.one.test"')
    async with whole(tmp_path, rules, tls={"intercept": "rules"}) as door:
        file = door.state_dir / "ca" / "ca.pem"
        first = file.read_bytes()
        found = constraints(first)
        assert found.critical
        assert x509.DNSName("one.test") in (found.value.permitted_subtrees or [])
        bundle = write_bundle(door.state_dir, file, {})
        async with Client(client, bundle, door.port, tmp_path) as early:
            assert await early.tries(one) == "trusted"
            assert await early.tries(two) != "trusted"  # not the rules', so passed on unread

            rule_file.write_text(RULES.format(hosts='"*.one.test", two.test, "10.9.8.7"'))
            await reloaded(door)
            second = file.read_bytes()
            assert second != first
            assert constraints(second).critical
            assert certificates(bundle) == [second, first]
            assert await early.tries(one) == "trusted"  # it goes on as before
            # New hosts are a new CA's, which a client that runs cannot know.
            assert (await early.tries(two)).startswith("refused")
            async with Client(client, bundle, door.port, tmp_path) as later:
                for host in (one, two, three):
                    assert await later.tries(host) == "trusted", host

                rule_file.write_text(RULES.format(hosts="two.test"))
                await reloaded(door)
                assert await later.tries(two) == "trusted"
                assert await later.tries(one) != "trusted"  # not opened any more
        third = file.read_bytes()
        assert certificates(bundle)[0] == third
        reliability.figure(
            "S11", "clients over a change of the constraints", part=PART, handshakes=8, cut_off=0
        )
        assert x509.DNSName("one.test") not in (constraints(third).value.permitted_subtrees or [])


async def reloaded(door: Door) -> None:
    status, found = await door.ask("POST", "/v1/rules/reload")
    assert status == 200, found


async def test_a_restart_for_other_hosts_does_not_cut_off_clients_either(tmp_path: Path) -> None:
    Authorities(tmp_path / "ca", names=["a.test"])
    before = (tmp_path / "ca" / "ca.pem").read_bytes()
    again = Authorities(tmp_path / "ca", names=["a.test", "b.test"])
    assert again.current.pem != before
    trusting = ssl.create_default_context(cadata=before.decode())
    assert shakes(again, "a.test", trusting) is None
    assert "certificate verify failed" in str(shakes(again, "b.test", trusting))
    assert stat.S_IMODE((earlier_files(tmp_path / "ca")[0]).stat().st_mode) == 0o644
    for key in (tmp_path / "ca").glob("*-key.pem"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_an_authority_for_all_hosts_does_not_outlive_the_wish_for_constraints(
    tmp_path: Path,
) -> None:
    Authorities(tmp_path / "ca")
    constrained = Authorities(tmp_path / "ca", names=["a.test"])
    assert earlier_files(tmp_path / "ca") == []
    assert list((tmp_path / "ca").glob("earlier-*")) == []
    assert not constrained.current.may_sign("evil.test")
    # The other way round nothing is lost.
    free = Authorities(tmp_path / "ca")
    assert len(earlier_files(tmp_path / "ca")) == 1
    trusting = ssl.create_default_context(cadata=constrained.current.pem.decode())
    assert shakes(free, "a.test", trusting) is None


def test_what_an_authority_may_sign_is_what_clients_believe(tmp_path: Path) -> None:
    names = ["stripe.test", "*.github.test", "10.0.0.7", "fd00::7"]
    authority = CertificateAuthority.open(tmp_path / "ca", names=names)
    trusting = ssl.create_default_context(cadata=authority.pem.decode())
    for host in (
        "stripe.test", "api.stripe.test", "github.test", "a.b.github.test", "10.0.0.7", "fd00::7",
        "evil.test", "notstripe.test", "test", "10.0.0.8", "127.0.0.1", "::1",
    ):  # fmt: skip
        believed = shakes(authority, host, trusting) is None
        assert authority.may_sign(host) is believed, host


def test_many_reloads_leave_few_authorities(tmp_path: Path) -> None:
    authorities = Authorities(tmp_path / "ca", names=["0.test"])
    for number in range(1, EARLIER_KEPT + 4):
        authorities.refresh([f"{number}.test"])
    assert len(earlier_files(tmp_path / "ca")) == EARLIER_KEPT
    assert len(list((tmp_path / "ca").iterdir())) == 2 * EARLIER_KEPT + 2


# Age


def test_the_periods_are_those_promised(tmp_path: Path) -> None:
    authority = CertificateAuthority.open(tmp_path / "ca")
    certificate = authority.certificate
    assert certificate.not_valid_after_utc - certificate.not_valid_before_utc <= timedelta(days=90)
    leaf = authority.leaf("a.test", NOW)
    assert leaf.not_valid_after_utc - leaf.not_valid_before_utc <= timedelta(days=7)
    assert isinstance(certificate.public_key(), tls.ec.EllipticCurvePublicKey)


def test_a_proxy_that_runs_for_months_renews_and_never_serves_what_has_ended(
    tmp_path: Path,
) -> None:
    """Every client trusts what it found at its start, and is served for a month at least."""
    moment = [NOW]
    changes: list[float] = []
    authorities = Authorities(
        tmp_path / "ca", now=lambda: moment[0], on_change=lambda: changes.append(moment[0])
    )
    trusted: list[tuple[float, set[bytes]]] = []
    for day in range(0, 250, 2):
        moment[0] = NOW + day * DAY
        authorities.context("a.test")
        bundle = {authorities.current.pem}
        bundle |= {file.read_bytes() for file in earlier_files(tmp_path / "ca")}
        trusted.append((moment[0], bundle))
        signer = signer_of(authorities, "a.test")
        assert signer.certificate.not_valid_after_utc.timestamp() > moment[0]
        leaf = signer.leaf("a.test", moment[0])
        assert leaf.not_valid_after_utc.timestamp() > moment[0]
        for started, roots in trusted:
            if moment[0] - started <= 28 * DAY:
                assert signer.pem in roots, (day, (moment[0] - started) / DAY)
    assert len(changes) == 3 or len(changes) == 4


def signer_of(authorities: Authorities, host: str) -> CertificateAuthority:
    context = authorities.context(host)
    for each in (*authorities._earlier, authorities.current):
        if any(made is context for _, made in each._contexts.values()):
            return each
    raise AssertionError("nobody made it")


def test_a_disk_that_refuses_the_renewal_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    moment = [NOW]
    authorities = Authorities(tmp_path / "ca", now=lambda: moment[0])
    before = authorities.current

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tls, "_replace", full)
    moment[0] += 70 * DAY
    for _ in range(3):
        authorities.context("a.test")
    assert authorities.current is before
    assert len([r for r in caplog.records if "cannot be renewed" in r.getMessage()]) == 1
    monkeypatch.undo()
    moment[0] += DAY
    authorities.context("a.test")
    assert authorities.current is not before


# Rotation


@pytest.mark.parametrize("client", CLIENTS)
async def test_rotation_with_clients_that_run(tmp_path: Path, client: str) -> None:
    authorities = Authorities(tmp_path / "ca")
    bundle = write_bundle(tmp_path, tmp_path / "ca" / "ca.pem", {})
    async with (
        open_door(Echo(), ca=authorities) as door,
        Client(client, bundle, door.port, tmp_path) as early,
    ):
        assert await early.tries("a.test:443") == "trusted"
        rotate(tmp_path / "ca", names=None)
        renew_bundle(tmp_path, tmp_path / "ca" / "ca.pem")
        # The proxy that runs goes on with the earlier one: all clients are served.
        assert await early.tries("b.test:443") == "trusted"
        async with Client(client, bundle, door.port, tmp_path) as later:
            assert await later.tries("c.test:443") == "trusted"
            authorities.refresh(None)  # SIGHUP
            assert await later.tries("d.test:443") == "trusted"
            assert (await early.tries("e.test:443")).startswith("refused")
    assert list((tmp_path / "ca").glob("earlier-*-key.pem")) == []


async def test_rotate_is_a_command_and_revoke_leaves_no_trust(tmp_path: Path) -> None:
    arguments = ["--state-dir", str(tmp_path)]
    made = onceproxy("ca", "path", *arguments)
    assert made.returncode == 0, made.stderr
    first = Path(made.stdout.strip()).read_bytes()
    rotated = onceproxy("ca", "rotate", "--json", *arguments)
    assert rotated.returncode == 0, rotated.stderr
    bundle = Path(json.loads(rotated.stdout)["bundle"])
    second = (tmp_path / "ca" / "ca.pem").read_bytes()
    assert certificates(bundle) == [second, first]
    revoked = onceproxy("ca", "rotate", "--revoke", *arguments)
    assert revoked.returncode == 0, revoked.stderr
    assert certificates(bundle) == [(tmp_path / "ca" / "ca.pem").read_bytes()]
    assert list((tmp_path / "ca").glob("earlier-*")) == []
    told = onceproxy("ca", "env", "--json", *arguments)
    variables = json.loads(told.stdout)
    assert set(variables.values()) == {str(bundle)}
    assert {"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"} <= set(variables)


def test_a_ca_of_ones_own_is_not_rotated(tmp_path: Path) -> None:
    CertificateAuthority.open(tmp_path / "mine")
    config = tmp_path / "onceproxy.yaml"
    config.write_text("tls: {ca_cert_file: mine/ca.pem, ca_key_file: mine/ca-key.pem}\n")
    before = (tmp_path / "mine" / "ca.pem").read_bytes()
    refused = onceproxy("ca", "rotate", "--config", str(config), "--state-dir", str(tmp_path / "s"))
    assert refused.returncode == 3
    assert "your own" in refused.stderr
    assert (tmp_path / "mine" / "ca.pem").read_bytes() == before


@pytest.mark.parametrize("moment", range(5))
def test_a_crash_in_the_middle_of_a_change_leaves_an_authority_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    Authorities(tmp_path / "ca", names=["a.test"])
    before = (tmp_path / "ca" / "ca.pem").read_bytes()
    written = []

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    def until(path: Path, data: bytes, mode: int) -> None:
        if len(written) == moment:
            crash()
        written.append(path)
        real(path, data, mode)

    real = tls._replace
    monkeypatch.setattr(tls, "_replace", until)
    if moment == 4:  # everything is written, and the last file has no name yet
        real_finish, calls = tls._finish, []

        def finish(directory: Path) -> None:
            calls.append(directory)
            crash() if len(calls) == 2 else real_finish(directory)

        monkeypatch.setattr(tls, "_finish", finish)
    with pytest.raises(KeyboardInterrupt):
        Authorities(tmp_path / "ca", names=["a.test", "b.test"])
    monkeypatch.undo()
    after = Authorities(tmp_path / "ca", names=["a.test", "b.test"])
    assert shakes(after, "b.test", trusting(after)) is None
    assert shakes(after, "a.test", ssl.create_default_context(cadata=before.decode())) is None


def test_keys_that_others_can_read_are_refused_wherever_they_are(tmp_path: Path) -> None:
    Authorities(tmp_path / "ca", names=["a.test"])
    Authorities(tmp_path / "ca", names=["b.test"])
    [key] = (tmp_path / "ca").glob("earlier-*-key.pem")
    key.chmod(0o644)
    authorities = Authorities(tmp_path / "ca", names=["b.test"])
    assert authorities._earlier == []
    (tmp_path / "ca" / "ca-key.pem").chmod(0o644)
    with pytest.raises(CaError, match="chmod 600"):
        Authorities(tmp_path / "ca", names=["b.test"])


def trusting(authorities: Authorities) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authorities.current.pem.decode())


def shakes(
    server: Authorities | CertificateAuthority, host: str, context: ssl.SSLContext
) -> ssl.SSLError | None:
    """A handshake in memory; what the client objected to."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname=host)
    answering = server.context(host).wrap_bio(to_server, to_client, server_side=True)
    try:
        for _ in range(4):
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
            with contextlib.suppress(ssl.SSLWantReadError):
                answering.do_handshake()
    except ssl.SSLError as error:
        return error
    return None
