"""boto3 against moto, an independent imitation of AWS that knows nothing of the proxy: the proxy is
killed while the call is under way or after its effect, the agent is started anew with a token of
another making, and there is one effect or an honest unknown.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.clients.certificates import Authority
from tests.clients.words import Answer, Arrival
from tests.clients.world import Proxied
from tests.fakes.served import FREE_PORTS, served
from tests.sdks.recorder import Recorder, recorder
from tests.sdks.support import CONFIG

boto3 = pytest.importorskip("boto3")
moto_server = pytest.importorskip("moto.server")

REGION, KEY, SECRET = "eu-west-1", "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/EXAMPLE"
OWN = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
HOP = ("connection", "host", "proxy-connection", "transfer-encoding", "content-length", "expect")
POINTS = ("during_call", "after_effect")
ARN = "arn:aws:states:eu-west-1:123456789012:stateMachine:pay"
FLOW = '{"StartAt": "A", "States": {"A": {"Type": "Pass", "End": true}}}'


@dataclass
class Moto:
    """moto behind every host of AWS. What AWS does and moto does not is done here: signatures are
    checked, and a launch with a ClientToken that has come before is answered as it was then."""

    port: int
    forged: list[str] = field(default_factory=list)
    launched: dict[str, Answer] = field(default_factory=dict)

    def client(self, service: str) -> Any:
        """Straight to it, for what a test prepares and looks at."""
        return client(service, endpoint_url=f"http://127.0.0.1:{self.port}")

    def take(self, arrival: Arrival) -> Answer:
        if not is_genuine(arrival):
            self.forged.append(f"{arrival.method} {arrival.site}{arrival.target}")
            return Answer(403, {}, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        token = ""
        if b"Action=RunInstances" in arrival.body:
            [token] = arrival.form()["ClientToken"]
        if token in self.launched:
            return self.launched[token]
        answer = self._ask(arrival)
        if token and answer.status == 200:
            self.launched[token] = answer
        return answer

    def _ask(self, arrival: Arrival) -> Answer:
        headers = {name: value for name, value in arrival.headers if name.lower() not in HOP}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(
            arrival.method, arrival.target, arrival.body, {**headers, "Host": arrival.site}
        )
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in HOP}
        return Answer(answer.status, kept, body)


def is_genuine(arrival: Arrival) -> bool:
    """By botocore's own arithmetic, over the very bytes that came."""
    from botocore import auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    said = arrival.values("Authorization")[0]
    scope = said.partition("Credential=")[2].partition(",")[0].split("/")
    names = said.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    headers = {name: ",".join(arrival.values(name)) for name in names}
    request = AWSRequest(
        arrival.method, f"https://{arrival.site}{arrival.target}", headers, arrival.body
    )
    request.context["timestamp"] = headers["x-amz-date"]
    kind = auth.S3SigV4Auth if scope[3] == "s3" else auth.SigV4Auth
    signer = kind(Credentials(KEY, SECRET), scope[3], scope[2])
    text = signer.string_to_sign(request, signer.canonical_request(request))
    return scope[0] == KEY and said.endswith(f"Signature={signer.signature(text, request)}")


def client(service: str, **more: Any) -> Any:
    from botocore.config import Config

    once = Config(retries={"total_max_attempts": 1}, read_timeout=60, **more.pop("config", {}))
    return boto3.client(
        service,
        region_name=REGION,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        config=once,
        **more,
    )


class Everywhere(Recorder):
    """A recorder with one API for all hosts."""

    moto: Moto

    def take(self, arrival: Arrival) -> Answer | None:
        return self.moto.take(arrival)


@pytest.fixture(scope="module")
def aws() -> Iterator[Moto]:
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield Moto(server.get_host_and_port()[1])
    finally:
        server.stop()


@dataclass(frozen=True, slots=True)
class Case:
    """``call``: as an agent makes it. ``effects``: how many there are by now, as moto has it.
    ``settled``: whether a repeated call gets a true answer without a person."""

    service: str
    call: Callable[[Any, str], Any]
    effects: Callable[[Any, str], int]
    prepare: Callable[[Any, str], Any] = lambda api, name: None
    settled: bool = True


def queue(api: Any, name: str) -> str:
    return f"https://sqs.{REGION}.amazonaws.com/123456789012/{name}"


def messages(api: Any, name: str) -> int:
    names = ["ApproximateNumberOfMessages"]
    found = api.get_queue_attributes(QueueUrl=queue(api, name), AttributeNames=names)
    return int(found["Attributes"]["ApproximateNumberOfMessages"])


