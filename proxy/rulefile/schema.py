"""The shape of a rule file: which keys there are and of what kind their values.

Only shape is judged here; what the texts mean is `compile`'s. The JSON Schema for editors is
generated from these models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from proxy.rulefile.problems import Problems, Where, did_you_mean

Place = Literal["header", "query", "path", "json", "form", "body", "graphql"]
Rendering = Literal["raw", "digest", "hex", "base32hex", "uuid5", "uuid4"]
KeyRendering = Literal["raw", "digest", "hex", "base32hex", "uuid5", "uuid4", "obtained"]
Means = Literal[
    "succeeded", "rejected", "not_applied", "unknown", "running", "mismatch", "exists", "accepted"
]
Confidence = Literal["documented", "sdk", "third-party", "inferred"]
Mode = Literal["enforce", "observe", "pass"]
Signed = Literal["none", "sigv4", "body", "headers"]
AnswerFormat = Literal["json", "form", "xml", "jsonrpc"]

WORD_OR = {"key": "a mapping", "refusal": "a mapping", "tokens": "a whole number"}
DURATIONS = ("valid_for", "running", "settle", "expires")
# Tags of unions; stripped from messages.
MAPPING, TEXT, LIST, NUMBER = TAGS = "<mapping>", "<text>", "<list>", "<number>"


def _shape(value: Any) -> str:
    return LIST if isinstance(value, list) else TEXT if isinstance(value, str) else MAPPING


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Conditions = dict[str, Any]
Condition = Annotated[
    Annotated[Conditions, Tag(MAPPING)] | Annotated[list[Conditions], Tag(LIST)],
    Discriminator(_shape),
]


Texts = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[list[str], Tag(LIST)], Discriminator(_shape)
]
Element = Annotated[
    Annotated[dict[str, Any], Tag(MAPPING)] | Annotated[str, Tag(TEXT)], Discriminator(_shape)
]
Tokens = Annotated[
    Annotated[int, Tag(NUMBER)] | Annotated[Literal["unknown"], Tag(TEXT)],
    Discriminator(lambda value: TEXT if isinstance(value, str) else NUMBER),
]


class Account(Model):
    """What selects the account a call acts on: one of the three."""

    header: str | None = None
    basic: Literal["user"] | None = None
    jwt: str | None = None


class Auth(Model):
    """A credential of the proxy's own for this service."""

    header: str = "Authorization"
    value: str | None = None
    sigv4: str | None = None
    secret_env: str | None = None
    secret_file: str | None = None


class Refusal(Model):
    """The shape of a refusal where an SDK needs another than problem+json: application/json with
    this body, and with the code's own status unless one is given."""

    status: int | None = Field(default=None, ge=200, le=599)
    body: dict[str, Any]


class Key(Model):
    """How the API deduplicates."""

    in_: Place = Field(alias="in")
    name: str
    as_: KeyRendering = Field(default="raw", alias="as")
    max_length: int = Field(default=255, ge=8)
    min_length: int = Field(default=1, ge=1)
    alphabet: str | None = None
    prefix: str = ""
    valid_for: str = "unstated"
    keeps: Literal["all", "success", "unstated"] = "unstated"
    minted: list[str] = Field(default_factory=lambda: ["uuid4"])
    existing: Literal["replace", "keep"] = "replace"
    also: dict[str, str | bool] = Field(default_factory=dict)


class Obtain(Model):
    """A value that the API is asked for before the call."""

    request: str
    json_: Any = Field(default=None, alias="json")
    take: str
    when: Condition | None = None


class Line(Model):
    """One line of ``answers``."""

    status: Any = None
    header: Conditions = Field(default_factory=dict)
    body: Conditions = Field(default_factory=dict)
    means: Means | None = None
    replayed: bool = False


class JsonRpc(Model):
    """A last ``*`` stands for any ending."""

    method: Texts
    tool: Texts | None = None
    trust_annotations: bool = False


class Match(Model):
    request: str
    query: Conditions = Field(default_factory=dict)
    header: Conditions = Field(default_factory=dict)
    body: Conditions = Field(default_factory=dict)
    graphql: Texts | None = None
    arguments: Conditions = Field(default_factory=dict)
    jsonrpc: JsonRpc | None = None


class Marker(Model):
    """Text that names the operation, written into the request for a lookup to find."""

    in_: Literal["header", "query", "path", "json", "form", "body", "graphql", "mime"] = Field(
        alias="in"
    )
    name: str
    as_: Rendering = Field(default="raw", alias="as")
    max_length: int = Field(default=500, ge=8)
    append: str | None = None
    element: Element | None = None
    message: str | None = None
    existing: Literal["replace", "keep"] = "keep"
    also: dict[str, str | bool] = Field(default_factory=dict)


class Pages(Model):
    link: str | None = None
    cursor: str | None = None
    into: str | None = None
    after_id: str | None = None
    offset: str | None = None
    page: str | None = None
    next: str | None = None
    until: Literal["empty"] | None = None
    max: int = Field(default=5, ge=1, le=100)


