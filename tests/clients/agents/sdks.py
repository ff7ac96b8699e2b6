"""Writes with real SDKs as their users make them: TAG TIMES NAME=BASE...

Each client's writes carry TAG.NUMBER. and are the same. Prints a line for each: the client, and
the id that the API gave or the error that the SDK raised. They take nothing but the base URL: the
rest is in the environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

SECONDS = 30


def with_requests(base: str, tag: str) -> str:
    import requests

    answer = requests.post(f"{base}/v1/things/sdk", json={"tag": tag}, timeout=SECONDS)
    answer.raise_for_status()
    return str(answer.json()["id"])


def with_httpx(base: str, tag: str) -> str:
    import httpx

    answer = httpx.post(f"{base}/v1/things/sdk", json={"tag": tag}, timeout=SECONDS)
    return str(answer.raise_for_status().json()["id"])


def with_aiohttp(base: str, tag: str) -> str:
    import aiohttp

    async def post() -> str:
        async with (
            aiohttp.ClientSession(trust_env=True, raise_for_status=True) as session,
            session.post(f"{base}/v1/things/sdk", json={"tag": tag}) as answer,
        ):
            return str((await answer.json())["id"])

    return asyncio.run(post())


def with_urllib(base: str, tag: str) -> str:
    fields = {"Content-Type": "application/json"}
    body = json.dumps({"tag": tag}).encode()
    request = urllib.request.Request(f"{base}/v1/things/sdk", body, fields)
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return str(json.load(answer)["id"])


def with_httplib2(base: str, tag: str) -> str:
    import httplib2

    http = httplib2.Http(timeout=SECONDS)
    body = json.dumps({"tag": tag})
    answer, content = http.request(f"{base}/v1/things/sdk", "POST", body)
    http.close()
    if answer.status != 201:  # as its users must: it raises for no status
        raise RuntimeError(f"{answer.status} {answer.reason}")
    return str(json.loads(content)["id"])


def with_boto3(base: str, tag: str) -> str:
    import boto3

    client = boto3.client(
        "sns",
        region_name="eu-west-1",
        endpoint_url=base,
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key="secret",
    )
    made = client.publish(TopicArn="arn:aws:sns:eu-west-1:1:orders", Message=tag)
    client.close()
    return str(made["MessageId"])


def with_slack(base: str, tag: str) -> str:
    from slack_sdk import WebClient

    client = WebClient("xoxb-test", base_url=f"{base}/api/", timeout=SECONDS)
    return str(client.chat_postMessage(channel="C024BE91L", text=tag)["ts"])


def with_stripe(base: str, tag: str) -> str:
    import stripe

    if "SSL_CERT_FILE" in os.environ:  # the one line that docs/clients.md asks for
        stripe.ca_bundle_path = os.environ["SSL_CERT_FILE"]
    stripe.api_key, stripe.api_base = "sk_test_1", base
    return stripe.Refund.create(charge=tag, amount=500).id


def with_openai(base: str, tag: str) -> str:
    from openai import OpenAI

    with OpenAI(api_key="sk-test", base_url=f"{base}/v1", timeout=SECONDS) as client:
        return client.files.create(file=("calls.jsonl", tag.encode()), purpose="batch").id


def with_resend(base: str, tag: str) -> str:
    import resend

    resend.api_key, resend.api_url = "re_test", base
    who = {"from": "shop@example.test", "to": ["ada@example.test"]}
    return str(resend.Emails.send({**who, "subject": tag, "text": "Hello"})["id"])  # type: ignore[typeddict-item]


def with_twilio(base: str, tag: str) -> str:
    from twilio.rest import Client

    client = Client("AC1", "token")
    client.api.base_url = base
    made = client.messages.create(to="+15550100", from_="+15550101", body=tag)
    client.http_client.session.close()  # type: ignore[attr-defined]
    return str(made.sid)


def with_pygithub(base: str, tag: str) -> str:
    from github import Auth, Github

    with Github(auth=Auth.Token("ghp_test"), base_url=base, retry=None) as client:
        issue = client.get_repo("acme/shop", lazy=True).create_issue(title=tag, body="Hello")
        return str(issue.number)


def with_google(base: str, tag: str) -> str:
    import httplib2
    from googleapiclient.discovery import build

    http = httplib2.Http(timeout=SECONDS)
    options = {"api_endpoint": f"{base}/calendar/v3/"}
    event = {"summary": tag, "start": {"date": "2026-12-01"}, "end": {"date": "2026-12-02"}}
    with build("calendar", "v3", http=http, client_options=options) as service:
        made = service.events().insert(calendarId="primary", body=event).execute()
    return str(made["id"])


def with_curl(base: str, tag: str) -> str:
    return _command(
        "curl", "-sS", "--fail-with-body", "-d", json.dumps({"tag": tag}), f"{base}/v1/things/sdk"
    )


def with_wget(base: str, tag: str) -> str:
    trust = os.environ.get("SSL_CERT_FILE")
    trusted = [f"--ca-certificate={trust}"] if trust else []  # what docs/clients.md says to do
    body = f"--post-data={json.dumps({'tag': tag})}"
    # It shows neither a reason nor a body of an error unless it is told to.
    return _command("wget", "-nv", "-O", "-", *trusted, body, f"{base}/v1/things/sdk")


def _command(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{done.returncode}: {done.stderr.decode()}{done.stdout.decode()}")
    return str(json.loads(done.stdout)["id"])


CLIENTS: dict[str, Callable[[str, str], str]] = {
    "requests": with_requests,
    "httpx": with_httpx,
    "aiohttp": with_aiohttp,
    "urllib": with_urllib,
    "httplib2": with_httplib2,
    "boto3": with_boto3,
    "slack_sdk": with_slack,
    "stripe": with_stripe,
    "openai": with_openai,
    "resend": with_resend,
    "twilio": with_twilio,
    "PyGithub": with_pygithub,
    "google-api-python-client": with_google,
    "curl": with_curl,
    "wget": with_wget,
}


def write(name: str, base: str, tag: str) -> dict[str, Any]:
    try:
        return {"client": name, "id": CLIENTS[name](base, tag)}
    except Exception as error:
        return {"client": name, "error": type(error).__name__, "text": str(error)}


def main(tag: str, times: str, *named: str) -> None:
    for at, each in enumerate(named):
        name, _, base = each.partition("=")
        for _ in range(int(times)):
            print(json.dumps(write(name, base, f"{tag}.{at}.")), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
