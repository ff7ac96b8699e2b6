"""Every option the proxy has, as frozen values. ``proxy.configload`` fills them.

These dataclasses are the single place where an option, its type and its default are written down.
Files, environment names, flags and ``config.example.yaml`` follow from them, and tests hold them to
it. pydantic validates against them when a configuration is loaded and is not imported before.
"""

from __future__ import annotations

import base64
import ipaddress
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, get_args
from urllib.parse import urlsplit

from proxy import units
from proxy.core import authority, egress
from proxy.core.runs import Unit
from proxy.failpoints import Fault, parse_faults


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that never shows: not in logs, errors or a printed configuration."""

    _text: str = field(repr=False)

    def reveal(self) -> str:
        return self._text

    def __str__(self) -> str:
        return "***"

    def __repr__(self) -> str:
        return "Secret(***)"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a socket listens; port 0 lets the system choose."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(value: object) -> Address:
    """``127.0.0.1:8901``, ``[::1]:8901``, ``localhost:8901``. Raises ValueError."""
    if isinstance(value, Address):
        return value
    host, _, port = str(value).rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("not an address: an IPv6 address goes in brackets, like [::1]:8901")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError("not an address: write HOST:PORT, for example 127.0.0.1:8901")
    return Address(host, int(port))


def _duration(value: object) -> float:
    if isinstance(value, bool) or (isinstance(value, (int, float)) and value != 0):
        raise ValueError(f"needs a unit: write {value}s if you mean seconds")
    return units.duration(str(value))


def _positive_duration(value: object) -> float:
    seconds = _duration(value)
    if seconds <= 0:
        raise ValueError("must be longer than 0")
    return seconds


def _retention(value: object) -> float:
    return units.retention(value) if isinstance(value, str) else _positive_duration(value)


def _size(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return units.size(str(value))


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1_000_000:
        raise ValueError("must be a whole number from 1 to 1000000")
    return value


def _amount(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 10**12:
        raise ValueError("must be a whole number, 0 or more")
    return value


def _authority_lines(value: object) -> tuple[authority.Line, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError('must be a list of lines such as {run: "*", service: stripe}')
    return tuple(
        item if isinstance(item, authority.Line) else authority.Line.parse(item) for item in value
    )


def _secret(value: object) -> Secret:
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a text that is not empty; put it in quotes")
    return Secret(value)


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _secrets(value: object) -> tuple[Secret, ...]:
    return tuple(_secret(item) for item in _listed(value))


def _paths(value: object) -> tuple[Path, ...]:
    items = _listed(value)
    if not all(isinstance(item, (str, Path)) for item in items):
        raise ValueError("must be a path or a list of paths")
    return tuple(Path(item) for item in items)


def _origin(value: object) -> str:
    text = str(value)
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ValueError("not an origin: write https://HOST or https://HOST:PORT")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("must end after host and port: the caller's path is appended to it")
    _ = parts.port  # raises ValueError where it is not a port
    return f"{parts.scheme}://{parts.netloc}"


def _mcp_url(value: object) -> str:
    text = str(value)
    parts = urlsplit(text)
    plain = text.isascii() and text.isprintable() and not set(' {}"\\') & set(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
        raise ValueError("not an address of an MCP server: write https://HOST/PATH")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("must be host and path alone, without credentials and query")
    port, default = parts.port, {"http": 80, "https": 443}[parts.scheme]
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    where = host if port in (None, default) else f"{host}:{port}"
    return f"{parts.scheme}://{where}{parts.path or '/'}"


def parent_address(url: Secret) -> Address:
    """Where a parent proxy listens. Raises ValueError if this is no address of one."""
    try:
        parts = urlsplit(url.reveal())
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        host, parts, port = None, urlsplit(""), 0
    if parts.scheme != "http" or not host or parts.path not in ("", "/") or parts.query:
        raise ValueError(
            "not a proxy address: write http://HOST:PORT or http://USER:PASS@HOST:PORT"
        )
    return Address(host, port)


def _proxy_url(value: object) -> Secret:
    secret = _secret(value)
    parent_address(secret)
    return secret


def _webhook_url(value: object) -> Secret:
    secret = _secret(value)
    webhook_origin(secret)
    return secret


def webhook_origin(url: Secret) -> Address:
    """Where a receiver of webhooks listens. Raises ValueError if this is no address of one."""
    text = url.reveal()
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, parts, port = None, urlsplit(""), None
    plain = text.isascii() and text.isprintable() and " " not in text
    if parts.scheme not in ("http", "https") or not host or not plain or parts.fragment:
        raise ValueError("not an address of a receiver: write https://HOST/PATH")
    if parts.username is not None:
        raise ValueError("holds a user name: the receiver knows us by the signature")
    return Address(host, port or (443 if parts.scheme == "https" else 80))


def webhook_key(secret: Secret) -> bytes:
    """The key that signs. As in Standard Webhooks, what follows ``whsec_`` is base64; any other
    text is taken as it is. Raises ValueError."""
    text = secret.reveal()
    if not text.startswith(WEBHOOK_SECRET):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(WEBHOOK_SECRET), validate=True)
    except ValueError:
        raise ValueError(f"what follows {WEBHOOK_SECRET} is not base64") from None


WEBHOOK_SECRET: Final = "whsec_"


def _ledger_url(value: object) -> str:
    text = str(value)
    if not text.startswith("sqlite:"):
        raise ValueError("this release keeps its ledger in SQLite: write sqlite:FILE")
    if not text.removeprefix("sqlite:").strip("/"):
        raise ValueError("names no file: write sqlite:FILE, for example sqlite:ledger.db")
    return text


def _host_patterns(value: object) -> tuple[str, ...]:
    found = []
    for item in _listed(value):
        try:
            line = egress.Line.parse(item) if isinstance(item, str) else None
        except ValueError:
            line = None
        if line is None or line.port is not None or line.name == egress.EVERYWHERE:
            raise ValueError("must be a list of hosts: name, *.name or an address")
        found.append(str(line.network.network_address) if line.network else line.name)
    return tuple(found)


def _model_hosts(value: object) -> tuple[str, ...]:
    found = []
    for item in _listed(value):
        try:
            line = egress.Line.parse(item) if isinstance(item, str) else None
        except ValueError:
            line = None
        network = line.network if line else None
        whole = network is None or network.num_addresses == 1
        if line is None or not whole or line.name == egress.EVERYWHERE:
            raise ValueError("must be a list of hosts: name, name:port, *.name or an address")
        name = str(network.network_address) if network else line.name
        if line.port is not None:
            name = f"[{name}]:{line.port}" if ":" in name else f"{name}:{line.port}"
        found.append(name)
    return tuple(found)


class _Reads:
    """Says which function reads a field's value; asked by pydantic only while a file is loaded."""

    def __init__(self, parse: Callable[[Any], Any]) -> None:
        self._parse = parse

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(self._parse)