CASES: Mapping[str, Case] = {
    "ec2": Case(
        "ec2",
        lambda api, name: api.run_instances(
            ImageId="ami-12c6146b",
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[
                {"ResourceType": "instance", "Tags": [{"Key": "of", "Value": name}]}
            ],
        )["Instances"][0]["InstanceId"],
        lambda api, name: sum(
            len(r["Instances"])
            for r in api.describe_instances(Filters=[{"Name": "tag:of", "Values": [name]}])[
                "Reservations"
            ]
        ),
    ),
    "s3": Case(
        "s3",
        lambda api, name: api.put_object(Bucket="reports", Key=f"{name}/a.csv", Body=b"a,b")[
            "ETag"
        ],
        lambda api, name: len(
            api.list_object_versions(Bucket="reports", Prefix=name).get("Versions", [])
        ),
        lambda api, name: (
            api.create_bucket(
                Bucket="reports", CreateBucketConfiguration={"LocationConstraint": REGION}
            )
            if "reports" not in [b["Name"] for b in api.list_buckets()["Buckets"]]
            else None
        ),
    ),
    "sqs-fifo": Case(
        "sqs",
        lambda api, name: api.send_message(
            QueueUrl=queue(api, f"{name}.fifo"),
            MessageBody="go",
            MessageGroupId="g",
            MessageDeduplicationId=f"call-{name}",
        )["MessageId"],
        lambda api, name: messages(api, f"{name}.fifo"),
        lambda api, name: api.create_queue(
            QueueName=f"{name}.fifo", Attributes={"FifoQueue": "true"}
        ),
    ),
    "sqs": Case(
        "sqs",
        lambda api, name: api.send_message(QueueUrl=queue(api, name), MessageBody="go"),
        messages,
        lambda api, name: api.create_queue(QueueName=name),
        settled=False,
    ),
    "stepfunctions": Case(
        "stepfunctions",
        lambda api, name: api.start_execution(stateMachineArn=f"{ARN}-{name}", name=name)[
            "executionArn"
        ],
        lambda api, name: len(api.list_executions(stateMachineArn=f"{ARN}-{name}")["executions"]),
        lambda api, name: api.create_state_machine(
            name=f"pay-{name}", definition=FLOW, roleArn="arn:aws:iam::123456789012:role/r"
        ),
    ),
}


@contextmanager
def proxy(folder: Path, aws: Moto, authority: Authority, more: str = "") -> Iterator[Proxied]:
    """One life of a proxy that has the agent's own access key."""
    with recorder(authority) as api:
        api.__class__ = Everywhere
        api.moto = aws  # type: ignore[attr-defined]
        config = folder / "config.yaml"
        config.write_text(CONFIG.format(ca=authority.file, parent=api.url, more=more))
        state = folder / "state"
        with served(state, "--config", str(config), *FREE_PORTS, **OWN) as process:
            yield Proxied(process, state / "ca" / "ca.pem")


def killed_and_resumed(
    case: Case, point: str, aws: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, list[dict[str, Any]]]:
    """What the agent that is started anew gets, and what the proxy knows in the end."""
    from botocore.exceptions import BotoCoreError, ClientError

    name = "".join(each for each in tmp_path.name if each.isalnum())[-40:]
    api = aws.client(case.service)
    case.prepare(api, name)
    authority = Authority(tmp_path)
    with proxy(tmp_path, aws, authority, f"faults: {{{point}: kill}}") as first:
        for variable, value in first.environ(name, "call-1").items():
            monkeypatch.setenv(variable, value)
        with pytest.raises((BotoCoreError, ClientError)):
            case.call(client(case.service), name)
        assert first.proxy.process.wait(30) == -9
    with proxy(tmp_path, aws, authority) as second:
        for variable, value in second.environ(name, "call-1").items():
            monkeypatch.setenv(variable, value)
        try:
            got = case.call(client(case.service), name)
            assert case.call(client(case.service), name) == got, "the third call is a replay"
        except ClientError as error:
            got = error
        made = case.effects(api, name)
        # What was killed while its bytes were leaving may not have arrived.
        assert made == 1 or (not case.settled and point == "during_call" and made == 0)
        return got, second.operations(name)


def check(case: Case, point: str, aws: Moto, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    got, operations = killed_and_resumed(case, point, aws, tmp_path, patch)
    assert aws.forged == []
    [operation] = operations
    if case.settled:
        assert not isinstance(got, Exception), got
        assert operation["state"] == "succeeded"
    else:
        assert got.response["ResponseMetadata"]["HTTPStatusCode"] == 424
        assert operation["state"] == "unknown"


def test_a_message_is_sent_once_though_the_proxy_died_after_it(
    aws: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(CASES["sqs-fifo"], "after_effect", aws, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", CASES)
def test_one_effect_or_an_honest_unknown(
    name: str, point: str, aws: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(CASES[name], point, aws, tmp_path, monkeypatch)
