"""What people may see of a request or an answer: a rule's ``redact`` fields masked, known
credentials too.

Masking leans to the safe side: a name that leads through a list means every item, and where a body
with fields to be masked cannot be taken apart, none of it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, unquote_plus, urlsplit

from proxy.core.call import UNRULED
from proxy.core.credentials import MASK, is_secret_header, is_secret_parameter
from proxy.core.fieldpath import Steps, form_steps, path_steps, starts_with
from proxy.core.model import Headers, Request
from proxy.core.rules import Endpoint, Service

COOKIES: Final = frozenset({"set-cookie", "set-cookie2"})


@dataclass(frozen=True, slots=True)
class Redaction:
    """The fields of one service to be masked. ``known`` False: no rule file says any more what they
    are, so that nothing but the address is shown."""

    service: Service | None = None
    endpoint: Endpoint | None = None
    known: bool = True
    body: tuple[Steps, ...] = ()
    answer: tuple[Steps, ...] = ()
    query: tuple[Steps, ...] = ()
    headers: frozenset[str] = frozenset()
    answer_headers: frozenset[str] = frozenset()
    path: frozenset[str] = frozenset()  # names of parameters
    host: frozenset[str] = frozenset()

    @property
    def masks_urls(self) -> bool:
        return bool(self.query or self.path or self.host) or not self.known


def redaction_of(services: Sequence[Service], service: str, endpoint: str) -> Redaction:
    """What to mask for an operation, by the rules that hold now."""
    if service == UNRULED:
        return Redaction()
    held = next((one for one in services if one.name == service), None)
    if held is None:
        return Redaction(known=False)
    entry = next((e for e in held.endpoints if endpoint in (e.name, *e.was)), None)
    texts = held.endpoints[0].redact if held.endpoints else ()
    steps = [path_steps(text) for text in texts]
    of_answers = [one[1:] for one in steps if one[0] == "answer"]
    return Redaction(
        held,
        entry,
        body=tuple(one[1:] for one in steps if one[0] == "body"),
        answer=tuple(one for one in of_answers if one[:1] != ("header",)),
        query=tuple(one[1:] for one in steps if one[0] == "query"),
        headers=_names(one[1:] for one in steps if one[0] == "header"),
        answer_headers=_names(one[1:] for one in of_answers if one[:1] == ("header",)),
        path=frozenset(str(one[1]) for one in steps if one[0] == "path" and len(one) > 1),
        host=frozenset(str(one[1]) for one in steps if one[0] == "host" and len(one) > 1),
    )


def _names(found: Iterable[Steps]) -> frozenset[str]:
    return frozenset(str(steps[-1]).lower() for steps in found if steps)


# Values


def masked_value(value: Any, wanted: Sequence[Steps]) -> Any:
    """The value with whatever the steps lead to masked. A name before a list means each item."""
    if not wanted:
        return value
    if any(not steps for steps in wanted):
        return MASK
    if isinstance(value, dict):
        return {
            name: masked_value(inner, [s[1:] for s in wanted if _is_member(s[0], name)])
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [
            masked_value(inner, [_inside(s, at) for s in wanted if _reaches(s[0], at)])
            for at, inner in enumerate(value)
        ]
    return value


def _is_member(step: str | int | None, name: str) -> bool:
    """A form's ``items[0]`` is a member "0"."""
    return step is None or str(step) == name


def _reaches(step: str | int | None, at: int) -> bool:
    return isinstance(step, str) or step is None or step == at


def _inside(steps: Steps, at: int) -> Steps:
    return steps if isinstance(steps[0], str) else steps[1:]


def masked_pairs(
    pairs: Iterable[tuple[str, str]], wanted: Sequence[Steps]
) -> list[tuple[str, str]]:
    """Fields of a form by the names that they travel under."""
    return [(name, MASK if is_masked(name, wanted) else value) for name, value in pairs]


def is_masked(name: str, wanted: Sequence[Steps]) -> bool:
    steps = form_steps(name)
    plain = tuple(step for step in steps if isinstance(step, str))
    return any(
        starts_with(steps, one)
        or (all(isinstance(s, str) for s in one) and starts_with(plain, one))
        for one in wanted
    )


def masked_headers(headers: Headers, names: frozenset[str]) -> list[tuple[str, str]]:
    return [(name, MASK if _is_secret(name.lower(), names) else value) for name, value in headers]


def _is_secret(name: str, names: frozenset[str]) -> bool:
    return name in names or name in COOKIES or is_secret_header(name)


# Addresses


def masked_url(url: str, redaction: Redaction) -> str:
    """An operation's address; credentials in it are masked already, by name."""
    if not redaction.masks_urls:
        return url
    scheme, authority, path, query, _ = urlsplit(url)
    if not redaction.known:
        return f"{scheme}://{authority}{path}{'?' + MASK if query else ''}"
    if redaction.host:
        authority = _masked_host(authority, redaction)
    if redaction.path:
        path = _masked_path(url, path, redaction)
    if query and redaction.query:
        query = "&".join(_masked_piece(piece, redaction.query) for piece in query.split("&"))
    return f"{scheme}://{authority}{path}{'?' + query if query else ''}"


def _masked_piece(piece: str, wanted: Sequence[Steps]) -> str:
    name, _, value = piece.partition("=")
    decoded = unquote_plus(name)
    if is_masked(decoded, wanted) or (value and is_secret_parameter(decoded, value)):
        return f"{name}={MASK}"
    return piece


def _masked_host(authority: str, redaction: Redaction) -> str:
    request = _request_to(f"http://{authority}/")
    assert redaction.service is not None
    for pattern in redaction.service.hosts:
        found = pattern.params(request.host.split("."), pattern.port or 80)
        if found is not None:
            hidden = [found[name] for name in redaction.host if name in found]
            return ".".join(MASK if label in hidden else label for label in authority.split("."))
    return MASK


def _masked_path(url: str, path: str, redaction: Redaction) -> str:
    """The path without the parameters that are masked; all of it where they cannot be told."""
    endpoint = redaction.endpoint
    found = endpoint.match.read(_request_to(url)) if endpoint and endpoint.match else None
    if found is None:
        return f"/{MASK}"
    hidden = {value for name, value in found.items() if name in redaction.path}
    if not hidden:
        return path
    pieces = path.split("/")
    masked = [MASK if _holds_one(unquote(piece), hidden) else piece for piece in pieces]
    return f"/{MASK}" if masked == pieces else "/".join(masked)


def _holds_one(piece: str, hidden: Iterable[str]) -> bool:
    return any(part and part in piece for value in hidden for part in (value, unquote(value)))


def _request_to(url: str) -> Request:
    scheme, authority, path, query, _ = urlsplit(url)
    host = urlsplit(f"//{authority}").hostname or ""
    target = path + (f"?{query}" if query else "")
    return Request("*", scheme, host, 80, target, ())
