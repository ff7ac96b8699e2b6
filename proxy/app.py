"""The one place that knows every part: builds them from a configuration, starts and stops them.

Start: lock and open the ledger first, listen last, so that no call is taken that could not be
recorded. Stop: the other way round; calls that are under way get ``limits.drain`` to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from proxy import __version__, log
from proxy.approvals import Approvals
from proxy.authority import Rights
from proxy.callers import Callers
from proxy.capacity import room_for
from proxy.clock import Clock, SystemClock
from proxy.config import Address, Config, webhook_key
from proxy.configload import Loaded
from proxy.console.site import Console
from proxy.control.api import Control
from proxy.control.tokens import gather
from proxy.core.authority import Lists
from proxy.core.call import Policy
from proxy.core.decide import Limits
from proxy.core.matching import RuleSet
from proxy.core.model import Answer, Request, header
from proxy.core.refusal import CODES
from proxy.core.rules import Auth
from proxy.engine import Engine, Settings
from proxy.errors import ServiceError
from proxy.failpoints import Failpoints
from proxy.ledger.backup import copy
from proxy.ledger.base import Ledger, LedgerError, Query
from proxy.ledger.seal import load_keys
from proxy.ledger.sqlite import SqliteLedger
from proxy.metrics import Metrics
from proxy.net.bundle import renew_bundle
from proxy.net.connection import Waits
from proxy.net.egress import Egress
from proxy.net.exchange import Reply
from proxy.net.frontend import FrontDoor
from proxy.net.parsing import HeadLimits
from proxy.net.tls import CERT_FILE, Authorities, CaError, CertificateAuthority, Certificates
from proxy.net.upstream import Upstream
from proxy.notify import Notifier, Receiver
from proxy.recovery import Recovery
from proxy.retention import EVERY_SECONDS, Pruned, Retention, prune
from proxy.rulefile import RuleErrors, load
from proxy.service.approvals import ApprovalService
from proxy.service.checkpoints import CheckpointService
from proxy.service.operations import OperationService
from proxy.service.resume import Resumes
from proxy.service.runs import RunService
from proxy.service.services import Services
from proxy.tunnels import Tunnels

SEALED_AT_ONCE = 50  # bodies in one transaction: some milliseconds of the writing thread
SEALING_PAUSE = 0.05  # seconds in between, for the calls

SETTLE_SECONDS = 2.0  # between two rounds of background settling; each rule has its own patience
TRY_AGAIN_SECONDS = 1.0  # between two small writes to a ledger that failed

lines = structlog.get_logger(component="app")


@dataclass(frozen=True, slots=True)
class Started:
    """Where a proxy can be found."""

    listen: Address
    control: Address
    state_dir: Path
    ca_cert: Path | None
    probe: Address | None = None
    run_tokens: bool = False  # only calls with a run token are taken

    def as_json(self) -> dict[str, str | int | bool | None]:
        return {
            "listen": str(self.listen),
            "control": str(self.control),
            "state_dir": str(self.state_dir),
            "ca_cert": str(self.ca_cert) if self.ca_cert else None,
            "probe": str(self.probe) if self.probe else None,
            "run_tokens": self.run_tokens,
            "pid": os.getpid(),
            "version": __version__,
        }


class App:
    """One proxy. ``start`` raises what went wrong: RuleErrors, TokensUnusable,
    CaError, LedgerError, OSError; what was started by then is stopped again."""

    def __init__(
        self, loaded: Loaded, clock: Clock | None = None, *, restored: bool = False
    ) -> None:
        self._loaded = loaded
        self._config = loaded.config
        self._clock = clock or SystemClock()
        self._metrics = Metrics()
        self._rules = RuleSet(())
        self._restored = restored
        self._engine: Engine | None = None
        self._way_out: Upstream | None = None
        self._authorities: Authorities | None = None
        # Shared by all judges of addresses.
        self._own_ports = {address.port for address in self._config.listeners if address.port}
        self._stack = AsyncExitStack()
        self._not_ready: str | None = "starting"
        self._stop_by: float | None = None  # monotonic

    async def start(self) -> Started:
        async with AsyncExitStack() as stack:
            started = await self._start(stack)
            self._stack = stack.pop_all()
        self._not_ready = None
        return started

    async def stop(self) -> None:
        self._not_ready = "stopping"
        self._stop_by = self._clock.monotonic() + self._config.limits.drain
        await self._stack.aclose()

    async def reload(self) -> None:
        """Read the rule files again. Raises ServiceError; the rules then stay as they were."""
        try:
            rules = await asyncio.to_thread(self._load)
        except RuleErrors as error:
            self._metrics.reloaded(False, self._clock.time())
            lines.error("rules not reloaded", problems=error.problems)
            raise ServiceError(
                "invalid-rules", "The rule files have errors.", error.problems
            ) from error
        self._use(rules)
        self._refresh_authorities()
        lines.info("rules reloaded", services=len(rules.services), digest=rules.digest[:16])

    async def _start(self, stack: AsyncExitStack) -> Started:
        config, metrics = self._config, self._metrics
        config.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        tokens = gather(config.control, config.tokens_path)
        hidden = (*config.identity.secret, *config.notify.secret, config.notify.url)
        log.hide([*tokens.secrets, *(secret.reveal() for secret in filter(None, hidden))])
        failpoints = self._failpoints()
        self._use(await asyncio.to_thread(self._load))
        authority = self._authority()
        egress = self._egress()

        key = load_keys(config.ledger_key_path, create=not config.ledger_path.exists())
        ledger = SqliteLedger(
            config.ledger_path,
            key=key,
            clock=self._clock,
            observe=metrics.commit,
            restored=self._restored,
        )
        await ledger.open()
        stack.push_async_callback(ledger.close)
        for warning in (*ledger.alarms, *ledger.warnings, *self._loaded.warnings):
            lines.warning(warning)

        upstream = self._upstream(egress)
        await upstream.start()
        self._way_out = upstream
        stack.push_async_callback(upstream.close)

        engine = Engine(
            ledger=ledger,
            rules=self._rules,
            upstream=upstream,
            clock=self._clock,
            metrics=metrics,
            settings=self._settings(ledger.digest_key),
            rights=_rights(config),
            failpoints=failpoints,
        )
        self._engine = engine
        recovery = Recovery(engine)
        await recovery.start()
        stack.push_async_callback(lambda: engine.stop(self._drain()))
        if ledger.keys_in_use > 1:
            self._background(stack, "sealing", lambda: self._seal_anew(ledger))
        self._background(stack, "settling", lambda: self._keep_settling(recovery, engine.approvals))
        retention = _retention(config)
        self._background(stack, "retention", lambda: self._keep_pruning(ledger, retention))
        self._background(stack, "writing", lambda: self._keep_writing(ledger))
        self._background(stack, "gauges", lambda: metrics.keep_fresh(ledger, self._clock))

        await self._notify(stack, ledger)

        services = self._services(ledger, engine, recovery)
        console = Console(services=services, tokens=tokens, clock=self._clock)
        control = Control(
            services=services,
            metrics=metrics,
            tokens=tokens,
            not_ready=lambda: self._not_ready or ledger.trouble,
            hosts=(*config.control.hosts, config.control.listen.host),
            body_max=config.limits.kept_body,
            pages=console.mount,
        )
        stack.push_async_callback(control.stop)
        control_address = await control.start(config.control.listen, config.probe)

        for port in control.ports:
            self._own_port(port)
        door = self._front_door(
            Callers(engine), authority, Tunnels(engine, upstream.tunnel), egress
        )
        await door.start(config.listen.host, config.listen.port)
        stack.push_async_callback(lambda: door.stop(self._drain()))
        metrics.connections(lambda: door.room.open)

        started = Started(
            listen=Address(config.listen.host, door.port),
            control=control_address,
            state_dir=config.state_dir,
            ca_cert=config.tls.ca_cert_file or (config.ca_dir / CERT_FILE if authority else None),
            probe=control.probe,
            run_tokens=config.identity.tokens == "required",
        )
        _write_serving(config.serving_path, started)
        stack.callback(config.serving_path.unlink, missing_ok=True)
        return started

    async def _notify(self, stack: AsyncExitStack, ledger: Ledger) -> None:
        """Webhooks, if there is somebody to tell; before any call is taken."""
        options, upstream = self._config.notify, self._config.upstream
        if options.url is None:
            return
        sender = Upstream(
            ca_file=upstream.ca_file,
            proxy=upstream.proxy.reveal() if upstream.proxy else None,
            # The address is the operator's: private ones are open, as to hosts that a rule names.
            egress=Egress(named=lambda host, port: True, own_ports=self._own_ports),
            connect_timeout=upstream.connect_timeout,
            pseudonym=None,
        )
        await sender.start()
        stack.push_async_callback(sender.close)
        receiver = Receiver(
            url=options.url.reveal(),
            secrets=[webhook_key(secret) for secret in options.secret],
            events=options.events,
            console=options.console,
            timeout=options.timeout,
            keep_trying=options.keep_trying,
        )
        notifier = Notifier(ledger, self._clock, sender, receiver, self._metrics)
        await notifier.prepare()
        self._background(stack, "notify", notifier.run)

    def _services(self, ledger: SqliteLedger, engine: Engine, recovery: Recovery) -> Services:
        config, clock, authority = self._config, self._clock, engine.authority
        operations = OperationService(
            ledger=ledger,
            clock=clock,
            services=lambda: self._rules.services,
            settle=recovery.settle,
            reload=self.reload,
            retention=_retention(config),
        )
        runs = RunService(ledger=ledger, clock=clock, authority=authority)
        approvals = ApprovalService(
            ledger=ledger,
            clock=clock,
            services=lambda: self._rules.services,
            authority=authority,
            approvals=engine.approvals,
        )
        return Services(
            operations=operations,
            runs=runs,
            approvals=approvals,
            checkpoints=CheckpointService(
                ledger, kept=config.runs.checkpoints_kept, size_max=config.limits.checkpoint
            ),
            resumes=Resumes(ledger, clock, operations, runs, approvals),
        )

    def _refresh_authorities(self) -> None:
        """The certificates follow the rules' hosts; a new CA of `ca rotate` comes into force."""
        if self._authorities is not None:
            try:
                self._authorities.refresh(self._names())
            except (CaError, OSError) as error:
                lines.error("the local CA could not be renewed", why=str(error))

    def _drain(self) -> float:
        """What is left of the time for running calls; callers and sends share it."""
        if self._stop_by is None:
            return self._config.limits.drain
        return max(0.0, self._stop_by - self._clock.monotonic())

    def _load(self) -> RuleSet:
        config = self._config
        shipped = config.shipped_rule_dirs
        return load(config.rule_dirs, config.models, config.mcp, later=shipped)

    def _use(self, rules: RuleSet) -> None:
        other_hosts = rules.hosts != self._rules.hosts
        self._rules = rules
        if other_hosts and self._way_out is not None:
            self._way_out.forget()
        if self._engine is not None:
            self._engine.rules = rules
        for warning in rules.warnings:
            lines.warning(warning)
        self._metrics.reloaded(True, self._clock.time())

    def _failpoints(self) -> Failpoints:
        failpoints = Failpoints(self._config.faults, self._clock)
        self._metrics.faults_enabled(failpoints.enabled)
        if failpoints.warning:
            lines.warning(failpoints.warning)
        return failpoints

    def _authority(self) -> Certificates | None:
        tls = self._config.tls
        if tls.intercept == "none":
            return None
        if tls.ca_cert_file is not None and tls.ca_key_file is not None:
            return CertificateAuthority.load(tls.ca_cert_file, tls.ca_key_file)
        self._authorities = Authorities(
            self._config.ca_dir, names=self._names(), on_change=self._renew_bundle
        )
        self._renew_bundle()
        return self._authorities

    def _names(self) -> tuple[str, ...] | None:
        """The only names that the local CA may speak for."""
        return self._rules.names if self._config.tls.intercept == "rules" else None

    def _renew_bundle(self) -> None:
        try:
            renew_bundle(self._config.state_dir, self._config.ca_dir / CERT_FILE)
        except OSError as error:
            lines.warning("the CA bundle cannot be written", why=str(error))

    def _egress(self) -> Egress:
        config = self._config
        return Egress(
            allow=config.egress.allow,
            deny=config.egress.deny,
            named=self._knows_host,
            own_ports=self._own_ports,
        )

    def _own_port(self, port: int) -> None:
        """One that the system chose is known once it listens."""
        self._own_ports.add(port)

    def _upstream(self, egress: Egress) -> Upstream:
        options = self._config.upstream
        return Upstream(
            ca_file=options.ca_file,
            proxy=options.proxy.reveal() if options.proxy else None,
            egress=egress,
            connect_timeout=options.connect_timeout,
            answer_timeout=options.timeout,
            idle_timeout=options.idle_timeout,
        )

    def _settings(self, digest_key: bytes) -> Settings:
        config = self._config
        return Settings(
            policy=Policy(
                mode=config.mode,
                missing_identity=config.identity.missing,
                unruled=config.unruled.default,
                unruled_hosts=config.unruled.hosts,
                digest_key=digest_key,
            ),
            limits=Limits(send_timeout=config.upstream.timeout),
            patience=config.patience,
            request_body=config.limits.request_body,
            kept_body=config.limits.kept_body,
            secrets=[secret.reveal().encode() for secret in config.identity.secret],
            secret_of=secret_of,
            approval_wait=config.approval.wait,
            journal=config.runs.journal,
        )

    def _front_door(
        self,
        callers: Callers,
        authority: Certificates | None,
        tunnels: Tunnels,
        egress: Egress,
    ) -> FrontDoor:
        config, limits = self._config, self._config.limits
        return FrontDoor(
            self._metrics.measuring(callers.handle, self._clock, _outcome),
            self._metrics.measuring_at_once(callers.at_once, self._clock),
            ca=authority,
            intercept=config.tls.intercept,
            knows_host=self._knows_host,
            tunnel_hosts=config.tls.tunnel,
            dial=tunnels.open,
            gateways=[(g.listen.host, g.listen.port, g.to) for g in config.gateway],
            own_names=config.control.hosts,
            waits=Waits(
                head=limits.head_wait,
                piece=limits.body_idle,
                body=limits.body_wait,
                idle=limits.idle,
                write=limits.answer_idle,
            ),
            head_limits=HeadLimits(limits.head, limits.head_fields),
            connections=self._room(),
            run_calls=limits.run_calls,
            waiting_calls=limits.waiting_calls,
            on_tunnel=self._tunnelled,
            on_listening=self._own_port,
            on_turned_away=self._metrics.turned_away,
        )

    def _room(self) -> int:
        possible, warning = room_for(self._config.limits.connections)
        if warning is not None:
            lines.warning(warning)
        return possible

    def _knows_host(self, host: str, port: int) -> bool:
        return self._rules.knows_host(host, port)

    def _tunnelled(self, host: str, reason: str) -> None:
        kind = "ruled" if self._knows_host(host, 443) else "unruled"
        self._metrics.tunnel(kind)
        lines.info("seen, not protected", host=host, reason=reason)

    async def _keep_writing(self, ledger: Ledger) -> None:
        """A ledger that could not write is not ready, so that it may get no call to try with."""
        while True:
            await self._clock.sleep(TRY_AGAIN_SECONDS)
            await ledger.try_again()

    async def _seal_anew(self, ledger: SqliteLedger) -> None:
        """After a change of ledger.key_file: what earlier keys have sealed, piece by piece."""
        last: int | None = 0
        while last is not None:
            try:
                last = await ledger.reseal(last, SEALED_AT_ONCE)
            except LedgerError as error:
                lines.warning("bodies could not be sealed under the new key", why=str(error))
            await self._clock.sleep(SEALING_PAUSE)
        lines.info("all bodies are sealed under the first key: the key file's other lines can go")

    async def _keep_settling(self, recovery: Recovery, approvals: Approvals) -> None:
        while True:
            try:
                await recovery.settle_all()
                await approvals.expire()
            except Exception:
                lines.exception("settling failed")
            await self._clock.sleep(SETTLE_SECONDS)

    async def _keep_pruning(self, ledger: SqliteLedger, retention: Retention) -> None:
        while True:
            try:
                pruned = await prune(ledger, retention, self._clock)
                if pruned != Pruned():
                    lines.info("pruned", **pruned.as_json())
            except Exception:
                lines.exception("pruning failed")
            await self._clock.sleep(EVERY_SECONDS)

    def _background(
        self, stack: AsyncExitStack, name: str, work: Callable[[], Awaitable[None]]
    ) -> None:
        async def forever() -> None:
            await work()

        task = asyncio.get_running_loop().create_task(forever(), name=name)
        stack.push_async_callback(_cancelled, task)


