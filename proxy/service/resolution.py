"""What an operator says about an operation whose outcome nobody could find out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from proxy.core.model import Answer, Body, Headers
from proxy.errors import ServiceError
from proxy.service.bodies import whole

RESOLUTIONS: Final = ("happened", "did_not_happen", "abandoned")
TEXT_MAX: Final = 2_000  # evidence is a sentence or a link, kept in the history for ever


@dataclass(frozen=True, slots=True)
class Resolution:
    """What an operator says about an operation. ``revision``: of the row they looked at."""

    as_: str
    by: str
    evidence: str = ""
    external_id: str | None = None
    answer: Answer | None = None
    revision: int | None = None


def read_resolution(body: object, by: str) -> Resolution:
    """A resolution from its JSON form; ``by`` is who asks, unless the body says it.

    Raises ServiceError naming everything that is wrong with it.
    """
    if not isinstance(body, dict):
        raise ServiceError("bad-request", 'Send a JSON object such as {"as": "happened"}.')
    problems: list[str] = []
    known = {"as", "external_id", "response", "evidence", "revision", "by"}
    problems += [f"{name}: unknown member" for name in body if name not in known]
    word = body.get("as")
    if word not in RESOLUTIONS:
        problems.append(f"as: must be one of {', '.join(RESOLUTIONS)}")
    texts = {name: _text(body, name, problems) for name in ("external_id", "evidence", "by")}
    revision = whole(body.get("revision"))
    if revision is None and body.get("revision") is not None:
        problems.append("revision: must be the number that the operation showed")
    answer = _answer(body.get("response"), problems)
    if word != "happened" and (answer is not None or texts["external_id"]):
        problems.append("response, external_id: only go with as: happened")
    if problems:
        raise ServiceError("bad-request", "; ".join(problems), problems)
    return Resolution(
        as_=str(word),
        by=texts["by"] or by,
        evidence=texts["evidence"] or "",
        external_id=texts["external_id"] or None,
        answer=answer,
        revision=revision,
    )


def _text(body: Mapping[str, Any], name: str, problems: list[str]) -> str | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > TEXT_MAX:
        problems.append(f"{name}: must be text of at most {TEXT_MAX} characters")
        return None
    return value.strip()


def _answer(value: object, problems: list[str]) -> Answer | None:
    """``{status, headers, body}``: the answer that later calls shall get."""
    if value is None:
        return None
    if not isinstance(value, dict):
        problems.append("response: must be an object {status, headers, body}")
        return None
    problems += [
        f"response.{name}: unknown member"
        for name in value
        if name not in ("status", "headers", "body")
    ]
    status = whole(value.get("status", 200))
    if status is None or not 200 <= status < 400:
        problems.append("response.status: must be from 200 to 399, as the effect is there")
        return None
    headers = _headers(value.get("headers"), problems)
    body = value.get("body")
    if isinstance(body, str):
        data, kind = body.encode(), "text/plain; charset=utf-8"
    else:
        data, kind = (b"" if body is None else orjson.dumps(body)), "application/json"
    if data and all(name.lower() != "content-type" for name, _ in headers):
        headers = (*headers, ("Content-Type", kind))
    return Answer(status, "", headers, Body.of(data))


def _headers(value: object, problems: list[str]) -> Headers:
    if value is None:
        return ()
    if not isinstance(value, dict):
        problems.append("response.headers: must be an object of texts")
        return ()
    pairs = tuple((str(name), str(text)) for name, text in value.items())
    if not all(_TOKEN.issuperset(name) and name and _printable(text) for name, text in pairs):
        problems.append("response.headers: a name or value has a character that HTTP forbids")
        return ()
    return pairs


_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def _printable(text: str) -> bool:
    return all(character == "\t" or " " <= character != "\x7f" for character in text)
