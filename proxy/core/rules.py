"""Rules as the core sees them: one ``Service`` per file, its ``Endpoint`` entries, what they say.

``proxy.rulefile`` reads YAML into these; nothing here knows YAML. Durations are seconds;
``math.inf`` is "forever", None is "unstated".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

from proxy.core.jsonscan import Steps, Tree

if TYPE_CHECKING:
    from proxy.core.conditions import Check, Condition
    from proxy.core.matching import HostPattern, Match
    from proxy.core.paths import Path
    from proxy.core.templates import Template, UrlTemplate


@dataclass(frozen=True, slots=True)
class KeySpec:
    """How the API deduplicates: where its idempotency key goes, how long and what it remembers."""

    place: str  # header | query | path | json | form | body | graphql
    name: str
    rendering: str = "raw"  # raw | digest | hex | base32hex | uuid5 | uuid4 | obtained
    max_length: int = 255
    min_length: int = 1
    alphabet: str | None = None
    prefix: str = ""
    valid_for: float | None = None
    keeps: str = "unstated"  # all | success | unstated
    minted: tuple[str, ...] = ("uuid4",)
    existing: str = "replace"  # what happens to a minted key of the caller: replace | keep
    also: Mapping[str, str | bool] = field(default_factory=dict)  # set beside the key if missing


@dataclass(frozen=True, slots=True)
class Marker:
    """Text that names the operation, written into the request so that a lookup can find it."""

    place: str  # header | query | path | json | form | body | mime
    name: str
    rendering: str = "raw"
    max_length: int = 500
    append: Template | None = None  # added to a text field instead of replacing it
    element: Any = None  # a structure of templates, added to the list at ``name``
    message: str | None = None  # of mime: the member that holds the message, in base64
    existing: str = "keep"  # a value of the caller in that place: keep | replace
    also: Mapping[str, str | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AnswerLine:
    """One line of ``answers``; a line without ``means`` only adds ``replayed``."""

    when: Condition
    means: str | None = None
    replayed: bool = False
    checks: tuple[Check, ...] = field(init=False, repr=False, compare=False)
    """Those of ``when``, the ones that look into the body last."""

    def __post_init__(self) -> None:
        ordered = sorted(self.when.checks, key=lambda check: check.path.root == "body")
        object.__setattr__(self, "checks", tuple(ordered))


@dataclass(frozen=True, slots=True)
class Pages:
    kind: str  # link | cursor | after_id | offset | page | next
    path: str | None = None  # where the answer holds the cursor, the next address; link: its rel
    into: str | None = None  # query parameter that receives it; with ``json`` a path in that
    max: int = 5
    until_empty: bool = False  # the answer always names a next page; the one without items ends it


@dataclass(frozen=True, slots=True)
class Lookup:
    """How to ask the API whether the effect exists."""

    method: str
    target: UrlTemplate
    header: tuple[tuple[str, str], ...] = ()  # in place of the first request's
    json: Any = None  # a structure of templates, for lookups by POST
    when: Condition | None = None
    each: Path | None = None  # the items of a batch, each of which is looked for
    items: str | None = None
    where: Condition | None = None
    by: str = "marker"  # marker | content
    succeeded: Condition | None = None
    failed: Condition | None = None
    pages: Pages | None = None
    running: float = 60.0
    settle: float | None = 5.0  # None: `never`, absence goes to a person
    looks: int = 2
    remembers: float | None = None  # seconds after which an absence proves nothing any more
    absent: str = "resend"  # resend | ask
    answer_status: int = 200
    answer_body: Any = None  # a structure of templates; None: the item itself
    # Folded in from the endpoint, since a lookup's answers are answers of the same API:
    external_id: str | None = None
    answer_format: str = "json"
    answers: tuple[AnswerLine, ...] = ()
    key_header: str | None = None  # never sent with a lookup
    at_location: bool = False  # it asks the address that the answer named
    by_obtained: bool = False  # it looks for the value that the API gave before the call
    graphql: bool = False  # the answer names the field as the call did


@dataclass(frozen=True, slots=True)
class Obtain:
    """A value that the API is asked for before the intent, which then stores it."""

    method: str
    target: UrlTemplate
    take: Path  # in the answer
    json: Any = None  # a structure of templates
    when: Condition | None = None
    key_header: str | None = None  # never sent with it


@dataclass(frozen=True, slots=True)
class Approval:
    required: bool = False
    when: Condition | None = None
    summary: Template | None = None
    expires: float = 86_400.0


@dataclass(frozen=True, slots=True)
class Auth:
    """A credential of the proxy's own for this service; the secret is read when it is used."""

    header: str
    value: str  # contains {secret}
    secret_env: str | None = None
    secret_file: str | None = None
    sigv4: str | None = None  # AWS's name of the service, for which the secret signs requests


