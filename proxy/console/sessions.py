"""Who is signed in, in memory only: a restart of the proxy signs everybody out."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from proxy.control.tokens import Holder

IDLE_SECONDS: Final = 30 * 60.0  # a screen that was left alone
LIFE_SECONDS: Final = 8 * 3600.0  # one shift
SESSIONS_MAX: Final = 200  # far above the operators of one proxy; the oldest makes room
TRIES: Final = (
    5  # wrong tokens from one address within the time below; a person mistypes once or twice
)
TRIES_SECONDS: Final = 60.0
ADDRESSES_MAX: Final = 1_000  # remembered
ID_BYTES: Final = 32


@dataclass(slots=True)
class Session:
    """``form``: the token that every form of this session carries. ``notes``: what the next page
    tells, as (tone, text)."""

    holder: Holder
    form: str
    began: float
    used: float
    notes: list[tuple[str, str]] = field(default_factory=list)

    def is_form(self, given: str) -> bool:
        return hmac.compare_digest(self.form.encode(), given.encode("utf-8", "replace"))


class Sessions:
    """By the digest of their id, so that looking one up takes no time that tells of the others."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._open: OrderedDict[bytes, Session] = OrderedDict()

    def open(self, holder: Holder) -> str:
        """A new session; returns its id, which only the browser keeps."""
        now = self._now()
        while len(self._open) >= SESSIONS_MAX:
            self._open.popitem(last=False)
        made = secrets.token_urlsafe(ID_BYTES)
        self._open[_digest(made)] = Session(holder, secrets.token_urlsafe(ID_BYTES), now, now)
        return made

    def find(self, given: str) -> Session | None:
        """The session of that id, unless its time is over."""
        digest, now = _digest(given), self._now()
        session = self._open.get(digest)
        if session is None:
            return None
        if now - session.used > IDLE_SECONDS or now - session.began > LIFE_SECONDS:
            del self._open[digest]
            return None
        session.used = now
        return session

    def close(self, given: str) -> None:
        self._open.pop(_digest(given), None)


class Tries:
    """Wrong tokens by address, so that a weak one cannot be found by trying."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Seconds until that address may try again; 0 for at once."""
        wrong = self._wrong.get(_network(address))
        if wrong is None:
            return 0.0
        while wrong and self._now() - wrong[0] >= TRIES_SECONDS:
            wrong.popleft()
        return wrong[0] + TRIES_SECONDS - self._now() if len(wrong) >= TRIES else 0.0

    def failed(self, address: str) -> None:
        network = _network(address)
        while len(self._wrong) >= ADDRESSES_MAX and network not in self._wrong:
            self._wrong.popitem(last=False)
        self._wrong.setdefault(network, deque(maxlen=TRIES)).append(self._now())
        self._wrong.move_to_end(network)


def _network(address: str) -> str:
    """One household's IPv6 addresses count as one."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
