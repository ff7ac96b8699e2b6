"""The pages of a lookup's list: which comes after an answer, or that it was the last.

A page is the last one only if the answer says so (no cursor, no link, ``has_more: false``) or,
where pages are counted or the rule says so, if it is empty: an API may fill a page less than asked
for and still have more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from proxy.core.model import Request
from proxy.core.paths import answer_path, parse_steps, walk
from proxy.core.rules import Pages
from proxy.core.splice import read_pair, write_pair
from proxy.core.values import text_of
from proxy.core.views import AnswerView


class NoWayOn(Exception):
    """There is more than can be read; str() says why."""


@dataclass(frozen=True, slots=True)
class Next:
    """How the next request differs from the last: its target, or a member of its JSON body."""

    target: str | None = None
    into: tuple[str, ...] = ()
    value: str = ""


MORE_FLAGS = ("has_more", "hasMore", "meta.has_more")
MORE_VALUES = (
    "nextPageToken",
    "next_page_token",
    "next_cursor",
    "response_metadata.next_cursor",
    "paging.next.after",
    "@odata.nextLink",
)
"""What APIs say when there is more than this page; for a rule without ``pages`` that is a warning
that its one page was not complete."""


def more_than_this(seen: AnswerView) -> bool:
    body = seen.body
    if any(walk(body, parse_steps(flag)) is True for flag in MORE_FLAGS):
        return True
    if link_to(seen, "next") is not None:
        return True
    return any(text_of(walk(body, _quoted(name))) for name in MORE_VALUES)


def _quoted(name: str) -> tuple[Any, ...]:
    return (name,) if name.startswith("@") else parse_steps(name)


def following(
    pages: Pages, request: Request, seen: AnswerView, items: Sequence[Any], *, in_body: bool
) -> Next | None:
    """The step to the next page; None after the last. ``in_body``: the lookup asks by a JSON body.
    Raises NoWayOn."""
    if pages.until_empty and not items:
        return None
    match pages.kind:
        case "link":
            url = link_to(seen, pages.path or "next")
            return None if url is None else Next(target=_same_origin(request, url))
        case "next":
            url = text_of(seen.get(answer_path(pages.path or "")))
            return None if not url else Next(target=_same_origin(request, url))
        case "cursor":
            return _by_cursor(pages, request, seen, in_body)
        case "after_id":
            return _after_last(pages, request, seen, items)
    return _counted(pages, request, seen, items)


def _by_cursor(pages: Pages, request: Request, seen: AnswerView, in_body: bool) -> Next | None:
    cursor = text_of(seen.get(answer_path(pages.path or "")))
    more = walk(seen.body, ("has_more",))
    if not cursor:
        if more is True:
            raise NoWayOn("the answer has more, but no cursor to it")
        return None
    if more is False:
        return None
    into = pages.into or ""
    if in_body:
        return Next(into=tuple(str(step) for step in parse_steps(into)), value=cursor)
    if read_pair(request.query, into) == cursor:
        raise NoWayOn("the cursor does not move on")
    return Next(target=_with_param(request, into, cursor))


def _after_last(
    pages: Pages, request: Request, seen: AnswerView, items: Sequence[Any]
) -> Next | None:
    more = walk(seen.body, ("has_more",))
    if more is False or (not items and more is not True):
        return None
    last = items[-1] if items else None
    identifier = text_of(last.get("id")) if isinstance(last, dict) else None
    if not identifier:
        raise NoWayOn("the last object of the page has no id to go on from")
    into = pages.into or ""
    if read_pair(request.query, into) == identifier:
        raise NoWayOn("the list does not move on")
    return Next(target=_with_param(request, into, identifier))


def _counted(pages: Pages, request: Request, seen: AnswerView, items: Sequence[Any]) -> Next | None:
    if not items or walk(seen.body, ("has_more",)) is False:
        return None
    into = pages.into or ""
    first = 0 if pages.kind == "offset" else 1
    now = read_pair(request.query, into) or str(first)
    if not now.isdecimal():
        raise NoWayOn(f"{into} is no number")
    step = len(items) if pages.kind == "offset" else 1
    return Next(target=_with_param(request, into, str(int(now) + step)))


def _with_param(request: Request, name: str, value: str) -> str:
    return f"{request.path}?{write_pair(request.query, name, value)}"


def _same_origin(request: Request, url: str) -> str:
    """The target of the next page's address: credentials go to no other host than the API's."""
    parts = urlsplit(urljoin(request.url, url))
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        port = None
    if (parts.scheme, parts.hostname, port) != (request.scheme, request.host, request.port):
        raise NoWayOn("the next page is at another host")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not target.isascii() or any(char <= " " for char in target):
        raise NoWayOn("the address of the next page is malformed")
    if target == request.target:
        raise NoWayOn("the next page is the same page")
    return target


def link_to(seen: AnswerView, rel: str) -> str | None:
    """The address that a Link header gives that relation (RFC 8288)."""
    for name, value in seen.answer.headers:
        if name.lower() != "link":
            continue
        for link in value.split("<")[1:]:
            url, _, params = link.partition(">")
            for param in params.split(";"):
                key, _, words = param.partition("=")
                if key.strip().lower() == "rel" and rel in words.strip(' ",').split():
                    return url
    return None
