"""Who may import whom. A new module finds its place in this table first."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "proxy"

# component -> the components of this package that it may import, besides itself. A component is a
# package or a module directly under proxy/; ``ledger.base`` and ``net.exchange`` are among the
# faces that others see of theirs.
BASE = frozenset({"core", "clock", "errors", "units", "failpoints"})
LOADING = BASE | {"config", "configload", "options", "strictyaml", "rulefile"}
FACES = frozenset(
    {"ledger.base", "net.egress", "net.exchange", "net.listener", "net.problem", "metrics", "log"}
)
HELPERS = frozenset(
    {
        "approvals",
        "authority",
        "bound",
        "flights",
        "hints",
        "lending",
        "lookups",
        "outbound",
        "relay",
        "replies",
    }
)
MAY_IMPORT: dict[str, frozenset[str]] = {
    "core": frozenset(),
    "capacity": frozenset(),
    "helpers": frozenset(),  # run inside agents, where this package is not
    "clock": frozenset(),
    "errors": frozenset(),
    "units": frozenset(),
    "failpoints": BASE,
    "strictyaml": BASE,
    "config": BASE,
    "options": BASE | {"config"},
    "configload": LOADING,
    "rulefile": BASE | {"strictyaml"},
    "log": BASE,
    "metrics": BASE | {"ledger.base"},
    "ledger": BASE,
    "net": BASE | {"config"},
    "flights": BASE | {"relay"},
    "authority": BASE | FACES,
    "approvals": BASE | FACES,
    "bound": BASE | FACES | {"flights"},
    "lending": BASE | FACES | {"bound", "outbound"},
    "lookups": BASE | FACES | {"bound", "flights", "lending", "outbound"},
    "replies": BASE | FACES | HELPERS | {"engine"},
    "relay": BASE | FACES,
    "outbound": BASE | FACES | {"relay"},
    "hints": BASE | FACES | {"outbound"},
    "snapshots": BASE | FACES | HELPERS,
    "engine": BASE | FACES | HELPERS | {"snapshots"},
    "metered": BASE | FACES | HELPERS | {"engine"},
    "tunnels": BASE | FACES | HELPERS | {"engine"},
    "journal": BASE | FACES | HELPERS | {"engine", "metered", "replies"},
    "passing": BASE | FACES | HELPERS | {"engine", "journal", "metered", "replies", "tunnels"},
    "callers": BASE | FACES | HELPERS | {"engine", "passing", "replies"},
    "notify": BASE | FACES,
    "retention": BASE | FACES,
    "recovery": BASE | FACES | HELPERS | {"engine"},
    "service": BASE | FACES | HELPERS | {"engine", "recovery", "retention"},
    "control": LOADING | FACES | HELPERS | {"service"},
    "console": BASE | {"control", "ledger.base", "service"},  # asks and acts through the service
}
# These put the others together or stand outside: all of the package is theirs, but see below.
ASSEMBLY = frozenset({"app", "cli", "drill", "__init__", "__main__"})
MAY_KNOW_STORES = frozenset({"app", "ledger"})
"""Only the composition root names a store's class; everyone else knows the protocol."""
STORES = frozenset({"ledger.sqlite", "ledger.memory", "ledger.postgres"})

CORE_LIBRARIES = frozenset({"jmespath", "orjson", "graphql"})  # pure functions over values
CORE_FORBIDDEN = frozenset(
    {
        "asyncio",
        "concurrent",
        "io",
        "multiprocessing",
        "os",
        "pathlib",
        "random",
        "secrets",
        "shutil",
        "socket",
        "sqlite3",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
    }
)
CORE_FORBIDDEN_CALLS = frozenset({"open", "input", "print", "now", "utcnow", "today", "uuid1"})

MODULES = sorted(PACKAGE.rglob("*.py"))


def component(dotted: str) -> str:
    """``core.decide.state`` -> ``core``; the faces of a package are components of their own."""
    parts = dotted.split(".")
    face = ".".join(parts[:2])
    return face if face in FACES | STORES else parts[0]


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "proxy":
                yield from (f"proxy.{alias.name}" for alias in node.names)
            elif node.module:
                yield node.module


def inside(path: Path) -> set[str]:
    """The components of this package that a module imports."""
    names = {name for name in imported(path) if name.startswith("proxy.")}
    return {component(n.removeprefix("proxy.")) for n in names} - {"__version__"}


def name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    own = name(path).split(".")[0]
    if own in ASSEMBLY:
        return
    assert own in MAY_IMPORT, f"{own} is new: say in this table what it may import"
    for other in inside(path):
        package = other.split(".")[0]
        assert package == own or other in MAY_IMPORT[own], f"{path}: {own} must not import {other}"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_only_the_composition_root_names_a_store(path: Path) -> None:
    if name(path).split(".")[0] not in MAY_KNOW_STORES:
        assert not inside(path) & STORES


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").rglob("*.py")), ids=name)
def test_the_core_cannot_wait_read_or_roll_dice(path: Path) -> None:
    for module in imported(path):
        top = module.split(".")[0]
        if top != "proxy":
            assert top in sys.stdlib_module_names or top in CORE_LIBRARIES, f"{path}: {module}"
        assert top not in CORE_FORBIDDEN, f"{path}: {module}"
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith)
        if isinstance(node, ast.Call):
            called = node.func
            word = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            assert word not in CORE_FORBIDDEN_CALLS, f"{path}:{node.lineno}: {word}()"


def test_one_file_sends() -> None:
    """Every request of ours goes through the one adapter that cannot send it twice."""
    senders = {
        name(path)
        for path in MODULES
        if name(path).split(".")[0] not in {"cli", "drill"}  # they talk to the proxy itself
        and {"ClientSession", "TCPConnector"} & _names(path)
    }
    assert senders <= {"net.upstream", "net.client", "net.connector"}, senders


def _names(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }
