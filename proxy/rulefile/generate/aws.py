"""Rule files from the service models of botocore, AWS's own for its Python SDK."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from proxy.rulefile.generate.text import (
    TOKEN_NAME,
    WHY_ENFORCED,
    CannotGenerate,
    Pack,
    Selection,
    document,
    left_out,
    rendering,
    vouched,
    window,
)

SUFFIXES: Final = {
    "dnsSuffix": ("amazonaws.com", "amazonaws.com.cn"),
    "dualStackDnsSuffix": ("api.aws",),
}
ENDINGS: Final = tuple(ending for endings in SUFFIXES.values() for ending in endings)
DEPTH: Final = 4  # to which secrets inside a request are looked for
# Codes that every service may answer (AWS's pages "Common errors"): it has not looked at the call.
NOT_LOOKED_AT: Final = {
    "json": ("ThrottlingException", "ExpiredTokenException", "RequestExpired"),
    "xml": ("Throttling", "RequestLimitExceeded", "ExpiredToken", "RequestExpired"),
}
MISMATCH: Final = "IdempotentParameterMismatch"
TOKEN: Final = "e6f1c2a9-5b7d-4c3e-8a91-0d2f4b6c8e10"  # as an SDK makes one up
EXAMPLE_ANSWERS: Final = [
    {"status": 200, "means": "succeeded"},
    {"status": 400, "means": "rejected"},
    {"status": 500, "means": "unknown"},
]

KNOWN: Final = (
    "From the model: which member is the token (`idempotencyToken`: by it the service knows a "
    "repeated request; AWS's SDKs fill it with a UUID of their own), its place and limits, the "
    "hosts, what is secret. Where its description states how long a token is known, that is "
    "`valid_for`; elsewhere it is trusted within the held call only. From AWS's pages of common "
    "errors: what was not looked at.",
)

Model = Mapping[str, Any]


def from_botocore(data: Path, service: str, selection: Selection, checked: str) -> Pack:
    """The rule file of one service; ``data`` is botocore's directory of that name. ``checked``: the
    day that the file is to name. Raises CannotGenerate."""
    versions = sorted(each.name for each in (data / service).glob("*") if each.is_dir())
    model = _read(data / service / versions[-1] / "service-2.json") if versions else None
    if model is None:
        raise CannotGenerate(f"{data} has no {service}: name botocore's data directory")
    rules = _read(data / service / versions[-1] / "endpoint-rule-set-1.json") or {}
    meta = model["metadata"]
    protocol = meta["protocol"]
    chosen: dict[str, dict[str, Any]] = {}
    reasons: dict[str, list[str]] = {}
    redact: set[str] = set()
    for name, operation in sorted(model["operations"].items(), key=_order):
        member = _token(model, operation)
        if member is None or not selection.takes(name):
            continue
        reason = _unfit(protocol, operation, *member)
        if reason is not None:
            reasons.setdefault(reason, []).append(name)
            continue
        chosen[name] = _endpoint(model, name, operation, *member, first=not chosen)
        redact |= set(_secrets(model, operation["input"]["shape"], "body", _depth(protocol)))
    if not chosen:
        raise CannotGenerate(f"{service}: no operation of it that a rule can tell has a token")
    signing = meta.get("signingName") or meta["endpointPrefix"]
    head = [
        f"AWS {meta['serviceId']}, API of {meta['apiVersion']}: the operations that have an "
        "idempotency token.",
        f"Generated from the service model in botocore {_version(data)}; write it anew with "
        "`onceproxy rules generate aws` instead of changing it.",
        *KNOWN,
        WHY_ENFORCED if "mode" in vouched(chosen) else "Inferred: nothing.",
        *left_out(reasons),
    ]
    top: dict[str, Any] = {
        "service": f"aws-{service}",
        "hosts": _hosts(rules, meta["endpointPrefix"]),
        "source": f"https://github.com/boto/botocore/tree/develop/botocore/data/{service}/{versions[-1]}",
        "checked": checked,
        **vouched(chosen),
        "signed": "sigv4",
        "auth": {"sigv4": signing},
    }
    if redact:
        top["redact"] = sorted(redact)
    if protocol in ("ec2", "query", "rest-xml"):
        top["answer_format"] = "xml"
    top["answers"] = list(_answers(protocol))
    return Pack(f"aws-{service}", document(head, top, chosen), len(chosen))


def _order(named: tuple[str, Model]) -> tuple[int, str]:
    """Paths with fewer parameters before those that would take their words for a value."""
    return str(named[1]["http"]["requestUri"]).count("{"), named[0]


def _read(path: Path) -> Any:
    for file, opener in ((path, open), (path.with_name(path.name + ".gz"), gzip.open)):
        if file.is_file():
            with opener(file, "rb") as stream:
                return json.load(stream)
    return None


def _version(data: Path) -> str:
    init = data.parent / "__init__.py"
    found = (
        re.search(r"__version__ = '([^']+)'", init.read_text("utf-8")) if init.is_file() else None
    )
    return found[1] if found else "of an unknown version"


def _token(model: Model, operation: Model) -> tuple[str, Model, Model] | None:
    """Name, member and shape of the token."""
    shape = operation.get("input", {}).get("shape")
    for name, member in model["shapes"].get(shape, {}).get("members", {}).items():
        if member.get("idempotencyToken"):
            return name, member, model["shapes"][member["shape"]]
    return None


def _unfit(protocol: str, operation: Model, name: str, member: Model, shape: Model) -> str | None:
    """Why no rule can be written for it."""
    if protocol == "smithy-rpc-v2-cbor":
        return "since their bodies are CBOR"
    if protocol == "rest-xml" and member.get("location") is None:
        return "since their bodies are XML"
    if not TOKEN_NAME.search(name):
        return "since the member that is marked as token names an object"
    if "hostPrefix" in operation.get("endpoint", {}):
        return "since they have hosts of their own"
    if rendering(shape.get("min", 1), shape.get("max", 255), shape.get("pattern")) is None:
        return "since no key fits their token"
    return None


def _endpoint(
    model: Model,
    name: str,
    operation: Model,
    token: str,
    member: Model,
    shape: Model,
    *,
    first: bool,
) -> dict[str, Any]:
    protocol = model["metadata"]["protocol"]
    method, uri = operation["http"]["method"], operation["http"]["requestUri"]
    path, _, query = uri.partition("?")
    place, placed = _place(protocol, token, member)
    match: dict[str, Any] = {"request": f"{method} {path}"}
    send = f"{method} {re.sub(r'{[^}]+}', 'x1', path)}"
    request: dict[str, Any] = {}
    given: dict[str, str] = {}
    if protocol == "json":
        target = f"{model['metadata']['targetPrefix']}.{name}"
        match["header"] = {"X-Amz-Target": target}
        request["header"] = {"X-Amz-Target": target}
    elif protocol in ("query", "ec2"):
        match["body"] = {"Action": name}
        given["Action"] = name
    if query:
        match["query"] = dict(pair.partition("=")[::2] for pair in query.split("&"))
    if place == "header":
        request["header"] = {placed: TOKEN}
    elif place == "query":
        query = f"{query}&{placed}={TOKEN}" if query else f"{placed}={TOKEN}"
    else:
        given[placed] = TOKEN
    request = {"send": f"{send}?{query}" if query else send} | request
    if given or place in ("json", "form"):
        request["form" if protocol in ("query", "ec2") else "json"] = given
    expected = {"json": "json", "form": "form"}.get(place, place)
    key: dict[str, Any] = {"in": place, "name": placed}
    way = rendering(shape.get("min", 1), shape.get("max", 255), shape.get("pattern"))
    if way != "raw":
        key["as"] = way
    key |= {f"{word}_length": shape[word] for word in ("min", "max") if shape.get(word, 0) > 1}
    stated = window(member.get("documentation", ""))
    if stated is not None:
        key["valid_for"] = stated
    params = re.findall(r"{([^}+]+)\+?}", path)
    endpoint: dict[str, Any] = {"match": match, "key": key}
    if method == "PUT":
        endpoint["idempotent"] = False
    if params:
        endpoint["distinguish"] = [f"path.{param}" for param in params]
    found = _external_id(model, name, operation)
    if found is not None:
        endpoint["external_id"] = found
    answers = _example_answers(protocol) if first else EXAMPLE_ANSWERS
    endpoint["examples"] = [
        {
            "request": request,
            "expect": {"endpoint": name, expected: {placed: TOKEN}},
            "answers": answers,
        }
    ]
    return endpoint


def _place(protocol: str, name: str, member: Model) -> tuple[str, str]:
    location, wire = member.get("location"), member.get("locationName", name)
    if location == "header":
        return "header", wire
    if location == "querystring":
        return "query", wire
    if protocol == "ec2":
        return "form", member.get("queryName") or wire[:1].upper() + wire[1:]
    return ("form" if protocol == "query" else "json"), wire


def _external_id(model: Model, name: str, operation: Model) -> str | None:
    """The one ARN, or else the one id, at the top of the answer."""
    output = operation.get("output", {})
    protocol = model["metadata"]["protocol"]
    members = model["shapes"].get(output.get("shape"), {}).get("members", {})
    if protocol == "rest-xml":
        return None
    texts = [
        str(member.get("locationName", key))
        for key, member in members.items()
        if model["shapes"][member["shape"]]["type"] == "string"
        and member.get("location") is None
        and not TOKEN_NAME.search(key)
    ]
    for ending in ("arn", "id"):
        ids = [text for text in texts if text.lower().endswith(ending)]
        if len(ids) == 1:
            wrap = {"ec2": f"{name}Response.", "query": f"{name}Response."}.get(protocol, "")
            if protocol == "query" and "resultWrapper" in output:
                wrap += f"{output['resultWrapper']}."
            return wrap + ids[0]
    return None


def _depth(protocol: str) -> int:
    """Where to begin counting: members inside others are no members of a form."""
    return DEPTH - 1 if protocol in ("query", "ec2") else 0


def _secrets(model: Model, shape: str, path: str, depth: int) -> Iterator[str]:
    """The members of a request that the model calls sensitive."""
    kind = model["shapes"][shape]
    if kind.get("sensitive") and path != "body":
        yield path
    elif depth < DEPTH and kind["type"] == "structure":
        for name, member in kind["members"].items():
            if member.get("location") is None:
                wire = member.get("locationName", name)
                yield from _secrets(model, member["shape"], f"{path}.{wire}", depth + 1)
    elif depth < DEPTH and kind["type"] == "list":
        yield from _secrets(model, kind["member"]["shape"], f"{path}[]", depth)


def _hosts(rules: Any, prefix: str) -> list[str]:
    """The names in the endpoint rules, for the partitions that are open to everybody."""
    found: set[str] = set()
    for url in re.findall(r'"url": "https://([^"/]+)"', json.dumps(rules)):
        names = [url.replace("{Region}", "{region}")]
        for word, endings in SUFFIXES.items():
            names = [
                name.replace(f"{{PartitionResult#{word}}}", ending)
                for name in names
                for ending in endings
            ]
        found |= {n for n in names if n.endswith(ENDINGS) and re.fullmatch(r"[a-z0-9.{}-]+", n)}
    found = {
        name
        for name in found
        if not re.search(r"{(?!region})|\w{|}\w", name) and not ("fips" in name and ".cn" in name)
    }
    return sorted(found, key=lambda n: ("fips" in n, not n.endswith(".com"), n)) or [
        f"{prefix}.{{region}}.amazonaws.com"
    ]


def _where(protocol: str) -> str | None:
    """Where an error's code stands in the body."""
    return {
        "json": "__type",
        "query": "ErrorResponse.Error.Code",
        "ec2": "Response.Errors.Error.Code",
        "rest-xml": "ErrorResponse.Error.Code",
    }.get(protocol)


