"""The control API of the proxy that runs with this state directory, for commands."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from proxy.config import Address, Config, parse_address

TIMEOUT_SECONDS = 60.0  # a reconcile asks an API, page by page


class NotRunning(Exception):
    """No proxy answers; the message says how to start one."""


class Refused(Exception):
    """The control API said no."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(str(problem.get("detail") or problem.get("title") or status))
        self.status = status
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Serving:
    """A proxy that said where it listens."""

    pid: int
    listen: Address
    control: Address
    ca_cert: str | None
    run_tokens: bool = False  # only calls with a run token are taken

    def as_json(self) -> dict[str, Any]:
        return {
            "pid": self.pid,
            "listen": str(self.listen),
            "control": str(self.control),
            "ca_cert": self.ca_cert,
            "run_tokens": self.run_tokens,
        }


def serving(config: Config) -> Serving | None:
    """What the last proxy with this state directory wrote; it may be gone."""
    try:
        data = json.loads(config.serving_path.read_text("utf-8"))
        return Serving(
            int(data["pid"]),
            parse_address(data["listen"]),
            parse_address(data["control"]),
            data["ca_cert"],
            bool(data.get("run_tokens")),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def reachable(address: Address) -> Address:
    """The same for a client: a wildcard is listened on, not connected to."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    return Address(host, address.port)


def ask(
    address: Address,
    path: str,
    token: str | None = None,
    body: object = None,
    method: str = "POST",
) -> Any:
    """GET, or ``method`` with a body. Raises NotRunning, Refused."""
    method = "GET" if body is None else method
    headers = {"Accept": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    target = reachable(address)
    connection = http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        raw = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise NotRunning(f"nothing answers at {address}: {error}") from error
    finally:
        connection.close()
    parsed = _parse(raw)
    if response.status >= 400:
        raise Refused(response.status, parsed if isinstance(parsed, dict) else {})
    return parsed


class ControlClient:
    """Acts as an operator of the proxy that runs with this configuration's state directory."""

    def __init__(self, config: Config) -> None:
        found = serving(config)
        self._address = found.control if found else config.control.listen
        self._hint = (
            f"no proxy runs with state_dir {config.state_dir}: start one with onceproxy serve, "
            "or give the --config or --state-dir of the one that runs"
        )
        self._token = _operator_token(config, self._hint)

    def get(self, path: str, **query: object) -> Any:
        given = {name: str(value) for name, value in query.items() if value not in (None, "", ())}
        return self._ask(f"{path}?{urlencode(given)}" if given else path, None)

    def post(self, path: str, body: object) -> Any:
        return self._ask(path, body)

    def put(self, path: str, body: object) -> Any:
        return self._ask(path, body, "PUT")

    def _ask(self, path: str, body: object, method: str = "POST") -> Any:
        try:
            return ask(self._address, path, self._token, body, method)
        except NotRunning as error:
            raise NotRunning(f"{self._hint} ({error})") from error


def run_path(run: str, suffix: str = "") -> str:
    """``run`` as the agent names it."""
    return f"/v1/runs/{quote(run, safe='')}{suffix}"


def operation_path(key: str, suffix: str = "") -> str:
    return f"/v1/operations/{quote(key, safe='')}{suffix}"


def _operator_token(config: Config, hint: str) -> str:
    if config.control.operator_token is not None:
        return config.control.operator_token.reveal()
    try:
        return str(json.loads(config.tokens_path.read_text("utf-8"))["operator"])
    except FileNotFoundError:
        raise NotRunning(hint) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotRunning(f"{config.tokens_path} cannot be used: {error}") from error


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return {"detail": raw[:200].decode("utf-8", "replace")}