async def serve(
    loaded: Loaded, ready: Callable[[Started], None], *, restored: bool = False
) -> None:
    """Run a proxy until SIGTERM or SIGINT; SIGHUP reloads the rules. Raises like App.start."""
    app = App(loaded, restored=restored)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    reloads: set[asyncio.Task[None]] = set()

    def stop() -> None:
        if stopping.is_set():
            os._exit(1)  # asked twice: the ledger is made for a proxy that dies at any moment
        stopping.set()

    def reload() -> None:
        task = loop.create_task(_reload(app))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    started = await app.start()
    log.catch_strays()
    try:
        loop.add_signal_handler(signal.SIGTERM, stop)
        loop.add_signal_handler(signal.SIGINT, stop)
        loop.add_signal_handler(signal.SIGHUP, reload)
        ready(started)
        await stopping.wait()
        lines.info("stopping", drain_seconds=loaded.config.limits.drain)
    finally:
        await app.stop()


async def prune_alone(config: Config) -> Pruned:
    """Apply the retention to a ledger that no proxy has open. Raises LedgerError."""
    clock = SystemClock()
    key = load_keys(config.ledger_key_path, create=False)
    ledger = SqliteLedger(config.ledger_path, key=key, clock=clock)
    await ledger.open()
    try:
        return await prune(ledger, _retention(config), clock)
    finally:
        await ledger.close()


