"""kubernetes: a label that is there on the object, and finds it whatever its name became."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.sdks.support import LOST, Api, Sdk, reply

pytestmark = pytest.mark.slow  # the package takes seconds to import
HOST, JOBS = "kubernetes.default.svc", "/apis/batch/v1/namespaces/prod/jobs"


def job() -> Any:
    client = pytest.importorskip("kubernetes.client")
    proxy = urlsplit(os.environ["HTTPS_PROXY"])
    configuration = client.Configuration(host=f"https://{HOST}")
    configuration.proxy = f"http://{proxy.hostname}:{proxy.port}"
    identity = f"{proxy.username}:{proxy.password}"
    configuration.proxy_headers = pytest.importorskip("urllib3").make_headers(
        proxy_basic_auth=identity
    )
    configuration.ssl_ca_cert = os.environ["SSL_CERT_FILE"]
    configuration.retries = False
    with client.ApiClient(configuration) as api:
        body = {"metadata": {"generateName": "refund-"}}
        return client.BatchV1Api(api).create_namespaced_job("prod", body).metadata.name


def made(api: Api, number: int) -> list[Any]:
    sent = [json.loads(one.body)["metadata"] for one in api.came(f"POST {JOBS}")]
    return [
        {"metadata": {"name": f"refund-{number}", "uid": str(number), "labels": one["labels"]}}
        for one in sent
    ]


def test_a_job_with_a_generated_name_is_made_once(sdk: Sdk) -> None:
    api, name = sdk.api(HOST), f"refund-{sdk.number}"
    api.on(f"POST {JOBS}", lambda _: reply(made(api, sdk.number)[0], 201))
    assert sdk.twice("start", job) == (name, name)
    assert len(api.came(f"POST {JOBS}")) == 1
    sdk.assert_once("start", "kubernetes.create.group", external_id=str(sdk.number))


def test_a_lost_job_is_found_by_its_label(sdk: Sdk) -> None:
    api, name = sdk.api(HOST), f"refund-{sdk.number}"
    api.on(f"POST {JOBS}", LOST)
    api.on(f"GET {JOBS}", lambda _: {"items": made(api, sdk.number)})
    assert sdk.twice("start", job) == (name, name)
    assert len(api.came(f"POST {JOBS}")) == 1
    sdk.assert_reconciled("start", "kubernetes.create.group", external_id=str(sdk.number))
    label = made(api, sdk.number)[0]["metadata"]["labels"]["onceproxy_operation"]
    assert api.came(f"GET {JOBS}")[0].target.endswith(
        f"?labelSelector=onceproxy_operation%3D{label}"
    )
