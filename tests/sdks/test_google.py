"""google-api-python-client: Gmail's header field, Drive's properties and ids, Calendar, Sheets."""

from __future__ import annotations

import base64
import email
import json
from email.message import EmailMessage
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.clients.words import Arrival
from tests.sdks.support import LOST, Sdk, reply

pytest.importorskip("googleapiclient")
pytest.importorskip("socks")  # httplib2 takes no proxy without it

GMAIL, GOOGLE = "gmail.googleapis.com", "www.googleapis.com"
SHEETS, PEOPLE = "sheets.googleapis.com", "people.googleapis.com"
FIELD = "X-Onceproxy-Operation"
SEND = "POST /gmail/v1/users/me/messages/send"


def service(name: str, version: str) -> Any:
    import httplib2
    from google.oauth2.credentials import Credentials
    from google_auth_httplib2 import AuthorizedHttp
    from googleapiclient.discovery import build

    token = Credentials("ya29.c4n4ry")
    http = AuthorizedHttp(token, http=httplib2.Http(timeout=60))
    return build(name, version, http=http, static_discovery=True)


def body_of(arrival: Arrival) -> Any:
    return json.loads(arrival.body)


def asked(arrival: Arrival) -> dict[str, list[str]]:
    return parse_qs(urlsplit(arrival.target).query)


# Gmail


def mail() -> str:
    message = EmailMessage()
    message["To"], message["Subject"] = "a@example.test", "Refund"
    message.set_content("Done. ☃")
    return base64.urlsafe_b64encode(message.as_bytes()).decode()


def answer_in_thread() -> Any:
    with service("gmail", "v1") as gmail:
        message = {"threadId": "t1", "raw": mail()}
        return gmail.users().messages().send(userId="me", body=message).execute()


def field_of(arrival: Arrival) -> str:
    lines = base64.urlsafe_b64decode(body_of(arrival)["raw"])
    [value] = email.message_from_bytes(lines).get_all(FIELD) or []
    assert lines.endswith(base64.urlsafe_b64decode(mail()))
    return str(value)


def test_a_mail_is_sent_once_with_the_operation_in_a_header_field(sdk: Sdk) -> None:
    api, made = sdk.api(GMAIL), f"m{sdk.number}"
    api.on(SEND, {"id": made, "threadId": "t1", "labelIds": ["SENT"]})
    first, second = sdk.twice("reply", answer_in_thread)
    assert first == second == {"id": made, "threadId": "t1", "labelIds": ["SENT"]}
    [arrival] = api.came(SEND)
    sdk.assert_once("reply", "gmail.messages.send", external_id=made)
    assert len(field_of(arrival)) == 64


def test_a_lost_reply_is_found_in_its_thread(sdk: Sdk) -> None:
    api, made = sdk.api(GMAIL), f"m{sdk.number}"

    def thread(_: Arrival) -> Any:
        fields = [{"name": FIELD, "value": field_of(api.came(SEND)[0])}]
        sent = {"id": made, "threadId": "t1", "labelIds": ["SENT"], "payload": {"headers": fields}}
        other = {"id": "m0", "threadId": "t1", "labelIds": ["INBOX"], "payload": {"headers": []}}
        return {"id": "t1", "messages": [other, sent]}

    api.on(SEND, LOST)
    api.on("GET /gmail/v1/users/me/threads/t1", thread)
    first, second = sdk.twice("reply", answer_in_thread)
    assert first == second == {"id": made, "threadId": "t1", "labelIds": ["SENT"]}
    assert len(api.came(SEND)) == 1
    sdk.assert_reconciled("reply", "gmail.messages.send", external_id=made)
    [look] = api.came("GET /gmail/v1/users/me/threads/t1")
    assert look.values("Authorization") == ["Bearer ya29.c4n4ry"]
    assert asked(look)["metadataHeaders"] == [FIELD]


def test_a_draft_that_was_sent_is_found_in_its_thread(sdk: Sdk) -> None:
    """The draft is gone by then; it was asked for its thread while it was there."""
    api, made = sdk.api(GMAIL), f"m{sdk.number}"
    draft = {"id": "r1", "message": {"id": "m1", "threadId": "t1", "labelIds": ["DRAFT"]}}
    sent = {"id": made, "threadId": "t1", "labelIds": ["SENT"], "internalDate": "32503680000000"}
    old = {"id": "m0", "threadId": "t1", "labelIds": ["SENT"], "internalDate": "1"}
    api.on("GET /gmail/v1/users/me/drafts/r1", draft)
    api.on("POST /gmail/v1/users/me/drafts/send", LOST)
    api.on("GET /gmail/v1/users/me/threads/t1", {"id": "t1", "messages": [old, sent]})

    def commit() -> Any:
        with service("gmail", "v1") as gmail:
            return gmail.users().drafts().send(userId="me", body={"id": "r1"}).execute()

    first, second = sdk.twice("commit", commit)
    assert first == second == {"id": made, "threadId": "t1", "labelIds": ["SENT"]}
    assert len(api.came("POST /gmail/v1/users/me/drafts/send")) == 1
    assert len(api.came("GET /gmail/v1/users/me/drafts/r1")) == 1
    sdk.assert_reconciled("commit", "gmail.drafts.send", external_id=made)


# Drive

FILES = "POST /drive/v3/files"


def create(**body: Any) -> Any:
    with service("drive", "v3") as drive:
        return drive.files().create(body={"name": "Refunds", **body}, fields="id").execute()