@dataclass(frozen=True, slots=True)
class Meter:
    """A call of a model, and where its tokens stand. Paths lead to one value each."""

    max_tokens: tuple[Path, ...] = ()  # where a request may name its output limit
    choices: tuple[Path, ...] = ()  # where it may ask for several answers at once
    default: int = 4096  # reserved where it names no limit
    usage: tuple[Path, ...] = ()  # counts in the answer, which are added up
    envelope: Path | None = None  # where events of a stream wrap what a plain answer is
    complete: Condition | None = None  # what an answer, or one event of a stream, shows at its end
    counted: Mapping[Steps, int] = field(init=False, repr=False, compare=False)
    """The place in ``usage`` of what stands at these steps, inside the envelope or not."""
    watched: Tree = field(init=False, repr=False, compare=False)
    """All that is looked for in the body of an answer."""

    def __post_init__(self) -> None:
        wraps = [(), self.envelope.steps] if self.envelope else [()]
        inside = [(i, path.steps) for i, path in enumerate(self.usage) if path.root == "body"]
        counted = {(*wrap, *steps): i for i, steps in inside for wrap in wraps}
        checks = self.complete.checks if self.complete else ()
        shown = [check.path.steps for check in checks if check.path.root == "body"]
        object.__setattr__(self, "counted", counted)
        object.__setattr__(self, "watched", Tree((*counted, *shown)))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One entry of a rule file with its service's defaults folded in."""

    service: str
    name: str
    match: Match | None
    digest: str  # of everything the file says about this endpoint
    effect: str = "write"  # read | write
    mode: str = "enforce"  # enforce | observe | pass
    confidence: str = "documented"
    signed: str = "none"  # none | sigv4 | body | headers
    account: tuple[str, str] | None = None  # ("header", name) | ("basic", "user") | ("jwt", claim)
    auth: Auth | None = None
    redact: tuple[str, ...] = ()
    answer_format: str = "json"
    refusal: Mapping[str, Any] | None = None  # None: problem+json; else {status, body}
    key: KeySpec | None = None
    obtain: Obtain | None = None
    answers: tuple[AnswerLine, ...] = ()
    was: tuple[str, ...] = ()
    store: str = "full"  # full | meta
    idempotent: bool = False
    distinguish: tuple[str, ...] = ()
    noise: tuple[str, ...] = ()
    wording: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    external_id: str | None = None
    marker: Marker | None = None
    reconcile: tuple[Lookup, ...] = ()
    poll: Lookup | None = None  # what became of what the API took for later
    approval: Approval | None = None
    meter: Meter | None = None  # it is a call of a model
    journal: bool = False  # its answers are recorded, and given again in a later epoch
    counted: bool = True  # as one of the run's tool calls; not telemetry, nor what fetches a token

    @property
    def title(self) -> str:
        return f"{self.service}.{self.name}"


class Later(Sequence[Endpoint]):
    """Endpoints that are read when they are first asked for: of all the services that are known, an
    agent calls a few. ``read`` gives the same ones whenever it is called."""

    __slots__ = ("_found", "_read")

    def __init__(self, read: Callable[[], tuple[Endpoint, ...]]) -> None:
        self._read = read
        self._found: tuple[Endpoint, ...] | None = None

    @property
    def _all(self) -> tuple[Endpoint, ...]:
        if self._found is None:
            self._found = self._read()
        return self._found

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._all)

    @overload
    def __getitem__(self, index: int) -> Endpoint: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Endpoint, ...]: ...
    def __getitem__(self, index: int | slice) -> Endpoint | tuple[Endpoint, ...]:
        return self._all[index]


@dataclass(frozen=True, slots=True)
class Service:
    """``digest``: of the rules' text, where the endpoints are not read yet."""

    name: str
    hosts: tuple[HostPattern, ...]
    endpoints: Sequence[Endpoint]
    digest: str = ""
    source: str = ""
    confidence: str = "documented"
    checked: str = ""
    path: str = ""  # the file it came from
    refusal: Mapping[str, Any] | None = None  # the shape where no endpoint is known