def _answers(protocol: str) -> Iterator[dict[str, Any]]:
    where = _where(protocol)
    if where is None:
        for code in NOT_LOOKED_AT["json"]:
            yield {"header": {"X-Amzn-ErrorType": {"contains": code}}, "means": "not_applied"}
        yield {"header": {"X-Amzn-ErrorType": {"contains": MISMATCH}}, "means": "mismatch"}
        return
    for code in NOT_LOOKED_AT["json" if protocol == "json" else "xml"]:
        yield {"body": {where: {"ends": code}}, "means": "not_applied"}
    yield {"body": {where: {"contains": MISMATCH}}, "means": "mismatch"}


def _example_answers(protocol: str) -> list[dict[str, Any]]:
    where = _where(protocol)
    if where is None:
        throttled: dict[str, Any] = {"header": {"X-Amzn-ErrorType": "ThrottlingException:"}}
        mismatch: dict[str, Any] = {"header": {"X-Amzn-ErrorType": f"{MISMATCH}Exception"}}
    elif where == "__type":
        throttled = {"body": {"__type": "com.amazon.coral.availability#ThrottlingException"}}
        mismatch = {"body": {"__type": f"{MISMATCH}Exception"}}
    else:
        throttled, mismatch = ({"body": _xml(where, c)} for c in ("Throttling", MISMATCH))
    return [
        *EXAMPLE_ANSWERS,
        {"status": 400, **throttled, "means": "not_applied"},
        {"status": 400, **mismatch, "means": "mismatch"},
    ]


def _xml(where: str, code: str) -> str:
    text = code
    for name in reversed(where.split(".")):
        text = f"<{name}>{text}</{name}>"
    return text