class FoundAs(Model):
    succeeded: Condition | None = None
    failed: Condition | None = None


class LookupAnswer(Model):
    status: int = Field(default=200, ge=200, le=599)
    body: Any = None


class Lookup(Model):
    """How to ask the API whether the effect exists."""

    request: str
    header: dict[str, str] = Field(default_factory=dict)
    json_: Any = Field(default=None, alias="json")
    when: Condition | None = None
    each: str | None = None
    items: str | None = None
    where: Condition | None = None
    external_id: str | None = None
    by: Literal["marker", "content"] = "marker"
    found: FoundAs = FoundAs()
    pages: Pages | None = None
    running: str = "60s"
    settle: str = "5s"
    looks: int = Field(default=2, ge=1, le=20)
    remembers: str | None = None
    absent: Literal["resend", "ask"] | None = None
    answer: LookupAnswer | None = None


class Poll(Model):
    """How to ask what has become of a call that the API took for later."""

    request: str
    header: dict[str, str] = Field(default_factory=dict)
    items: str | None = None
    where: Condition | None = None
    external_id: str | None = None
    found: FoundAs


class Approval(Model):
    required: bool = False
    when: Condition | None = None
    summary: str | None = None
    expires: str = "24h"


class Meter(Model):
    """That a call is one of a model, and where its tokens stand."""

    max_tokens: Texts = Field(default_factory=list)
    choices: Texts = Field(default_factory=list)
    default: int = Field(default=4096, ge=0, le=10_000_000)
    usage: Texts = Field(default_factory=list)
    envelope: str | None = None
    complete: Condition | None = None


class ExampleRequest(Model):
    send: str
    header: dict[str, str] = Field(default_factory=dict)
    form: dict[str, Any] | None = None
    json_: Any = Field(default=None, alias="json")
    body: str | None = None


class Expect(Model):
    """``endpoint: none`` where no endpoint may match."""

    endpoint: str | None = None
    effect: Literal["read", "write"] | None = None
    header: dict[str, str] = Field(default_factory=dict)
    query: dict[str, str] = Field(default_factory=dict)
    form: dict[str, str] = Field(default_factory=dict)
    json_: dict[str, Any] | None = Field(default=None, alias="json")
    target: str | None = None
    approval: bool | None = None
    reserved: int | None = None


class ExampleAnswer(Model):
    """``tokens``: what it reports to have used; ``unknown`` where that cannot be told."""

    status: int = 200
    header: dict[str, str] = Field(default_factory=dict)
    body: Any = None
    means: Means
    replayed: bool | None = None
    external_id: str | None = None
    tokens: Tokens | None = None


class ExampleLookup(Model):
    """``pages``: the bodies after the first; ``asks``: method and target of the first request."""

    status: int = 200
    header: dict[str, str] = Field(default_factory=dict)
    body: Any = None
    pages: list[Any] = Field(default_factory=list)
    asks: str | None = None
    means: Literal["found", "failed", "none", "several", "partial", "inconclusive"]
    external_id: str | None = None


class ExampleObtained(Model):
    """What the API answers when it is asked for a value before the call."""

    status: int = 200
    header: dict[str, str] = Field(default_factory=dict)
    body: Any = None
    asks: str | None = None


class ExampleAccepted(Model):
    status: int = 202
    header: dict[str, str] = Field(default_factory=dict)
    body: Any = None


class ExamplePoll(Model):
    """``answered``: what the call was answered; the rest is the answer of the question."""

    answered: ExampleAccepted
    status: int = 200
    header: dict[str, str] = Field(default_factory=dict)
    body: Any = None
    asks: str | None = None
    means: Literal["done", "failed", "running"]


class Example(Model):
    request: ExampleRequest
    obtains: ExampleObtained | None = None
    expect: Expect = Expect()
    answers: list[ExampleAnswer] = Field(default_factory=list)
    lookups: list[ExampleLookup] = Field(default_factory=list)
    polls: list[ExamplePoll] = Field(default_factory=list)


KeyOrNone = Annotated[
    Annotated[Key, Tag(MAPPING)] | Annotated[Literal["none"], Tag(TEXT)], Discriminator(_shape)
]
RefusalOrProblem = Annotated[
    Annotated[Refusal, Tag(MAPPING)] | Annotated[Literal["problem"], Tag(TEXT)],
    Discriminator(_shape),
]


class Shared(Model):
    """What may stand at a service and at an endpoint, where it wins."""

    mode: Mode | None = None
    signed: Signed | None = None
    account: Account | None = None
    answer_format: AnswerFormat | None = None
    refusal: RefusalOrProblem | None = None
    key: KeyOrNone | None = None
    answers: list[Line] = Field(default_factory=list)
    counted: bool | None = None


