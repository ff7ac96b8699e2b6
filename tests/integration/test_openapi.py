"""The control API is what its description says: routes and roles, and generated requests against a
running proxy with something in every state.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from proxy.errors import CODES
from tests.fakes.filled import NAMED, Filled, filled
from tests.integration.openapi_data import concrete, described, with_data

HERE = Path(__file__).parent
CONFIG = HERE / "schemathesis.toml"

HOLDERS = (
    "none",
    "wrong",
    "own",  # of the run that the path names
    "of another run",
    "revoked",
    "agent",
    "agent, guarded run",
    "operator",
    "operator by name",
)
NO_ONE = {"none", "wrong"}
ROUTES = [
    (method.upper(), path, entry)
    for path, methods in described()["paths"].items()
    for method, entry in methods.items()
]
BODIES: dict[tuple[str, str], object] = {
    ("POST", "/v1/operations/{key}/resolve"): {"as": "abandoned"},
    ("PUT", "/v1/runs/{run}/budget"): {"writes": 1},
    ("PUT", "/v1/runs/{run}/checkpoint"): {"state": 1},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    with filled(tmp_path_factory.mktemp("openapi")) as found:
        yield found


def expected(role: str | None, holder: str) -> set[int] | None:
    """The statuses of a refusal; None: it is not refused for who asks."""
    if role is None:
        return None
    if holder in NO_ONE:
        return {401}
    if holder == "own":
        return None if role == "run" else {403}
    if holder in ("of another run", "revoked"):
        return {401} if role == "run" else {403}
    if holder == "agent":
        return {403} if role == "operator" else None
    if holder == "agent, guarded run":
        return {403} if role in ("run", "operator") else None
    return None


def token_of(made: Filled, holder: str) -> str | None:
    names = {
        "own": "guarded",
        "of another run": "other",
        "revoked": "revoked-token",
        "agent": "agent",
        "agent, guarded run": "watcher",
        "operator": "operator",
        "operator by name": "ann",
    }
    if holder == "none":
        return None
    return "wrong" * 10 if holder == "wrong" else made.tokens[names[holder]]


def run_of(holder: str) -> str:
    return {"agent": "open", "revoked": "revoked-token"}.get(holder, "guarded")


def test_the_holders_are_all_kinds_there_are() -> None:
    assert set(NAMED.values()) == {"agent", "operator"}
    assert {entry.get("x-role") for _, _, entry in ROUTES} == {None, "run", "agent", "operator"}


@pytest.mark.parametrize("holder", HOLDERS)
def test_every_route_for_every_kind_of_token(made: Filled, holder: str) -> None:
    token = token_of(made, holder)
    for method, path, entry in ROUTES:
        role = entry.get("x-role")
        assert (role is None) == (entry.get("security") == []), path
        body = BODIES.get((method, path), {} if method in ("POST", "PUT") else None)
        status, told = made.ask(method, concrete(made, path, run_of(holder)), body, token)
        about = (method, path, holder, status, told)
        assert str(status) in entry["responses"], about
        refused = expected(role, holder)
        if refused is None:
            assert status not in (401, 403), about
        else:
            assert status in refused, about
            assert told["code"] in ("unauthorized", "forbidden"), about
        if status >= 400:
            assert CODES[told["code"]].status == status, about


def test_an_agent_acts_for_no_run_that_has_a_token_by_naming_it_in_a_body(made: Filled) -> None:
    for name, status in (("guarded", 403), ("revoked-token", 403), ("open", 200)):
        assert made.ask("POST", "/v1/runs", {"run": name}, made.tokens["agent"])[0] == status


@pytest.mark.parametrize("spelling", ["guarded", "%67uarded", "guard%65d", "g%75arded"])
def test_no_spelling_of_a_run_leads_past_its_token(made: Filled, spelling: str) -> None:
    for path in ("", "/budget", "/resume", "/checkpoint", "/checkpoints"):
        assert made.ask("GET", f"/v1/runs/{spelling}{path}", None, made.tokens["agent"])[0] == 403


def test_a_runs_own_token_neither_raises_nor_multiplies(made: Filled) -> None:
    own, at = made.tokens["other"], "/v1/runs/other"
    assert made.ask("PUT", f"{at}/budget", {"writes": 3}, own)[0] == 200
    for more in ({"writes": 4}, {"writes": None}):
        assert made.ask("PUT", f"{at}/budget", more, own)[0] == 403
    assert made.ask("PUT", f"{at}/budget", {"writes": 2}, own)[0] == 200
    assert made.ask("POST", f"{at}/resume", {"token": True}, own)[0] == 403
    assert len(made.operator("GET", at)["tokens"]) == 1


def test_null_for_a_token_does_not_revoke_the_run(made: Filled) -> None:
    at = "/v1/runs/pays-denied"
    assert made.ask("POST", f"{at}/revoke", {"token": None}, made.tokens["operator"])[0] == 400
    assert made.operator("GET", at)["status"] == "open"


def generated(made: Filled, folder: Path, *arguments: str) -> str:
    description = folder / "openapi.json"
    description.write_text(json.dumps(with_data(made)))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run"),
            *(str(description), "--url", f"http://{made.proxy.control}"),
            *("--header", f"Authorization: Bearer {made.tokens['operator']}"),
            *("--checks", "all", "--no-color", *arguments),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " 500" not in made.proxy.log.read_text()
    assert "control request failed" not in made.proxy.log.read_text()
    return done.stdout


def test_generated_requests_get_what_is_described(made: Filled, tmp_path: Path) -> None:
    """A few of each; the rest is in the slow test."""
    told = generated(made, tmp_path, "--phases", "fuzzing", "--max-examples", "2", "--seed", "7")
    assert int(re.search(r"(\d+) generated", told)[1]) > 60  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_generated_requests_of_all_phases_get_what_is_described(tmp_path: Path) -> None:
    with filled(tmp_path) as made:
        phases = "examples,coverage,fuzzing,stateful"
        told = generated(made, tmp_path, "--phases", phases, "--max-examples", "25")
        assert int(re.search(r"(\d+) generated", told)[1]) > 1500  # type: ignore[index]


@pytest.mark.slow
def test_a_description_that_says_something_else_is_found_out(made: Filled, tmp_path: Path) -> None:
    """The control: one status that the API gives is taken out."""
    description: dict[str, Any] = with_data(made)
    del description["paths"]["/v1/runs/{run}/budget"]["get"]["responses"]["404"]
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(description))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run"),
            *(str(file), "--url", f"http://{made.proxy.control}", "--no-color"),
            *("--header", f"Authorization: Bearer {made.tokens['operator']}"),
            *("--include-name", "GET /v1/runs/{run}/budget"),
            *("--checks", "status_code_conformance", "--phases", "fuzzing"),
            *("--max-examples", "20", "--seed", "7"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "[404] Not Found" in done.stdout


@pytest.mark.parametrize("name", ["-", "", "a\nb", "a\x87b", "\x7f", 5])
def test_no_run_is_begun_that_no_call_can_name(made: Filled, name: object) -> None:
    for body in ({"run": name}, {"run": "fine", "parent": name}):
        assert made.ask("POST", "/v1/runs", body, made.tokens["operator"])[0] == 400


@pytest.mark.parametrize("name", ["a{b}", "{run}", "a/b", "a%2Fb", "a b", "..", ".", "a?b#c", "é"])
def test_every_run_that_a_call_can_name_is_found(made: Filled, name: str) -> None:
    token = made.operator("POST", "/v1/runs", {"run": name})["token"]
    at = f"/v1/runs/{quote(name, safe='')}"
    assert made.operator("GET", at)["epoch"] == 1
    assert made.ask("GET", f"{at}/budget", None, token)[0] == 200
    assert made.ask("GET", f"{at}/budget", None, made.tokens["agent"])[0] == 403