Listen = Annotated[Address, _Reads(parse_address)]
Duration = Annotated[float, _Reads(_duration)]
PositiveDuration = Annotated[float, _Reads(_positive_duration)]
Retention = Annotated[float, _Reads(_retention)]
Size = Annotated[int, _Reads(_size)]
Count = Annotated[int, _Reads(_count)]
Amount = Annotated[int, _Reads(_amount)]
Hidden = Annotated[Secret, _Reads(_secret)]
HiddenList = Annotated[tuple[Secret, ...], _Reads(_secrets)]
PathList = Annotated[tuple[Path, ...], _Reads(_paths)]
Origin = Annotated[str, _Reads(_origin)]
WebhookUrl = Annotated[Secret, _Reads(_webhook_url)]
McpUrl = Annotated[str, _Reads(_mcp_url)]
ProxyUrl = Annotated[Secret, _Reads(_proxy_url)]
LedgerUrl = Annotated[str, _Reads(_ledger_url)]
AllowedLines = Annotated[tuple[egress.Line, ...], _Reads(egress.allowed_lines)]
EgressLines = Annotated[tuple[egress.Line, ...], _Reads(egress.lines)]
AuthorityLines = Annotated[tuple[authority.Line, ...], _Reads(_authority_lines)]
HostPatterns = Annotated[tuple[str, ...], _Reads(_host_patterns)]
ModelHosts = Annotated[tuple[str, ...], _Reads(_model_hosts)]
Faults = Annotated[tuple[Fault, ...], _Reads(parse_faults)]

