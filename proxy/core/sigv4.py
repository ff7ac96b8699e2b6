"""Signing a request the way AWS reads it (Signature Version 4).

A signature is good for the one request it was made for. What the proxy asks by itself, and a stored
call whose caller now signs other bytes, need one of the proxy's own; it is made with the caller's
own access key or not at all (``decide`` sees to that).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator
from dataclasses import field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from proxy.core.credentials import Credentials
from proxy.core.model import Headers, Request, frozen

REGION: Final = re.compile(r"[a-z]{2,3}(?:-[a-z]+){1,3}-\d{1,2}")
FIRST_REGION: Final = "us-east-1"  # where services without regions have their signatures scoped
ALGORITHM: Final = "AWS4-HMAC-SHA256"
UNSIGNED: Final = ("UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
# Describe a body, so they do not belong to a request without one.
OF_A_BODY: Final = ("x-amz-checksum-", "x-amz-sdk-checksum", "x-amz-trailer", "x-amz-decoded-")


class CannotSign(Exception):
    """A body whose parts are signed one by one: only its sender can do that."""


@frozen
class AccessKey:
    id: str
    secret: str = field(repr=False)
    session: str = field(default="", repr=False)

    @property
    def credentials(self) -> Credentials:
        """As a request signed with it carries them, as far as they tell who asks."""
        headers = [("Authorization", f"{ALGORITHM} Credential={self.id}/")]
        if self.session:
            headers.append(("X-Amz-Security-Token", self.session))
        return Credentials(headers=tuple(headers))


def read_key(text: str) -> AccessKey | None:
    """From id, secret and perhaps session token, one a line or as in AWS's credentials file (then
    those of its first profile). None if that is not what it holds."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if any("=" in line and line.startswith("aws_") for line in lines):
        found: dict[str, str] = {}
        for line in lines:
            name, equals, value = line.partition("=")
            if equals:
                found.setdefault(name.strip(), value.strip())
            elif found:
                break  # the next profile
        names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
        lines = [found.get(name, "") for name in names]
    if not 2 <= len(lines) <= 3 or not lines[0] or not lines[1]:
        return None
    return AccessKey(*lines)


def region_of(host: str) -> str:
    """The region in a host's name."""
    return next((each for each in host.split(".") if REGION.fullmatch(each)), FIRST_REGION)


def sign(request: Request, key: AccessKey, service: str, at: float) -> Request:
    """The request with date, session and signature of its own instead of those it had. ``at``:
    seconds since the epoch. Raises CannotSign."""
    moment = datetime.fromtimestamp(at, UTC).strftime("%Y%m%dT%H%M%SZ")
    payload = _payload(request)
    headers = [pair for pair in request.headers if not _goes(pair[0].lower(), request)]
    headers.append(("X-Amz-Date", moment))
    if key.session:
        headers.append(("X-Amz-Security-Token", key.session))
    if service == "s3":
        headers.append(("X-Amz-Content-SHA256", payload))
    signed = sorted(_signed(request, tuple(headers)))
    names = ";".join(name for name, _ in signed)
    canonical = "\n".join(
        (
            request.method,
            request.path if service == "s3" else quote(request.path, safe="/~"),
            "&".join(sorted(_pairs(request.query))),
            *(f"{name}:{value}" for name, value in signed),
            "",
            names,
            payload,
        )
    )
    scope = f"{moment[:8]}/{region_of(request.host)}/{service}/aws4_request"
    digest = hashlib.sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
    secret = f"AWS4{key.secret}".encode()
    for part in scope.split("/"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    text = f"{ALGORITHM}\n{moment}\n{scope}\n{digest}"
    signature = hmac.digest(secret, text.encode(), "sha256").hex()
    value = f"{ALGORITHM} Credential={key.id}/{scope}, SignedHeaders={names}, Signature={signature}"
    return request.with_(headers=(*headers, ("Authorization", value)))


def _goes(name: str, request: Request) -> bool:
    if name in ("authorization", "date", "x-amz-date", "x-amz-security-token"):
        return True
    if name == "x-amz-content-sha256":
        return True
    return not request.body.size and name.startswith(OF_A_BODY)


def _payload(request: Request) -> str:
    said = request.header("x-amz-content-sha256") or ""
    if request.body.size and said in UNSIGNED:
        return said
    if request.body.size and said.startswith("STREAMING-"):
        raise CannotSign("the parts of its body are signed one by one")
    return request.body.sha256


def _signed(request: Request, headers: Headers) -> Iterator[tuple[str, str]]:
    """The fields that a signature has to cover, by name in lower case."""
    yield "host", request.authority
    found: dict[str, list[str]] = {}
    for name, value in headers:
        lower = name.lower()
        if lower.startswith("x-amz-") or lower in ("content-type", "content-md5"):
            found.setdefault(lower, []).append(" ".join(value.split()))
    for lower, values in found.items():
        yield lower, ",".join(values)


def _pairs(query: str) -> Iterator[str]:
    for piece in query.split("&"):
        if piece:
            name, _, value = piece.partition("=")
            yield f"{name}={value}"
