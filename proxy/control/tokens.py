"""Who may use the control API: bearer tokens with a name and a role.

A *run*, by its own token, sees and changes that run alone. An *agent* may read everything, and act
for runs that have no token. An *operator* may also decide. The agent process is assumed to be able
to read everything it is given, so the two never share a token.
"""

from __future__ import annotations

import enum
import hmac
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from proxy.config import ControlConfig

TOKEN_BYTES = 32  # 256 bits: beyond guessing
STRONG = 32  # characters of one that may stand between the network and the control API


class Role(enum.IntEnum):
    """Each role may do what the lower one may."""

    RUN = 0
    AGENT = 1
    OPERATOR = 2


STANDING = (Role.AGENT, Role.OPERATOR)
"""Roles whose tokens are made at the first start."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose token it is; the name is what acts are recorded under."""

    name: str
    role: Role
    run: str | None = None  # of a run's token: as the agent names it


class TokensUnusable(Exception):
    """The token file is there and cannot be used; the message says what to do."""


class Tokens:
    """The tokens in force. ``secrets`` are their texts, for redaction."""

    def __init__(self, held: Sequence[tuple[str, Holder]]) -> None:
        self._held = tuple((token.encode(), holder) for token, holder in held)
        self.secrets = tuple(token for token, _ in held)

    def holder(self, token: str) -> Holder | None:
        """Compares with every token in constant time, so that time tells nothing."""
        given = token.encode("utf-8", "surrogateescape")
        found = None
        for known, holder in self._held:
            if hmac.compare_digest(known, given):
                found = holder
        return found


def gather(config: ControlConfig, file: Path) -> Tokens:
    """The configured tokens, and for a role without one that of the file, made if absent.

    Raises TokensUnusable, OSError.
    """
    held = [
        (token.token.reveal(), Holder(token.name, Role[token.role.upper()]))
        for token in config.tokens
        if token.token is not None
    ]
    given = {"agent": config.agent_token, "operator": config.operator_token}
    made = read_or_make(file) if None in given.values() else {}
    for name, secret in given.items():
        held.append((secret.reveal() if secret else made[name], Holder(name, Role[name.upper()])))
    if not config.listen.loopback:
        for token, holder in held:
            if len(token) < STRONG or len(set(token)) < STRONG // 4:
                raise TokensUnusable(
                    f"control.listen is {config.listen}, which others can reach, and the token "
                    f"{holder.name} can be guessed: give it {STRONG} random characters, or listen "
                    "on 127.0.0.1"
                )
    return Tokens(held)


def read_or_make(file: Path) -> dict[str, str]:
    """``{"agent": ..., "operator": ...}`` from the file; made with mode 0600 if it is absent."""
    try:
        return read(file)
    except FileNotFoundError:
        pass
    made = {role.name.lower(): secrets.token_urlsafe(TOKEN_BYTES) for role in STANDING}
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        json.dump(made, out, indent=2)
        out.write("\n")
    try:
        os.link(temporary, file)  # unlike rename, never replaces one that another process made
    except FileExistsError:
        return read(file)
    finally:
        temporary.unlink()
    return made


def read(file: Path) -> dict[str, str]:
    """Raises FileNotFoundError, TokensUnusable, OSError."""
    if file.stat().st_mode & 0o077:
        raise TokensUnusable(f"{file} can be read by others: run chmod 600 {file}")
    advice = f"remove {file} to have new tokens made"
    try:
        held = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise TokensUnusable(f"{file} is not JSON: {advice}") from error
    wanted = [role.name.lower() for role in STANDING]
    if not isinstance(held, dict) or not all(
        isinstance(held.get(name), str) and held[name] for name in wanted
    ):
        raise TokensUnusable(f"{file} does not hold a token for {' and '.join(wanted)}: {advice}")
    return {name: held[name] for name in wanted}