async def calls_to(config: Config, host: str) -> list[tuple[Request, Answer | None]]:
    """The writes to a host that the ledger holds with their requests, newest first; also while a
    proxy works with it. Raises LedgerError."""
    clock = SystemClock()
    key = load_keys(config.ledger_key_path, create=False)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ledger.db"
        copy(config.ledger_path, file, clock.time())
        ledger = SqliteLedger(file, key=key, clock=clock)
        await ledger.open()
        try:
            found = []
            for operation in await ledger.operations(Query(limit=SEEN_MAX)):
                if urlsplit(operation.url).netloc.lower() != host.lower():
                    continue
                request = await ledger.request_of(operation.key)
                if request is not None:
                    found.append((request, await ledger.answer_of(operation.key)))
            return found
        finally:
            await ledger.close()


SEEN_MAX = 5000  # operations that a rule file is begun from; newer ones tell more


def _rights(config: Config) -> Rights:
    return Rights(
        lists=Lists(config.authority.allow, config.authority.deny),
        budget=config.budget.amounts(),
        tokens_required=config.identity.tokens == "required",
        fence=config.runs.fence,
    )


def _retention(config: Config) -> Retention:
    return Retention(
        config.ledger.keep_outcomes, config.ledger.keep_keys, config.runs.checkpoints_kept_for
    )


