"""asana: nothing is written into a task; it is found by its name among what changed since."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.sdks.support import LOST, Sdk, reply

HOST, TASKS = "app.asana.com", "/api/1.0/tasks"


def task() -> Any:
    asana = pytest.importorskip("asana")
    proxy = urlsplit(os.environ["HTTPS_PROXY"])
    configuration = asana.Configuration()
    configuration.access_token = "1/1:a"
    configuration.proxy = f"http://{proxy.hostname}:{proxy.port}"
    configuration.ssl_ca_cert = os.environ["SSL_CERT_FILE"]
    client = asana.ApiClient(configuration)
    manager = client.rest_client.pool_manager
    headers = pytest.importorskip("urllib3").make_headers(
        proxy_basic_auth=f"{proxy.username}:{proxy.password}"
    )
    manager.proxy_headers.update(headers)  # the SDK has no setting for them
    body = {"data": {"name": "Refund case 1842", "projects": ["1201"]}}
    return asana.TasksApi(client).create_task(body, {})["gid"]


def test_a_task_is_made_once_and_as_it_was_sent(sdk: Sdk) -> None:
    api, gid = sdk.api(HOST), str(sdk.number)
    api.on(f"POST {TASKS}", reply({"data": {"gid": gid}}, 201))
    assert sdk.twice("task", task) == (gid, gid)
    [arrival] = api.came(f"POST {TASKS}")
    assert set(json.loads(arrival.body)["data"]) == {"name", "projects"}
    sdk.assert_once("task", "asana.tasks.create", external_id=gid)


def test_a_lost_task_is_found_by_its_name(sdk: Sdk) -> None:
    api, gid = sdk.api(HOST), str(sdk.number)
    found = {"gid": gid, "name": "Refund case 1842", "created_at": "2099-01-01T00:00:00.000Z"}
    api.on(f"POST {TASKS}", LOST)
    api.on(f"GET {TASKS}", {"data": [found], "next_page": None})
    assert sdk.twice("task", task) == (gid, gid)
    assert len(api.came(f"POST {TASKS}")) == 1
    sdk.assert_reconciled("task", "asana.tasks.create", external_id=gid)
