"""Rule files made of vendors' models: the shipped ones are what the generators make, they hold what
every rule file has to hold, and what the models leave open stays open.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from proxy.cli import main
from proxy.config import Config
from proxy.core.matching import RuleSet
from proxy.core.model import Body, Request
from proxy.rulefile.generate import CannotGenerate, Selection, from_botocore, from_discovery
from proxy.rulefile.generate.text import flow, rendering, window
from proxy.rulefile.loader import load, load_files, load_text
from proxy.rulefile.testing import run_examples

RULES = Path(__file__).parents[2] / "rules"
SHIPPED = sorted((RULES / "generated").glob("*.yaml"))
FORM = ("Content-Type", "application/x-www-form-urlencoded")
JSON = ("Content-Type", "application/json")
TARGET = "X-Amz-Target"
REGION = "eu-west-1.amazonaws.com"
NAMES = ("CreateVolume", "DescribeVolumes", "UpdateVolume", "PutAsset", "createvolume", "")


@pytest.fixture(scope="module")
def rules() -> RuleSet:
    return load([RULES / "generated", RULES])


def test_the_shipped_files_are_what_the_generators_make() -> None:
    pytest.importorskip("botocore")
    pytest.importorskip("googleapiclient")
    from tools.rule_packs import packs

    made = {f"{pack.service}.yaml": pack.text for pack in packs()}
    assert sorted(made) == [path.name for path in SHIPPED]
    for path in SHIPPED:
        assert path.read_text("utf-8") == made[path.name], f"tools/rule_packs.py, for {path.name}"


def test_they_are_found_where_the_shipped_ones_are() -> None:
    assert Config(state_dir=Path("state")).rule_dirs == (RULES / "generated", RULES)
    assert len(SHIPPED) >= 25


def test_their_examples_hold_and_nothing_is_warned_about() -> None:
    files = load_files([RULES / "generated", RULES])
    made = [file for file in files if file.path.parent.name == "generated"]
    assert [warning for file in made for warning in file.warnings] == []
    assert [r for r in run_examples(files) if not r.passed] == []
    for file in made:
        assert file.model.checked == "2026-11-30"
        for name, endpoint in file.model.endpoints.items():
            means = {line.means for example in endpoint.examples for line in example.answers}
            assert {"succeeded", "unknown", "rejected"} <= means, name


def test_no_call_has_a_rule_by_hand_and_a_generated_one(rules: RuleSet) -> None:
    """Which of two services is asked first is decided by their names: neither may need to win."""
    titles: dict[tuple[str, str], str] = {}
    for service in rules.services:
        for endpoint in service.endpoints:
            if endpoint.match is None or not service.name.startswith(("aws-", "google-")):
                continue
            if endpoint.effect == "read" or endpoint.match.rest is not None:
                continue
            for host in service.hosts:
                spoken = endpoint.match.text + repr((endpoint.match.head, endpoint.match.body))
                other = titles.setdefault((host.text, spoken), endpoint.title)
                assert other == endpoint.title


ECS = "AmazonEC2ContainerServiceV20141113"
ZONE = "/compute/v1/projects/p/zones/z"


@pytest.mark.parametrize(
    ("url", "header", "body", "title"),
    [
        ("ec2.eu-west-1.amazonaws.com/", FORM, b"Action=CreateVolume", "aws-ec2.CreateVolume"),
        ("ec2.eu-west-1.amazonaws.com/", FORM, b"Action=DescribeVolumes", None),
        ("ecs.eu-west-1.api.aws/", (TARGET, f"{ECS}.RunTask"), b"{}", "aws-ecs.RunTask"),
        ("ecs.eu-west-1.amazonaws.com/", (TARGET, f"{ECS}.ListTasks"), b"{}", None),
        ("eks.us-east-2.api.aws/clusters/a/node-groups", JSON, b"{}", "aws-eks.CreateNodegroup"),
        (f"compute.googleapis.com{ZONE}/disks", JSON, b"{}", "google-compute.disks.insert"),
        (f"compute.googleapis.com{ZONE}/disks/d/resize", JSON, b"", "google-compute.disks.resize"),
    ],
)
def test_calls_are_known(
    rules: RuleSet, url: str, header: tuple[str, str], body: bytes, title: str | None
) -> None:
    host, slash, path = url.partition("/")
    request = Request("POST", "https", host, 443, slash + path, (header,), Body.of(body))
    matched = rules.match(request)
    assert (matched.endpoint.title if matched else None) == title


def test_the_switch_by_operation_finds_what_one_by_one_would_find(
    rules: RuleSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> list[str]:
        services = [s for s in rules.services if s.name in ("aws-ec2", "aws-fsx", "aws-glue")]
        return [
            matched.endpoint.title if matched else "none"
            for request in requests
            for matched in [RuleSet(services).match(request)]
        ]

    requests = [
        Request(
            method, "https", f"{service}.eu-west-1.amazonaws.com", 443, "/", fields, Body.of(body)
        )
        for service in ("ec2", "fsx", "glue")
        for name in (
            "CreateVolume",
            "DescribeVolumes",
            "UpdateVolume",
            "PutAsset",
            "createvolume",
            "",
        )
        for fields, body in (
            ((FORM,), f"Action={name}".encode()),
            ((FORM,), f"Action={name}&Action=CreateVolume".encode()),
            ((("X-Amz-Target", f"AWSSimbaAPIService_v20180301.{name}"),), b"{}"),
            ((("X-Amz-Target", f"AWSGlue.{name}"),), b"not json"),
            ((), f'{{"Action": "{name}"}}'.encode()),
            ((), b'{"Action": 5}'),
            ((), b"\xff"),
        )
        for method in ("POST", "GET")
    ]
    switched = found()
    monkeypatch.setattr("proxy.core.matching.SWITCH_FROM", 1_000_000)
    assert switched == found()
    assert len(set(switched)) >= 5


# What is made of a model


POST = {"method": "POST", "requestUri": "/"}
TOKEN = {
    "shape": "Token",
    "idempotencyToken": True,
    "documentation": "<p>An idempotency token. It expires after 8 hours.</p>",
}
MODEL = {
    "metadata": {
        "protocol": "json",
        "serviceId": "Tasks",
        "apiVersion": "2020-01-01",
        "endpointPrefix": "tasks",
        "targetPrefix": "Tasks_2020",
    },
    "operations": {
        "RunTask": {"http": POST, "input": {"shape": "RunTask"}, "output": {"shape": "Out"}},
        "DeleteTask": {"http": POST, "input": {"shape": "DeleteTask"}},
        "ListTasks": {"http": POST, "input": {"shape": "List"}},
    },
    "shapes": {
        "RunTask": {
            "type": "structure",
            "members": {"clientToken": TOKEN, "secret": {"shape": "Secret"}},
        },
        "DeleteTask": {
            "type": "structure",
            "members": {"TaskId": {"shape": "Id", "idempotencyToken": True}},
        },
        "List": {"type": "structure", "members": {}},
        "Out": {"type": "structure", "members": {"taskArn": {"shape": "Id"}}},
        "Token": {"type": "string", "min": 33, "max": 64, "pattern": "[a-zA-Z0-9-]+"},
        "Secret": {"type": "string", "sensitive": True},
        "Id": {"type": "string"},
    },
}


def model_in(directory: Path, **changes: object) -> Path:
    place = directory / "data" / "tasks" / "2020-01-01"
    place.mkdir(parents=True)
    (place / "service-2.json").write_text(json.dumps(MODEL | changes))
    url = {"url": "https://tasks.{Region}.{PartitionResult#dnsSuffix}"}
    (place / "endpoint-rule-set-1.json").write_text(json.dumps({"rules": [{"endpoint": url}]}))
    (directory / "__init__.py").write_text("__version__ = '1.2.3'\n")
    return directory / "data"


def test_a_model_of_aws_becomes_a_rule_file(tmp_path: Path) -> None:
    data = model_in(tmp_path)
    pack = from_botocore(data, "tasks", Selection(), "2026-11-30")
    assert pack.text == from_botocore(data, "tasks", Selection(), "2026-11-30").text
    file = load_text(pack.text)
    assert [endpoint.name for endpoint in file.service.endpoints] == ["RunTask"]
    run = file.service.endpoints[0]
    assert run.key is not None
    assert (run.key.place, run.key.name, run.key.rendering) == ("json", "clientToken", "digest")
    assert (run.key.min_length, run.key.max_length, run.key.valid_for) == (33, 64, 8 * 3600)
    assert (run.signed, run.external_id, run.redact) == ("sigv4", "taskArn", ("body.secret",))
    assert (run.mode, run.confidence) == ("enforce", "sdk")
    assert "botocore 1.2.3" in pack.text
    assert "token names an object: DeleteTask" in pack.text
    assert {host.text for host in file.service.hosts} == {
        "tasks.{region}.amazonaws.com",
        "tasks.{region}.amazonaws.com.cn",
    }


def test_a_token_of_which_no_time_is_stated_is_inferred_and_kept_all_the_same(
    tmp_path: Path,
) -> None:
    shapes = json.loads(json.dumps(MODEL["shapes"]))
    shapes["RunTask"]["members"]["clientToken"]["documentation"] = "An idempotency token."
    data = model_in(tmp_path, shapes=shapes)
    [run] = load_text(
        from_botocore(data, "tasks", Selection(), "2026-11-30").text
    ).service.endpoints
    assert run.key is not None
    assert run.key.valid_for is None
    assert (run.mode, run.confidence) == ("enforce", "inferred")


def test_what_no_rule_can_tell_is_left_out(tmp_path: Path) -> None:
    metadata = MODEL["metadata"] | {"protocol": "smithy-rpc-v2-cbor"}  # type: ignore[operator]
    with pytest.raises(CannotGenerate):
        from_botocore(model_in(tmp_path, metadata=metadata), "tasks", Selection(), "2026-11-30")


def test_a_discovery_document_becomes_a_rule_file(tmp_path: Path) -> None:
    def method(name: str, verb: str, ending: str, words: str) -> dict[str, object]:
        return {
            "id": f"things.things.{name}",
            "httpMethod": verb,
            "path": "v1/{+name}" + ending,
            "flatPath": "v1/things/{thingsId}" + ending,
            "parameters": {"requestId": {"description": words}},
        }

    known = "A valid UUID. The server guarantees that for at least 60 minutes."
    methods = {
        "patch": method("patch", "PATCH", "", known),
        "move": method("move", "PATCH", ":move", "A valid UUID."),
        "get": method("get", "GET", "", known),
    }
    document = {
        "name": "things",
        "version": "v1",
        "revision": "20261101",
        "servicePath": "",
        "rootUrl": "https://things.googleapis.com/",
        "documentationLink": "https://cloud.google.com/things",
        "schemas": {},
        "resources": {"things": {"methods": methods}},
    }
    (tmp_path / "things.v1.json").write_text(json.dumps(document))
    file = load_text(from_discovery(tmp_path, "things.v1", Selection(), "2026-11-30").text)
    assert [(e.name, e.key.valid_for if e.key else 0) for e in file.service.endpoints] == [
        ("things.move", None),
        ("things.patch", 3600),
    ]
    assert [r for r in run_examples([file]) if not r.passed] == []


def test_the_command_writes_files(tmp_path: Path) -> None:
    data = model_in(tmp_path)
    out = tmp_path / "out"
    command = ["rules", "generate", "aws", "--model", str(data), "--directory", str(out)]
    ran = CliRunner().invoke(main, [*command, "--checked", "2026-11-30"])
    assert ran.exit_code == 0, ran.output
    assert (out / "aws-tasks.yaml").read_text().startswith("# AWS Tasks")
    ran = CliRunner().invoke(main, [*command, "--service", "nothing"])
    assert ran.exit_code == 1
    assert "has no nothing" in ran.output


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("The idempotency token is valid for 8 hours.", "8h"),
        ("The request ID is kept for at least 60 minutes since the first request.", "60m"),
        ("A retry of the token is recognised within eight hours.", "8h"),
        ("A unique token.", None),
        ("The instance runs for 8 hours.", None),
    ],
)
def test_a_window_is_taken_only_from_words_that_state_it(words: str, found: str | None) -> None:
    assert window(f"<p>{words}</p>") == found


@pytest.mark.parametrize(
    ("limits", "way"),
    [
        ((1, 255, None), "raw"),
        ((1, 64, "[a-zA-Z0-9-_]+"), "digest"),
        ((1, 36, "[0-9a-f]{8}-[0-9a-f]{4}-.{22}"), "uuid4"),
        ((1, 20, None), "hex"),
        ((1, 8, None), None),
    ],
)
def test_a_key_is_rendered_as_the_limits_allow(
    limits: tuple[int, int, str | None], way: str | None
) -> None:
    assert rendering(*limits) == way


TEXTS = """on Null 12 2026-11-30 a:b a: #a a,b a] 'a' " - ~ * / #"""


@pytest.mark.parametrize("value", ["", "x ", "POST /x", "a: b", "a #b", *TEXTS.split()])
def test_a_text_comes_back_as_it_was(value: str) -> None:
    written = flow({"a": [value, {"b": value}]})
    assert yaml.safe_load(written) == {"a": [value, {"b": value}]}
    assert re.fullmatch(r"\{a: \[.*\]\}", written)
