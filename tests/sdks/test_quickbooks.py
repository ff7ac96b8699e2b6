"""python-quickbooks: the key is a query parameter, the mark a private note."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import requests

from tests.sdks.support import LOST, Sdk

HOST = "sandbox-quickbooks.api.intuit.com"
INVOICE = "POST /v3/company/91/invoice"


def create() -> Any:
    quickbooks = pytest.importorskip("quickbooks")
    from quickbooks.objects.invoice import Invoice

    with requests.Session() as session:
        session.access_token = "token"  # as the OAuth session that it makes of an `auth_client`
        client = quickbooks.QuickBooks(company_id="91", minorversion=75)
        client.sandbox, client.session = True, session
        invoice = Invoice()
        invoice.DocNumber = "7"
        made = invoice.save(qb=client)
    return made.Id


def test_an_invoice_is_made_once(sdk: Sdk) -> None:
    api, made = sdk.api(HOST), str(sdk.number)
    api.on(INVOICE, {"Invoice": {"Id": made, "SyncToken": "0"}})
    first, second = sdk.twice("bill", create)
    assert first == second == made
    [arrival] = api.came(INVOICE)
    sdk.assert_once("bill", "quickbooks.invoices.create", external_id=made)
    query = parse_qs(urlsplit(arrival.target).query)
    assert len(query["requestid"][0]) <= 50
    assert "minorversion" in query
    assert len(json.loads(arrival.body)["PrivateNote"]) == 32


@pytest.mark.slow  # the key is tried first, for 7 s
def test_what_stays_lost_is_found_by_its_note(sdk: Sdk) -> None:
    api, made = sdk.api(HOST), str(sdk.number)

    def found(_: Any) -> Any:
        note = json.loads(api.came(INVOICE)[0].body)["PrivateNote"]
        own = {"Id": made, "SyncToken": "0", "PrivateNote": note}
        return {"QueryResponse": {"Invoice": [{"Id": "1"}, own]}}

    api.on(INVOICE, LOST)
    api.on("GET /v3/company/91/query", found)
    first, second = sdk.twice("bill", create)
    assert first == second == made
    target = api.came("GET /v3/company/91/query")[0].target
    [query] = parse_qs(urlsplit(target).query)["query"]
    assert query.startswith("select * from Invoice where MetaData.CreateTime >= '20")