Unknown = Literal["content", "pass", "refuse"]
_FORBID: dict[str, Any] = {"extra": "forbid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """A listener for clients that take only host and port: all it gets goes to one origin."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID
    listen: Listen
    to: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenConfig:
    """A named token for the control API; the name is recorded with what its holder does."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID
    name: str
    role: Literal["agent", "operator"]
    token: Hidden | None = None
    token_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlConfig:
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID
    listen: Listen = Address("127.0.0.1", 8902)
    hosts: tuple[str, ...] = ()  # further names under which callers address this proxy
    tokens: tuple[TokenConfig, ...] = ()
    agent_token: Hidden | None = None  # instead of the one made in state_dir/tokens.json
    agent_token_file: Path | None = None
    operator_token: Hidden | None = None
    operator_token_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig:
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID
    url: LedgerUrl = "sqlite:ledger.db"  # a relative file is in state_dir
    key_file: Path | None = None  # seals the bodies; None: state_dir/ledger.key
    keep_outcomes: Retention = 90 * 86_400.0  # bodies of what has ended
    keep_keys: Retention = math.inf  # that it has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class UnruledConfig:
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID
    default: Unknown = "content"
    hosts: Mapping[str, Unknown] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerConfig:
    """An MCP server whose tools are protected by step and tool."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID
    url: McpUrl
    reads: tuple[str, ...] = ()  # tools that only read; a last * stands for any ending
    trust_annotations: bool = False  # whether the server's own word for that counts


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID
    intercept: Literal["all", "rules", "none"] = "all"
    tunnel: HostPatterns = ()  # hosts that are never opened
    ca_cert_file: Path | None = None  # both None: made in state_dir on first start
    ca_key_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityConfig:
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID
    missing: Literal["refuse", "pass"] = "refuse"
    tokens: Literal["optional", "required"] = "optional"  # of runs, in the password: STEP:TOKEN
    secret: HiddenList = ()  # the first makes new upstream keys, the others are for rotation
    secret_file: PathList = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamConfig:
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID
    ca_file: Path | None = None  # roots to trust beside the system's
    proxy: ProxyUrl | None = None
    proxy_file: Path | None = None
    connect_timeout: PositiveDuration = 10.0  # name, connection and TLS; nothing was sent by then
    timeout: PositiveDuration = 120.0  # from the last byte sent to the head of the answer
    idle_timeout: PositiveDuration = 300.0  # between two pieces of an answer's body


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetConfig:
    """The limits of a run that sets none; None: no limit."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID
    turns: Amount | None = None
    tokens: Amount | None = None
    tool_calls: Amount | None = None
    writes: Amount | None = None

    def amounts(self) -> dict[str, int]:
        stated = {unit.value: getattr(self, unit.value) for unit in Unit}
        return {unit: limit for unit, limit in stated.items() if limit is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalConfig:
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID
    wait: Duration = 0.0  # for which a call that needs an approval is held for it


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityConfig:
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID
    allow: AuthorityLines = ()  # empty: everything that is not denied
    deny: AuthorityLines = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressConfig:
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID
    allow: AllowedLines = ()  # loopback and private ones that may be called: host, address, net
    deny: EgressLines = ()  # what may not; the more exact entry wins


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsConfig:
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID
    fence: bool = False  # writes of a start that a newer one has taken over from are refused
    journal: bool = False  # the answers of every model are recorded for a resume
    checkpoints_kept: Count = 10  # versions of one run
    checkpoints_kept_for: Retention = 90 * 86_400.0  # not while the run has an open operation


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID
    request_body: Size = 100_000_000  # larger ones of governed writes get 413
    kept_body: Size = 10_000_000  # larger answers are handed on and not kept for a replay
    checkpoint: Size = 10_000_000  # larger ones get 413
    connections: Count = 512  # open at once; a caller beyond them gets 503
    run_calls: Count = 64  # that one run has in hand at once; its others wait in order
    waiting_calls: Count = 1000  # that wait for their run's turn; beyond them 503
    head: Size = 64_000  # line and header fields of a request, bytes
    head_fields: Count = 100
    head_wait: PositiveDuration = 10.0  # from the first byte of a head to its end
    body_idle: PositiveDuration = 30.0  # between two pieces of a request's body
    body_wait: PositiveDuration = 300.0  # for the whole body of a governed write
    idle: PositiveDuration = 300.0  # a connection between two requests
    answer_idle: PositiveDuration = 60.0  # a caller that takes nothing of its answer
    drain: Duration = 30.0  # how long a stop waits for calls that are under way


WebhookType = Literal[
    "approval.requested", "approval.decided", "operation.unresolved", "operation.conflict"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyConfig:
    """Who is told, over a signed webhook, that a person is needed. Without ``url``: nobody."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID
    url: WebhookUrl | None = None
    url_file: Path | None = None
    secret: HiddenList = ()  # signs; each of several, so that it can be rotated
    secret_file: PathList = ()
    events: tuple[WebhookType, ...] = get_args(WebhookType)
    console: Origin | None = None  # under which people reach the console, for links to it
    timeout: PositiveDuration = 10.0
    keep_trying: PositiveDuration = 3 * 86_400.0  # after the event; then it is logged as given up


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"  # auto: text on a terminal, else JSON lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration, validated, with relative paths resolved and secret files read."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID
    state_dir: Path
    listen: Listen = Address("127.0.0.1", 8901)
    gateway: tuple[GatewayConfig, ...] = ()
    control: ControlConfig = ControlConfig()
    probe: Listen | None = None
    ledger: LedgerConfig = LedgerConfig()
    rules: tuple[Path, ...] = ()
    models: ModelHosts = ()  # hosts at which the rules for models hold too
    mcp: Mapping[str, McpServerConfig] = field(default_factory=dict)  # by the name of its service
    unruled: UnruledConfig = UnruledConfig()
    mode: Literal["enforce", "observe", "pass"] = "enforce"
    tls: TlsConfig = TlsConfig()
    identity: IdentityConfig = IdentityConfig()
    upstream: UpstreamConfig = UpstreamConfig()
    patience: Duration = 20.0
    runs: RunsConfig = RunsConfig()
    budget: BudgetConfig = BudgetConfig()
    approval: ApprovalConfig = ApprovalConfig()
    authority: AuthorityConfig = AuthorityConfig()
    egress: EgressConfig = EgressConfig()
    limits: LimitsConfig = LimitsConfig()
    notify: NotifyConfig = NotifyConfig()
    log: LogConfig = LogConfig()
    faults: Faults = ()

    @property
    def listeners(self) -> tuple[Address, ...]:
        """Every address it is to listen on."""
        others = (self.probe, *(gateway.listen for gateway in self.gateway))
        return (self.listen, self.control.listen, *filter(None, others))

    @property
    def rule_dirs(self) -> tuple[Path, ...]:
        """Where rules are, the shipped ones first; later ones replace earlier of their name."""
        return (*self.shipped_rule_dirs, *self.rules)

    @property
    def shipped_rule_dirs(self) -> tuple[Path, Path]:
        """The generated rules and the others."""
        package = Path(__file__).parent
        installed, beside = package / "_rules", package.parent / "rules"
        shipped = installed if installed.is_dir() else beside
        return (shipped / "generated", shipped)

    @property
    def ca_dir(self) -> Path:
        return self.state_dir / "ca"

    @property
    def ledger_path(self) -> Path:
        return self.state_dir / self.ledger.url.removeprefix("sqlite:").removeprefix("//")

    @property
    def ledger_key_path(self) -> Path:
        return self.ledger.key_file or self.state_dir / "ledger.key"

    @property
    def tokens_path(self) -> Path:
        return self.state_dir / "tokens.json"

    @property
    def serving_path(self) -> Path:
        """Written while a proxy runs: where it listens, for the commands that talk to it."""
        return self.state_dir / "serving.json"
