"""Multipart bodies taken apart, strictly: what a server might read in another way is not read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from proxy.core.model import Headers

_BOUNDARY: Final = re.compile(
    r';\s*boundary\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))', re.IGNORECASE
)
_NAME: Final = re.compile(r';\s*name\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RawPart:
    """``name`` is that of the Content-Disposition field, None without one."""

    headers: Headers
    data: bytes

    @property
    def name(self) -> str | None:
        disposition = next((v for k, v in self.headers if k.lower() == "content-disposition"), "")
        found = _NAME.search(disposition)
        return None if found is None else found[1] if found[1] is not None else found[2]


def with_field(content_type: str, data: bytes, name: str, value: str) -> bytes | None:
    """The body with a text field behind its last part, every other byte as it is; None if it is not
    well-formed, or has no part. ``name`` and ``value`` without quotes and line ends."""
    boundary = _BOUNDARY.search(content_type)
    if boundary is None or not read_parts(content_type, data):
        return None
    text = boundary[1] if boundary[1] is not None else boundary[2]
    delimiter = b"\r\n--" + text.encode("utf-8", "surrogateescape")
    end = data.rindex(delimiter + b"--")
    head = f'Content-Disposition: form-data; name="{name}"'.encode()
    field = delimiter + b"\r\n" + head + b"\r\n\r\n" + value.encode()
    return data[:end] + field + data[end:]


def read_parts(content_type: str, data: bytes) -> list[RawPart] | None:
    """The parts in order; None if the body is not well-formed or has anything around its parts."""
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        return None
    text = boundary[1] if boundary[1] is not None else boundary[2]
    delimiter = b"\r\n--" + text.encode("utf-8", "surrogateescape")
    before, *chunks = (b"\r\n" + data).split(delimiter)
    if before or not chunks or chunks.pop() not in (b"--", b"--\r\n"):
        return None
    parts = [_part(chunk) for chunk in chunks]
    return None if None in parts else [part for part in parts if part is not None]


def _part(chunk: bytes) -> RawPart | None:
    if not chunk.startswith(b"\r\n"):
        return None
    head, blank, data = chunk.partition(b"\r\n\r\n")
    if not blank:
        return None
    headers: list[tuple[str, str]] = []
    for line in head.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if not colon or line[:1] in (b" ", b"\t"):
            return None
        headers.append(
            (
                name.decode("utf-8", "surrogateescape"),
                value.strip(b" \t").decode("utf-8", "surrogateescape"),
            )
        )
    return RawPart(tuple(headers), data)
