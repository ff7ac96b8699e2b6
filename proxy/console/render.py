"""Templates to answers, under headers that let a browser run and load nothing but our own files.

Everything that is put into a template is escaped there, and characters that would not be seen, or
would turn around what is beside them, are shown by their number.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlencode

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from proxy.console import words

HERE: Final = Path(__file__).parent
ASSETS: Final[Mapping[str, str]] = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
GUARDS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: a form would then be sent with Origin: null, which is refused.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

_UNSEEN: Final = {
    code: f"⟨U+{code:04X}⟩"
    for code in (
        *(c for c in range(32) if c not in (9, 10, 13)),
        *range(127, 160),
        0xAD, 0x61C, 0x180E, 0x200B, 0x200E, 0x200F, 0xFEFF,
        *range(0x2028, 0x202F), *range(0x2060, 0x2070), *range(0xFFF9, 0xFFFC),
        *range(0xD800, 0xE000), *range(0xE0000, 0xE0080),
    )
}  # fmt: skip


def visible(value: Any) -> Any:
    """What ``{{ }}`` puts out."""
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup):
        return value.translate(_UNSEEN)
    return value


def at(path: str, **query: object) -> str:
    """An address with its query; what is empty is left out."""
    pairs = [(name, value) for name, value in query.items() if value not in (None, "")]
    return f"{path}?{urlencode(pairs, errors='replace')}" if pairs else path


def decoded(part: str) -> str:
    """A part of a key as whoever named it wrote it."""
    return unquote(part)


@pass_context
def when(context: Context, moment: float | None) -> Markup | str:
    """A moment as people say it, exact on hover."""
    return "" if moment is None else _time(moment, words.relative(moment, context["now"]))


@pass_context
def lasting(context: Context, moment: float) -> Markup:
    """For how long it has been so."""
    age = words.duration(context["now"] - moment)
    return _time(moment, age, Markup(" data-lasting"))


def _time(moment: float, text: str, mark: str = "") -> Markup:
    utc = time.gmtime(moment)
    return Markup('<time datetime="{}" title="{}"{}>{}</time>').format(
        time.strftime("%Y-%m-%dT%H:%M:%SZ", utc),
        time.strftime("%Y-%m-%d %H:%M:%S UTC", utc),
        mark,
        text,
    )


@cache
def environment() -> Environment:
    """Made when the first page is asked for."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "when": when,
        "lasting": lasting,
        "decoded": decoded,
        "number": "{:,}".format,
        "size": words.size,
        "sentence": words.sentence,
    }
    made.globals |= {
        "at": at,
        "asset": asset_address,
        "blocked": words.blocked,
        "RESOLUTIONS": words.RESOLUTIONS,
        "ENDS": words.ENDS,
    }
    return made


def page(template: str, values: Mapping[str, Any], status: int = 200) -> web.Response:
    text = environment().get_template(template).render(values)
    return web.Response(
        body=text.encode("utf-8", "replace"),
        status=status,
        content_type="text/html",
        charset="utf-8",
        headers={**GUARDS, "Cache-Control": "no-store"},
    )


@cache
def asset(name: str) -> bytes:
    return (HERE / "assets" / name).read_bytes()


@cache
def asset_address(name: str) -> str:
    """With a digest, so that a new version is never mistaken for a cached one."""
    return f"/assets/{name}?v={hashlib.sha256(asset(name)).hexdigest()[:12]}"


async def serve_asset(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    if name not in ASSETS:
        raise web.HTTPNotFound
    return web.Response(
        body=asset(name),
        content_type=ASSETS[name],
        charset="utf-8",
        headers={**GUARDS, "Cache-Control": "public, max-age=31536000, immutable"},
    )
