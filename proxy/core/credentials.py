"""The secrets of a request, taken out before anything is stored, and put back before a send.

A bare request holds none of the known credential fields, so it may be sealed, logged and
fingerprinted; the credentials live in memory only. A header is taken out whole; the value of a
query parameter leaves ``***`` behind, so that a re-send without it cannot go unnoticed; one in the
path leaves a digest, so that two webhooks stay two addresses.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import field
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_plus

import orjson

from proxy.core.model import Headers, Request, frozen

MASK: Final = "***"

# Services whose address is the credential: whoever knows it may post.
PATH_SECRETS: Final = {
    "api.telegram.org": re.compile(r"/(?:file/)?bot(?P<secret>[^/?]+)"),
    "hooks.slack.com": re.compile(r"/(?:services|workflows|triggers)/(?P<secret>[^?]+)"),
    "discord.com": re.compile(r"/api/(?:v\d+/)?webhooks/[^/]+/(?P<secret>[^/?]+)"),
    "discordapp.com": re.compile(r"/api/(?:v\d+/)?webhooks/[^/]+/(?P<secret>[^/?]+)"),
}
_PATH_MASK: Final = re.compile(r"\*\*\*[0-9a-f]{16}")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


HEADERS: Final = _names(
    """
    authorization proxy-authorization cookie cookie2 api-key apikey x-apikey x-auth x-auth-email
    private-token job-token deploy-token circle-token x-token x-access-key x-secret-key
    x-subscription-token x-postmark-server-token x-postmark-account-token x-figma-token
    x-vault-token x-gitlab-token x-github-token x-sentry-token x-honeycomb-team x-functions-key
    dd-api-key dd-application-key ocp-apim-subscription-key apca-api-key-id apca-api-secret-key
    cb-access-key cb-access-sign cb-access-passphrase x-mbx-apikey api-sign
    x-csrf-token x-xsrf-token x-csrftoken signature signature-input dpop
    mcp-session-id
    """
)
# Families: X-Api-Key, X-Goog-Api-Key, Xi-Api-Key, X-Shopify-Access-Token, X-Amz-Security-Token ...
HEADER_ENDS: Final = tuple(
    _names(
        """
        -api-key -apikey -api-token -api-secret -access-token -auth-token -auth-key -session-token
        -security-token -secret-token -client-secret
        """
    )
)

QUERY: Final = _names(
    """
    access_token accesstoken access-token api_key apikey api-key x-api-key api_token apitoken
    api_secret auth_token authtoken auth-token oauth_token oauth_signature id_token refresh_token
    session_token client_secret app_secret secret_key secret password passwd pwd hapikey
    subscription-key jwt sig signature x-amz-signature x-amz-security-token x-amz-credential
    x-goog-signature x-goog-credential
    """
)
# Also ordinary names (`DELETE /cache?key=user:1`): a credential only if the value looks random.
# Masking an ordinary value would make two different calls the same one.
QUERY_IF_RANDOM: Final = _names("key token auth session_id sessionid")
RANDOM_LENGTH: Final = 16  # the shortest API keys in use have 20 characters
RANDOM_CHANGES: Final = 4  # letter beside digit; 20 random characters have about 7, words 1 or 2
_CHANGE: Final = re.compile(r"[A-Za-z](?=[0-9])|[0-9](?=[A-Za-z])")

# Made anew for each request or session, so they say nothing about who asks, and are of no use to
# another one.
PER_REQUEST: Final = _names(
    """
    mcp-session-id
    signature signature-input dpop cb-access-sign api-sign x-csrf-token x-xsrf-token x-csrftoken
    sig oauth_signature x-amz-signature x-amz-credential x-goog-signature x-goog-credential
    """
)
# Authorization schemes that sign each request, and their parameters that stay the same.
LASTING: Final = {
    "oauth": ("oauth_consumer_key", "oauth_token"),
    "digest": ("username", "realm"),
    "signature": ("keyid",),
}


class MissingCredential(Exception):
    """A bare request had a credential in its query that these credentials do not hold."""


@frozen
class Credentials:
    """What ``split`` took out. ``headers`` in wire order, ``positions`` their indices in the whole
    request; ``query`` has lower-case name and raw ``name=value`` piece, in order; ``path`` is what
    stood in the path, and the mask that stands there now. Falsy if empty; never shown by repr."""

    headers: Headers = field(default=(), repr=False)
    query: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    positions: tuple[int, ...] = field(default=(), repr=False)
    path: tuple[str, str] | None = field(default=None, repr=False)

    def __bool__(self) -> bool:
        return bool(self.headers or self.query or self.path)


NONE: Final = Credentials()


@lru_cache(maxsize=1024)  # a caller's spellings; asked for every field of every call
def is_secret_header(name: str) -> bool:
    lower = name.lower()
    return lower in HEADERS or lower.endswith(HEADER_ENDS)


def is_secret_parameter(name: str, value: str) -> bool:
    """Whether a query parameter (decoded name, raw or decoded value) is a credential, or the mask
    of one."""
    lower = name.lower()
    if lower in QUERY:
        return True
    return lower in QUERY_IF_RANDOM and (value == MASK or _looks_random(value))


def split(request: Request) -> tuple[Request, Credentials]:
    """The request without its credentials, and these. The body is left alone."""
    taken = [i for i, (name, _) in enumerate(request.headers) if is_secret_header(name)]
    target, query = _split_query(request.target)
    path = None
    if request.host in PATH_SECRETS:
        target, path = _split_path(PATH_SECRETS[request.host], target)
    if not taken and not query and path is None:
        return request, NONE
    headers = list(request.headers)
    out = [headers.pop(index) for index in reversed(taken)]
    credentials = Credentials(tuple(reversed(out)), query, tuple(taken), path)
    return request.with_(target=target, headers=tuple(headers)), credentials


def join(bare: Request, credentials: Credentials) -> Request:
    """``bare`` with the credentials; with those it was split from, the very same bytes.

    Credentials of another call may be lent to it, and to a lookup: parameters it has no mask for
    are appended. Raises MissingCredential where a mask would stay.
    """
    headers = list(bare.headers)
    for position, pair in zip(credentials.positions, credentials.headers, strict=True):
        headers.insert(position, pair)
    target = _join_query(bare.target, credentials.query)
    if credentials.path is not None:
        secret, mask = credentials.path
        target = target.replace(mask, secret, 1)
    if bare.host in PATH_SECRETS and _PATH_MASK.search(target.partition("?")[0]):
        raise MissingCredential("no credential for the path")
    return bare.with_(target=target, headers=tuple(headers))


def principal(credentials: Credentials) -> str | None:
    """Text that is the same as long as the whole credential is: to be digested, never stored. None
    if nothing in it says who asks. What is made for one request (signatures) does not count."""
    named = [(name.lower(), _lasting(name, value)) for name, value in credentials.headers]
    named += [(name, piece.partition("=")[2]) for name, piece in credentials.query]
    if credentials.path is not None:
        named.append(("path", credentials.path[0]))
    who = sorted((name, value) for name, value in named if name not in PER_REQUEST)
    if not who:
        return None
    return "\n".join(f"{len(name)}:{len(value)}:{name}={value}" for name, value in who)


def is_signed(credentials: Credentials) -> bool:
    """Whether they are a signature of the request (AWS and its likes, RFC 9421, presigned URLs):
    one that is changed is not accepted."""
    return is_signed_whole(credentials) or any(
        name.lower() == "signature-input" for name, _ in credentials.headers
    )


def is_signed_whole(credentials: Credentials) -> bool:
    """Whether the signature covers address and body (AWS and its likes, presigned URLs)."""
    return any("SignedHeaders=" in value for _, value in credentials.headers) or any(
        name in ("x-amz-signature", "x-goog-signature") for name, _ in credentials.query
    )


def _split_path(pattern: re.Pattern[str], target: str) -> tuple[str, tuple[str, str] | None]:
    """The target with its secret segment masked by a digest, so that two of them stay two."""
    found = pattern.match(target)
    if found is None:
        return target, None
    secret = found["secret"]
    mask = MASK + hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return target[: found.start("secret")] + mask + target[found.end("secret") :], (secret, mask)


def account_of(request: Request, account: tuple[str, str] | None) -> str | None:
    """What selects the account, read the way the rule says; None if the request does not say.

    ``request`` is whole, with its credentials. ``account`` is ``("header", NAME)``,
    ``("basic", "user")`` or ``("jwt", CLAIM)``; a token's signature is not checked (the API does).
    """
    if account is None:
        return None
    how, name = account
    match how:
        case "header":
            values = [value for key, value in request.headers if key.lower() == name.lower()]
            return ", ".join(values) if values else None
        case "basic":
            return _basic_user(request)
        case "jwt":
            return _claim(request, name)
    raise ValueError(f"account cannot be read from {how!r}: use header, basic or jwt")


def _looks_random(value: str) -> bool:
    return len(value) >= RANDOM_LENGTH and len(_CHANGE.findall(value)) >= RANDOM_CHANGES


def _split_query(target: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    path, mark, query = target.partition("?")
    if not query:
        return target, ()
    pieces: list[str] = []
    taken: list[tuple[str, str]] = []
    for piece in query.split("&"):
        name, equals, value = piece.partition("=")
        decoded = unquote_plus(name).lower()
        if value and is_secret_parameter(decoded, value):
            taken.append((decoded, piece))
            pieces.append(name + equals + MASK)
        else:
            pieces.append(piece)
    return path + mark + "&".join(pieces), tuple(taken)


def _join_query(target: str, query: tuple[tuple[str, str], ...]) -> str:
    path, mark, rest = target.partition("?")
    left = list(query)
    pieces: list[str] = []
    for piece in rest.split("&") if mark else []:
        name, _, value = piece.partition("=")
        decoded = unquote_plus(name).lower()
        if value == MASK and is_secret_parameter(decoded, MASK):
            own = next((one for one in left if one[0] == decoded), None)
            if own is None:
                raise MissingCredential(f"no credential for the query parameter {decoded}")
            left.remove(own)
            piece = own[1]
        pieces.append(piece)
    lent = [piece for name, piece in left if name not in PER_REQUEST]
    if not mark and not lent:
        return target
    return path + "?" + "&".join([piece for piece in pieces if piece or not lent] + lent)


def _lasting(name: str, value: str) -> str:
    """The part of a header's value that is the same for every request of the same principal."""
    if name.lower() != "authorization":
        return value
    scheme, _, rest = value.partition(" ")
    scheme = scheme.lower()
    if scheme.startswith("aws4-"):
        key_id = re.search(r"Credential=([^/,\s]+)", rest)
        return f"{scheme} {key_id[1]}" if key_id else value
    if scheme not in LASTING:
        return value
    pairs = dict(re.findall(r'([A-Za-z_]+)\s*=\s*"?([^",]*)', rest))
    stable = [f"{key}={pairs[key]}" for key in LASTING[scheme] if pairs.get(key)]
    return f"{scheme} {' '.join(stable)}" if stable else value


def _authorization(request: Request, scheme: str) -> str | None:
    value = request.header("authorization") or ""
    named, _, rest = value.strip().partition(" ")
    return rest.strip() if named.lower() == scheme else None


def _basic_user(request: Request) -> str | None:
    encoded = _authorization(request, "basic")
    if encoded is None:
        return None
    try:
        decoded = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None
    return decoded.decode("utf-8", "surrogateescape").partition(":")[0]


def _claim(request: Request, name: str) -> str | None:
    token = (_authorization(request, "bearer") or "").split(".")
    if len(token) != 3:
        return None
    try:
        claims = orjson.loads(base64.urlsafe_b64decode(token[1] + "=" * (-len(token[1]) % 4)))
    except (binascii.Error, ValueError):
        return None
    value = claims.get(name) if isinstance(claims, dict) else None
    if value is None or isinstance(value, str):
        return value
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