def secret_of(auth: Auth) -> str | None:
    """A rule's own credential, read when it is used so that it can be rotated; None if absent. Of
    AWS it is the id of the access key, its secret and perhaps a session token, one a line."""
    if auth.sigv4 and not auth.secret_file:
        parts = [os.environ.get(name, "") for name in AWS_NAMES]
        return "\n".join(part for part in parts if part) if parts[0] and parts[1] else None
    if auth.secret_env:
        return os.environ.get(auth.secret_env) or None
    if auth.secret_file:
        try:
            return Path(auth.secret_file).read_text("utf-8").strip() or None
        except (OSError, UnicodeDecodeError) as error:
            lines.warning("credential cannot be read", file=auth.secret_file, why=str(error))
    return None


AWS_NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


async def _reload(app: App) -> None:
    with contextlib.suppress(ServiceError):  # it is in the log, and there is nobody to tell
        await app.reload()


def _outcome(reply: Reply) -> str:
    word = header(reply.headers, "Onceproxy-Outcome") or ""
    unavailable = CODES["ledger-unavailable"].status  # no other refusal from there has it
    return "ledger_error" if word == "refused" and reply.status == unavailable else word


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _write_serving(path: Path, started: Started) -> None:
    data = started.as_json() | {"host": socket.gethostname()}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(data, indent=2) + "\n", "utf-8")
    temporary.replace(path)
