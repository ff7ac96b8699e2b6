"""Signatures of the AWS kind, held to what AWS's own SDK makes of the same requests."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from proxy.core.model import Body, Request
from proxy.core.sigv4 import AccessKey, CannotSign, read_key, region_of, sign

AT = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
ID, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


def request(
    method: str, host: str, target: str, *headers: tuple[str, str], body: str = ""
) -> Request:
    return Request(method, "https", host, 443, target, headers, Body.of(body.encode()))


REQUESTS = [
    (
        "sqs",
        request(
            "POST",
            "sqs.eu-west-1.amazonaws.com",
            "/",
            ("X-Amz-Target", "AmazonSQS.SendMessage"),
            ("Content-Type", "application/x-amz-json-1.0"),
            body='{"a": 1}',
        ),
    ),
    (
        "ec2",
        request(
            "GET",
            "ec2.us-east-1.amazonaws.com",
            "/?Version=2016-11-15&Action=DescribeInstances"
            "&Filter.1.Value.1=a%2Fb%20c&Filter.1.Name=client-token",
        ),
    ),
    (
        "lambda",
        request(
            "POST",
            "lambda.eu-central-1.amazonaws.com",
            "/2015-03-31/functions/a%3Ab/x~y/invocations",
            ("Content-Type", "application/json"),
            body="{}",
        ),
    ),
    (
        "s3",
        request(
            "PUT",
            "b.s3.eu-west-1.amazonaws.com",
            "/a%20b/c%2Bd?uploads=",
            ("X-Amz-Meta-Note", "a   b"),
            ("Content-Type", "text/plain"),
            body="hello",
        ),
    ),
    ("s3", request("HEAD", "b.s3.eu-west-1.amazonaws.com", "/a/../b")),
]


@pytest.mark.parametrize(("service", "asked"), REQUESTS, ids=str)
@pytest.mark.parametrize("session", ["", "token/with+signs=="])
def test_a_signature_is_the_one_that_the_sdk_makes(
    service: str, asked: Request, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("botocore")
    from botocore import auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    ours = sign(asked, AccessKey(ID, SECRET, session), service, AT.timestamp())
    theirs = AWSRequest(
        asked.method, asked.url, headers=dict(asked.headers), data=asked.body.data or b""
    )
    theirs.context["timestamp"] = "20261130T120000Z"
    monkeypatch.setattr(auth, "get_current_datetime", lambda *args: AT.replace(tzinfo=None))
    kind = auth.S3SigV4Auth if service == "s3" else auth.SigV4Auth
    signer = kind(Credentials(ID, SECRET, session or None), service, region_of(asked.host))
    signer.add_auth(theirs)
    assert ours.header("authorization") == theirs.headers["Authorization"]
    assert ours.header("x-amz-date") == theirs.headers["X-Amz-Date"]


def test_what_was_signed_before_is_signed_anew() -> None:
    once = sign(REQUESTS[3][1], AccessKey(ID, SECRET, "old"), "s3", AT.timestamp())
    twice = sign(once, AccessKey(ID, SECRET), "s3", AT.timestamp() + 60)
    names = [name.lower() for name, _ in twice.headers]
    assert len(names) == len(set(names))
    assert "x-amz-security-token" not in names
    assert twice.header("x-amz-date") == "20261130T120100Z"


def test_a_body_whose_parts_are_signed_is_not() -> None:
    payload = ("X-Amz-Content-SHA256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")
    with pytest.raises(CannotSign):
        sign(
            request("PUT", "b.s3.amazonaws.com", "/a", payload, body="5;chunk"),
            AccessKey(ID, SECRET),
            "s3",
            0,
        )


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("AKID\nsecret\n", AccessKey("AKID", "secret")),
        ("AKID\nsecret\ntoken\n", AccessKey("AKID", "secret", "token")),
        (
            "[default]\naws_access_key_id = AKID\naws_secret_access_key=secret=\n"
            "[b]\naws_session_token = no",
            AccessKey("AKID", "secret="),
        ),
        ("AKID", None),
        ("[default]\naws_access_key_id = AKID\n", None),
        ("", None),
    ],
)
def test_an_access_key_is_read(text: str, key: AccessKey | None) -> None:
    found = read_key(text)
    assert found == key
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("ec2.eu-west-1.amazonaws.com", "eu-west-1"),
        ("b.s3.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("sqs.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("iam.amazonaws.com", "us-east-1"),
        ("127.0.0.1", "us-east-1"),
    ],
)
def test_a_region_is_read_from_the_host(host: str, region: str) -> None:
    assert region_of(host) == region