def test_a_file_is_marked_and_found_by_its_mark(sdk: Sdk) -> None:
    api, made = sdk.api(GOOGLE), f"f{sdk.number}"
    api.on(FILES, LOST)
    api.on("GET /drive/v3/files", {"incompleteSearch": False, "files": [{"id": made}]})
    first, second = sdk.twice("create", create)
    assert first == second == {"id": made}
    [arrival], [look] = api.came(FILES), api.came("GET /drive/v3/files")
    mark = body_of(arrival)["appProperties"]["onceproxy"]
    assert asked(look)["q"] == [f"appProperties has {{ key='onceproxy' and value='{mark}' }}"]
    assert body_of(arrival)["name"] == "Refunds"
    sdk.assert_reconciled("create", "google-drive.files.create", external_id=made)


def test_a_file_under_an_id_of_drives_is_sent_again_and_is_there_once(sdk: Sdk) -> None:
    """409 says that the first attempt made it."""
    api, made = sdk.api(GOOGLE), f"f{sdk.number}"
    in_use = {"error": {"code": 409, "errors": [{"reason": "fileIdInUse"}]}}
    api.on(FILES, LOST, reply(in_use, 409))
    api.on(f"GET /drive/v3/files/{made}", {"kind": "drive#file", "id": made, "name": "Refunds"})
    first, second = sdk.twice("create", lambda: create(id=made))
    assert first["id"] == second["id"] == made
    assert {body_of(arrival)["id"] for arrival in api.came(FILES)} == {made}
    key = sdk.key("create", "google-drive.files.create_with_id")
    assert sdk.operation(key)["state"] == "succeeded"


def test_a_folder_gets_an_id_of_drives_before_it_is_made(sdk: Sdk) -> None:
    api, made = sdk.api(GOOGLE), f"f{sdk.number}"
    in_use = {"error": {"code": 409, "errors": [{"reason": "fileIdInUse"}]}}
    api.on("GET /drive/v3/files/generateIds", {"space": "drive", "ids": [made]})
    api.on(FILES, LOST, reply(in_use, 409))
    api.on(f"GET /drive/v3/files/{made}", {"kind": "drive#file", "id": made})
    first, second = sdk.twice(
        "create", lambda: create(mimeType="application/vnd.google-apps.folder")
    )
    assert first["id"] == second["id"] == made
    assert {body_of(arrival)["id"] for arrival in api.came(FILES)} == {made}
    assert len(api.came("GET /drive/v3/files/generateIds")) == 1
    key = sdk.key("create", "google-drive.files.create_folder")
    assert sdk.operation(key)["state"] == "succeeded"


# Calendar, People, Sheets

EVENTS = "POST /calendar/v3/calendars/primary/events"


def test_an_event_has_the_operations_id_and_is_read_by_it(sdk: Sdk) -> None:
    api = sdk.api(GOOGLE)
    event = {"summary": "Review", "start": {"date": "2026-12-01"}, "end": {"date": "2026-12-02"}}

    def insert() -> Any:
        with service("calendar", "v3") as calendar:
            return calendar.events().insert(calendarId="primary", body=event).execute()

    api.on(EVENTS, LOST, reply({"error": {"errors": [{"reason": "duplicate"}]}}, 409))
    api.on(
        "GET /calendar/v3/calendars/primary/events/*",
        lambda look: {**event, "id": look.target.rpartition("/")[2], "status": "confirmed"},
    )
    first, second = sdk.twice("plan", insert)
    assert first == second
    ids = {body_of(arrival)["id"] for arrival in api.came(EVENTS)}
    assert ids == {first["id"]}
    assert set(first["id"]) <= set("0123456789abcdefghijklmnopqrstuv")
    sdk_key = sdk.key("plan", "google-calendar.events.insert")
    assert sdk.operation(sdk_key)["external_id"] == first["id"]


def test_a_contact_is_marked_in_its_client_data(sdk: Sdk) -> None:
    api, made = sdk.api(PEOPLE), f"people/c{sdk.number}"

    def contact() -> Any:
        with service("people", "v1") as people:
            person = {"names": [{"givenName": "Ada"}]}
            return people.people().createContact(body=person).execute()

    def contacts(_: Arrival) -> Any:
        [arrival] = api.came("POST /v1/people:createContact")
        return {"connections": [{"resourceName": made, **body_of(arrival)}]}

    api.on("POST /v1/people:createContact", LOST)
    api.on("GET /v1/people/me/connections", contacts)
    first, second = sdk.twice("contact", contact)
    assert first["resourceName"] == second["resourceName"] == made
    [mark] = first["clientData"]
    assert (mark["key"], len(mark["value"])) == ("onceproxy", 64)
    sdk.assert_reconciled("contact", "google-people.contacts.create", external_id=made)


def test_rows_are_appended_once(sdk: Sdk) -> None:
    api = sdk.api(SHEETS)
    rows = f"Log!A{sdk.number}:B{sdk.number}"
    api.on("POST /v4/spreadsheets/s1/values/*", {"updates": {"updatedRange": rows}})

    def append() -> Any:
        with service("sheets", "v4") as sheets:
            values = sheets.spreadsheets().values()
            body = {"values": [["re_1", 500]]}
            sent = values.append(
                spreadsheetId="s1", range="Log!A1", valueInputOption="RAW", body=body
            )
            return sent.execute()

    first, second = sdk.twice("log", append)
    assert first == second == {"updates": {"updatedRange": rows}}
    [arrival] = api.came("POST /v4/spreadsheets/s1/values/*")
    assert body_of(arrival) == {"values": [["re_1", 500]]}
    sdk.assert_once("log", "google-sheets.values.append", external_id=rows)
