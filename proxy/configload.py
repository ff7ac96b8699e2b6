"""From files, environment and flags to one ``Config``: flags win over environment over file.

All problems are found before the first is reported, each as ``file:line:column: key.path: what``.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from proxy.config import Address, Config, Secret, parent_address, webhook_key, webhook_origin
from proxy.core.egress import Line
from proxy.failpoints import Fault
from proxy.options import (
    PREFIX,
    Option,
    OptionPath,
    is_list,
    is_section,
    is_structured,
    names_beside,
    options,
)
from proxy.rulefile import yamltext
from proxy.rulefile.problems import Problems, did_you_mean, shown

CONFIG_VARIABLE = "ONCEPROXY_CONFIG"  # names the file; not an option itself


class ConfigErrors(Exception):
    """A configuration that cannot be used; ``problems`` has one line for each thing wrong."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, where each option that is not a default came from, and what looks odd."""

    config: Config
    origins: Mapping[str, str]
    warnings: tuple[str, ...] = ()


def load(
    file: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Loaded:
    """Load and check a configuration.

    ``flags`` maps option names (``ledger.url``) to values. Without ``file`` the one that
    ``ONCEPROXY_CONFIG`` names is read, else none. Raises ConfigErrors.
    """
    environ = os.environ if environ is None else environ
    if file is None and environ.get(CONFIG_VARIABLE):
        file = Path(environ[CONFIG_VARIABLE])
    return _Load(file, environ, flags or {}).run()


class _Load:
    """One load. Keeps where every value came from, so that every problem can name its place."""

    def __init__(
        self, file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any]
    ) -> None:
        self.file = file
        self.environ = environ
        self.flags = flags
        self.problems: list[tuple[int, int, str]] = []  # line, column (0: elsewhere), text
        self.warnings: list[str] = []
        self.marks: Mapping[tuple[str | int, ...], tuple[int, int]] = {}
        self.origins: dict[OptionPath, str] = {}
        self.known = {option.name: option for option in options()}

    def run(self) -> Loaded:
        raw = self._read_file()
        self._stop_at_problems()  # what a broken file means cannot be checked further
        self._add_environment(raw)
        self._add_flags(raw)
        self._default_state_dir(raw)
        config = self._validate(_without_nulls(raw, Config))
        self._stop_at_problems()
        assert config is not None
        config = self._resolved(config, ())
        self._check(config)
        self._stop_at_problems()
        origins = {".".join(path): origin for path, origin in self._all_origins(raw)}
        return Loaded(config, origins, tuple(self.warnings))

    # Reading

    def _read_file(self) -> dict[str, Any]:
        if self.file is None:
            return {}
        try:
            text = self.file.read_text("utf-8-sig")
        except OSError as error:
            self.problems.append((0, 0, f"{self.file}: cannot be read: {error.strerror}"))
            return {}
        except UnicodeDecodeError:
            self.problems.append((0, 0, f"{self.file}: is not UTF-8: save it as UTF-8"))
            return {}
        if not _says_anything(text):
            return {}
        found = Problems(str(self.file))
        data = yamltext.read(text, found)
        self.marks = found.marks
        self.problems += [(0, number, text) for number, text in enumerate(found.errors)]
        if not found.errors and not isinstance(data, dict):
            self._at((), "must be a mapping of options, such as listen: 127.0.0.1:8901")
        return _without_decimals(data) if isinstance(data, dict) else {}

    def _add_environment(self, raw: dict[str, Any]) -> None:
        by_variable = {option.variable: option for option in self.known.values()}
        for variable in sorted(self.environ):
            if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE:
                continue
            option = by_variable.get(variable)
            if option is None:
                # Not an error: Kubernetes makes such names for every service of a namespace.
                near = difflib.get_close_matches(variable, by_variable, 1, 0.85)
                if near:
                    self.warnings.append(f"{variable} is no option; did you mean {near[0]}?")
                continue
            self.origins[option.path] = f"environment {variable}"
            self._set(raw, option.path, self._from_text(option, self.environ[variable]))

    def _add_flags(self, raw: dict[str, Any]) -> None:
        for name, value in self.flags.items():
            option = self.known.get(name)
            if option is None:
                hint = did_you_mean(name, self.known)
                self.problems.append((0, 0, f"flags: {name}: unknown option{hint}"))
                continue
            self.origins[option.path] = f"flag {name}"
            text = self._from_text(option, value) if isinstance(value, str) else value
            self._set(raw, option.path, text)

    def _default_state_dir(self, raw: dict[str, Any]) -> None:
        if raw.get("state_dir") is not None:
            return
        home = self.environ.get("XDG_STATE_HOME") or ""
        if not os.path.isabs(home):  # the XDG rules: a relative one is to be ignored
            try:
                home = str(Path("~/.local/state").expanduser())
            except RuntimeError:
                self.problems.append((0, 0, "state_dir: no home directory here: set state_dir"))
                return
        raw["state_dir"] = str(Path(home) / "onceproxy")

    def _from_text(self, option: Option, text: str) -> Any:
        """A list is ``a,b`` or YAML's ``[a, b]``, a mapping is YAML's ``{a: b}``, the rest text."""
        if not is_structured(option.type):
            return text
        if is_list(option.type) and not text.lstrip().startswith("["):
            return [part.strip() for part in text.split(",") if part.strip()]
        found = Problems(option.variable)
        value = yamltext.read(text, found)
        for error in found.errors:
            self._problem(option.path, error.split(": ", 1)[1])
        return _without_decimals(value)

    @staticmethod
    def _set(raw: dict[str, Any], path: OptionPath, value: Any) -> None:
        for name in path[:-1]:
            inner = raw.get(name)
            if inner is None:
                inner = raw[name] = {}
            if not isinstance(inner, dict):
                return  # the file has something else there, which validation will name
            raw = inner
        raw[path[-1]] = value

    # Checking

    def _validate(self, raw: dict[str, Any]) -> Config | None:
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(Config).validate_python(raw)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                self._explain(typing.cast("Mapping[str, Any]", detail))
            return None

    def _explain(self, detail: Mapping[str, Any]) -> None:
        path = detail["loc"]
        kind = detail["type"]
        context = detail.get("ctx", {})
        if kind in ("unexpected_keyword_argument", "extra_forbidden"):
            hint = did_you_mean(str(path[-1]), names_beside(path))
            self._problem(path, f"unknown option{hint}")
        elif kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
            self._problem(path, "is missing")
        elif kind == "literal_error":
            allowed = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
            hint = did_you_mean(str(detail["input"]), allowed)
            self._problem(path, f"must be one of {', '.join(allowed)}{hint}")
        elif kind == "value_error":
            for line in str(context["error"]).splitlines():
                self._problem(path, line.removeprefix("faults: "))
        else:
            self._problem(path, _PLAIN.get(kind, detail["msg"]))

    def _resolved(self, value: Any, path: OptionPath) -> Any:
        """The same with relative paths made absolute and the contents of secret files filled in."""
        changes: dict[str, Any] = {}
        for field in dataclasses.fields(value):
            here = (*path, field.name)
            item = getattr(value, field.name)
            if isinstance(item, Path):
                changes[field.name] = self._absolute(item, here)
            elif dataclasses.is_dataclass(item) and field.name != "listen":
                changes[field.name] = self._resolved(item, here)
            elif isinstance(item, tuple) and item:
                changes[field.name] = tuple(
                    self._absolute(part, here)
                    if isinstance(part, Path)
                    else self._resolved(part, (*here, str(number)))
                    if dataclasses.is_dataclass(part)
                    and not isinstance(part, (Secret, Fault, Line))
                    else part
                    for number, part in enumerate(item)
                )
        changed = dataclasses.replace(value, **changes) if changes else value
        return self._with_secrets(changed, path)

    def _absolute(self, path: Path, option: OptionPath) -> Path:
        try:
            path = path.expanduser()
        except RuntimeError:
            self._problem(option, f"{path}: no such home directory")
        from_file = self.file is not None and option not in self.origins
        base = self.file.parent if from_file and self.file is not None else Path()
        return (base / path).absolute()

    def _with_secrets(self, section: Any, path: OptionPath) -> Any:
        names = {field.name for field in dataclasses.fields(section)}
        changes: dict[str, Any] = {}
        for name in sorted(names):
            source = getattr(section, f"{name}_file", None)
            if f"{name}_file" not in names or not source:
                continue
            if getattr(section, name):
                self._problem((*path, name), f"give {name} or {name}_file, not both")
                continue
            files = source if isinstance(source, tuple) else (source,)
            read = tuple(self._secret(file, (*path, f"{name}_file")) for file in files)
            changes[name] = read if isinstance(source, tuple) else read[0]
        return dataclasses.replace(section, **changes) if changes else section

    def _secret(self, file: Path, path: OptionPath) -> Secret:
        try:
            text = file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            self._problem(path, f"{file} cannot be read: {reason}")
            return Secret("")
        if not text:
            self._problem(path, f"{file} is empty")
        return Secret(text)

    def _check(self, config: Config) -> None:
        self._check_addresses(config)
        self._check_tokens(config)
        if (config.tls.ca_cert_file is None) != (config.tls.ca_key_file is None):
            self._problem(("tls",), "give both ca_cert_file and ca_key_file, or neither")
        for path, file in (
            (("tls", "ca_cert_file"), config.tls.ca_cert_file),
            (("tls", "ca_key_file"), config.tls.ca_key_file),
            (("upstream", "ca_file"), config.upstream.ca_file),
        ):
            if file is not None and not file.is_file():
                self._problem(path, f"{file} is not there")
        self._check_upstream(config)
        self._check_notify(config)
        for directory in config.rules:
            if not directory.is_dir():
                self._problem(("rules",), f"{directory} is not a directory")
        if any(len(secret.reveal()) < 16 for secret in config.identity.secret):
            self._problem(("identity", "secret"), "must have at least 16 characters")

    def _check_upstream(self, config: Config) -> None:
        import ssl

        file = config.upstream.ca_file
        if file is not None and file.is_file():
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
            except (OSError, ssl.SSLError):
                self._problem(("upstream", "ca_file"), f"{file} holds no certificate in PEM")
        if config.upstream.proxy is None:
            return
        try:
            parent = parent_address(config.upstream.proxy)
        except ValueError as error:  # it may come from a file, which nobody has read before
            self._problem(("upstream", "proxy"), str(error))
            return
        if parent.port == config.listen.port and parent.loopback:
            self._problem(("upstream", "proxy"), "is this proxy itself: name another one")

    def _check_notify(self, config: Config) -> None:
        notify, path = config.notify, ("notify", "secret")
        if notify.url is None:
            if notify.secret:
                self._problem(("notify",), "give url as well: where webhooks are sent")
            return
        try:
            receiver = webhook_origin(notify.url)
        except ValueError as error:  # it may come from a file, which nobody has read before
            self._problem(("notify", "url"), str(error))
            return
        if receiver.loopback and any(receiver.port == own.port for own in config.listeners):
            self._problem(("notify", "url"), "is this proxy itself: name another receiver")
        if not notify.secret:
            self._problem(("notify",), "give secret or secret_file: webhooks are signed")
        for secret in notify.secret:
            try:
                short = len(webhook_key(secret)) < 16
            except ValueError as error:
                self._problem(path, str(error))
                continue
            if short:
                self._problem(path, "must have at least 16 characters")

    def _check_addresses(self, config: Config) -> None:
        taken: dict[str, str] = {}
        listed: list[tuple[tuple[str | int, ...], Address | None]] = [
            (("listen",), config.listen),
            (("control", "listen"), config.control.listen),
            (("probe",), config.probe),
            *((("gateway", n, "listen"), g.listen) for n, g in enumerate(config.gateway)),
        ]
        for path, address in listed:
            if address is None or address.port == 0:
                continue
            other = taken.setdefault(str(address), shown(path))
            if other != shown(path):
                self._problem(path, f"{address} is taken by {other}: choose another port")

    def _check_tokens(self, config: Config) -> None:
        control = config.control
        names: set[str] = set()
        listed: list[tuple[tuple[str | int, ...], Secret | None]] = [
            (("control", "agent_token"), control.agent_token),
            (("control", "operator_token"), control.operator_token),
        ]
        for number, token in enumerate(control.tokens):
            path = ("control", "tokens", number)
            listed.append(((*path, "token"), token.token))
            if token.token is None:
                self._problem(path, "give token or token_file")
            if token.name in names:
                self._problem((*path, "name"), f"{token.name} is there twice")
            names.add(token.name)
        for where, secret in listed:
            if secret is not None and not control.listen.loopback and len(secret.reveal()) < 32:
                self._problem(
                    where, "must have at least 32 characters, as control.listen is not a loopback"
                )

    # Reporting

    def _problem(self, path: Sequence[str | int], message: str) -> None:
        origin = self._origin(path)
        if origin is None and self.file is not None and path:
            self._at(tuple(path), message)
        else:
            before = f"{origin}: " if origin else ""
            self.problems.append((0, 0, f"{before}{shown(tuple(path))}: {message}"))

    def _origin(self, path: Sequence[str | int]) -> str | None:
        texts = tuple(str(part) for part in path)
        for length in range(len(texts), 0, -1):
            if texts[:length] in self.origins:
                return self.origins[texts[:length]]
        return None

    def _at(self, path: tuple[str | int, ...], message: str) -> None:
        known = path
        while known and known not in self.marks:
            known = known[:-1]
        line, column = self.marks.get(known, (1, 1))
        name = f"{shown(path)}: " if path else ""
        self.problems.append((line, column, f"{self.file}:{line}:{column}: {name}{message}"))

    def _stop_at_problems(self) -> None:
        if self.problems:
            raise ConfigErrors([text for _, _, text in sorted(self.problems)])

    def _all_origins(self, raw: dict[str, Any]) -> Iterator[tuple[OptionPath, str]]:
        for option in self.known.values():
            if option.path in self.origins:
                yield option.path, self.origins[option.path]
            elif option.path in self.marks:
                yield option.path, f"{self.file}:{self.marks[option.path][0]}"


_PLAIN = {
    "dataclass_type": "must be a mapping of options",
    "dict_type": "must be a mapping",
    "mapping_type": "must be a mapping",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "string_type": "must be text: put it in quotes",
    "path_type": "must be a path",
    "bool_parsing": "must be true or false",
}


def _without_nulls(raw: Any, kind: Any) -> Any:
    """An option without a value (``ledger:`` with all its lines commented out) is not given."""
    if not isinstance(raw, dict):
        return raw
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        name: _without_nulls(value, hints[name]) if is_section(hints.get(name, str)) else value
        for name, value in raw.items()
        if value is not None or name not in hints
    }


def _without_decimals(value: Any) -> Any:
    """Numbers as Python has them; the reader keeps the exact text of those with a point."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, Mapping):
        return {name: _without_decimals(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_decimals(inner) for inner in value]
    return value


def _says_anything(text: str) -> bool:
    """Whether there is more than comments; a file that sets nothing is a fine configuration."""
    lines = (line.strip() for line in text.splitlines())
    return any(line and not line.startswith(("#", "---")) for line in lines)