class Endpoint(Shared):
    match: Annotated[
        Annotated[Match, Tag(MAPPING)] | Annotated[str, Tag(TEXT)], Discriminator(_shape)
    ]
    effect: Literal["read", "write"] | None = None
    was: list[str] = Field(default_factory=list)
    store: Literal["full", "meta"] = "full"
    journal: bool = False
    idempotent: bool | None = None
    distinguish: list[str] = Field(default_factory=list)
    noise: list[str] = Field(default_factory=list)
    wording: list[str] = Field(default_factory=list)
    headers: list[str] = Field(default_factory=list)
    external_id: str | None = None
    obtain: Obtain | None = None
    marker: Marker | None = None
    reconcile: (
        Annotated[
            Annotated[Lookup, Tag(MAPPING)] | Annotated[list[Lookup], Tag(LIST)],
            Discriminator(_shape),
        ]
        | None
    ) = None
    poll: Poll | None = None
    approval: Approval | None = None
    meter: Meter | None = None
    examples: list[Example] = Field(default_factory=list)


class Service(Shared):
    """A rule file."""

    service: str
    hosts: list[str] = Field(min_length=1)
    source: str
    confidence: Confidence
    checked: str = ""
    auth: Auth | None = None
    redact: list[str] = Field(default_factory=list)
    endpoints: dict[str, Endpoint] = Field(min_length=1)


def validate(value: Any, problems: Problems) -> Service | None:
    """The file's content as models; what does not fit goes into ``problems``."""
    if not isinstance(value, Mapping):
        problems.error((), "a rule file is a mapping that starts with `service: NAME`")
        return None
    try:
        return Service.model_validate(value)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_context=True):
            where = tuple(
                part for part in detail["loc"] if part not in (MAPPING, TEXT, LIST, NUMBER)
            )
            problems.error(where, _message(detail, where))
        return None


def _message(detail: ErrorDetails, where: Where) -> str:
    given = detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            return f"unknown key{did_you_mean(str(where[-1]), _keys_at(where[:-1]))}"
        case "missing":
            return "is required"
        case "literal_error":
            expected = str(detail["ctx"]["expected"]).replace("'", "")
            known = [word.strip() for word in expected.replace(" or ", ", ").split(",")]
            if len(known) == 1:
                other = WORD_OR.get(str(where[-1]))
                return f"must be {f'{other}, or the word ' if other else ''}{known[0]}"
            return f"must be one of {', '.join(known)}{did_you_mean(str(given), known)}"
        case "string_type" if where[-1] in DURATIONS and type(given) is int:
            return f"must have a unit, such as {given}s or {given}h"
        case "string_type":
            return f"must be text; write {given!r} in quotes" if _plain(given) else "must be text"
        case "bool_type":
            return "must be true or false"
        case "int_type" | "int_parsing":
            return "must be a whole number"
        case "list_type":
            return "must be a list; write [ ] around it"
        case "model_type" | "dict_type":
            return "must be a mapping"
        case "union_tag_invalid":
            return "must be " + str(detail["ctx"]["expected_tags"]).replace("'", "").replace(
                ", ", " or "
            ).replace("<", "a ").replace(">", "")
    return detail["msg"][:1].lower() + detail["msg"][1:]


def _plain(value: Any) -> bool:
    return isinstance(value, int | bool) or value is None


def _keys_at(where: Where) -> list[str]:
    """The keys that the schema knows at a place."""
    models: list[type[BaseModel]] = [Service]
    for part in where:
        if isinstance(part, int) or (models == [Endpoint] and _is_name(where, part)):
            continue
        if part == "endpoints":
            models = [Endpoint]
            continue
        models = [m for model in models for m in _models_of(_field(model, part))]
    return [field.alias or name for model in models for name, field in model.model_fields.items()]


def _is_name(where: Where, part: str) -> bool:
    return len(where) > 1 and where[0] == "endpoints" and part == where[1]


def _field(model: type[BaseModel], key: str) -> Any:
    for name, field in model.model_fields.items():
        if key in (name, field.alias):
            return field
    return None


def _models_of(kind: Any) -> list[type[BaseModel]]:
    """The models inside an annotation, however it is wrapped."""
    if isinstance(kind, FieldInfo):
        kind = kind.annotation
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [m for inner in getattr(kind, "__args__", ()) for m in _models_of(inner)]


def json_schema() -> dict[str, Any]:
    """Draft-07 JSON Schema of a rule file, for editors."""
    schema = _draft_07(Service.model_json_schema(by_alias=True))
    schema["$schema"] = "http://json-schema.org/draft-07/schema#"
    schema["title"] = "onceproxy rule file"
    return dict(schema)


def _draft_07(node: Any) -> Any:
    """The generator writes 2020-12; the difference that concerns us is where definitions live."""
    if isinstance(node, list):
        return [_draft_07(each) for each in node]
    if not isinstance(node, dict):
        return node
    renamed: dict[str, Any] = {}
    for key, value in node.items():
        if key == "discriminator":
            continue
        if key == "$ref":
            renamed[key] = value.replace("#/$defs/", "#/definitions/")
        else:
            renamed["definitions" if key == "$defs" else key] = _draft_07(value)
    return renamed
