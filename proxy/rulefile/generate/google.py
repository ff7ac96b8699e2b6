"""Rule files from Google's discovery documents, which its Python client brings along."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from proxy.rulefile.generate.text import (
    WHY_ENFORCED,
    CannotGenerate,
    Pack,
    Selection,
    document,
    left_out,
    plain_words,
    vouched,
    window,
)

NAME: Final = "requestId"
ANSWERS: Final = [
    {
        "status": 403,
        "body": {"error.errors[].reason": {"has": "rateLimitExceeded"}},
        "means": "not_applied",
    },
]
EXAMPLE_ANSWERS: Final = [
    {"status": 200, "means": "succeeded"},
    {"status": 400, "means": "rejected"},
    {"status": 503, "means": "unknown"},
]

Method = Mapping[str, Any]


def from_discovery(directory: Path, api: str, selection: Selection, checked: str) -> Pack:
    """The rule file of one API, such as ``compute.v1``. Raises CannotGenerate."""
    file = directory / f"{api}.json"
    if not file.is_file():
        raise CannotGenerate(
            f"{directory} has no {api}.json: name the directory of discovery documents, and an API "
            "with its version"
        )
    api_document = json.loads(file.read_text("utf-8"))
    name = api_document["name"]
    chosen: dict[str, dict[str, Any]] = {}
    reasons: dict[str, list[str]] = {}
    for method in sorted(_methods(api_document), key=_order):
        title = method["id"].removeprefix(f"{name}.")
        found = _request_id(api_document, method)
        if found is None or method["httpMethod"] == "GET" or not selection.takes(title):
            continue
        place, words = found
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", title) or "+" in _path(api_document, method):
            reasons.setdefault("since their paths cannot be told", []).append(title)
            continue
        chosen[title] = _endpoint(api_document, method, title, place, words)
    if not chosen:
        raise CannotGenerate(f"{api}: no method of it that was chosen has a {NAME}")
    revision = api_document.get("revision", "unknown")
    head = [
        f"Google {api_document.get('title', name)}, {api_document['version']}: the methods that "
        f"take a `{NAME}`.",
        f"Generated from the discovery document of {name} (revision {revision}); write it anew "
        "with `onceproxy rules generate google` instead of changing it.",
        f"From the document: which methods take a `{NAME}` and where, that it is a UUID, and how "
        "long it is known (`valid_for`; without it the id is trusted within the held call only).",
        WHY_ENFORCED if "mode" in vouched(chosen) else "Inferred: nothing.",
        *left_out(reasons),
    ]
    top: dict[str, Any] = {
        "service": f"google-{name}",
        "hosts": sorted(_hosts(api_document)),
        "source": api_document.get("documentationLink") or api_document["discoveryVersion"],
        "checked": checked,
        **vouched(chosen),
        "answers": ANSWERS,
    }
    return Pack(f"google-{name}", document(head, top, chosen), len(chosen))


def _order(method: Method) -> tuple[bool, str]:
    """Paths that end in a verb before those that would take the verb for part of a name."""
    path = str(method.get("flatPath") or method["path"])
    return ":" not in path.rpartition("/")[2], str(method["id"])


def _methods(resource: Mapping[str, Any]) -> Iterator[Method]:
    yield from resource.get("methods", {}).values()
    for inner in resource.get("resources", {}).values():
        yield from _methods(inner)


def _request_id(api: Mapping[str, Any], method: Method) -> tuple[str, str] | None:
    """Where the id goes, and what is said about it."""
    parameter = method.get("parameters", {}).get(NAME)
    if parameter is not None:
        return "query", plain_words(parameter.get("description", ""))
    reference = method.get("request", {}).get("$ref", "")
    member = api["schemas"].get(reference, {}).get("properties", {}).get(NAME)
    if member is None or member.get("readOnly"):
        return None
    return "json", plain_words(member.get("description", ""))


def _path(api: Mapping[str, Any], method: Method) -> str:
    return f"/{api['servicePath']}{method.get('flatPath') or method['path']}"


def _hosts(api: Mapping[str, Any]) -> Iterator[str]:
    for name in ("rootUrl", "mtlsRootUrl"):
        host = urlsplit(api.get(name, "")).hostname
        if host:
            yield host


def _endpoint(
    api: Mapping[str, Any], method: Method, title: str, place: str, words: str
) -> dict[str, Any]:
    path, verb = _path(api, method), method["httpMethod"]
    key: dict[str, Any] = {"in": place, "name": NAME, "as": "uuid4", "max_length": 36}
    stated = window(f"Request id. {words}")
    if stated is not None:
        key["valid_for"] = stated
    endpoint: dict[str, Any] = {"match": f"{verb} {path}", "key": key}
    if verb == "PUT":
        endpoint["idempotent"] = False
    params = [p for p in re.findall(r"{([^}]+)}", path) if p not in ("project", "projectsId")]
    if params:  # a project may be said by its number, too
        endpoint["distinguish"] = [f"path.{param}" for param in params]
    endpoint["external_id"] = "name"
    request: dict[str, Any] = {"send": f"{verb} {re.sub(r'{[^}]+}', 'x1', path)}"}
    if "request" in method:
        request["json"] = {}
    expect = {"endpoint": title, place: {NAME: "{key}"}}
    endpoint["examples"] = [{"request": request, "expect": expect, "answers": EXAMPLE_ANSWERS}]
    return endpoint
