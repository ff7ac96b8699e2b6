"""A lookup finds, or proves absence, or says what stands in the way. Nothing counts as "none" that
could also be an error, a page not read or a value not known."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from proxy.core.model import Answer, Answered, Body, Headers, Lost, NotSent, Request, SendResult
from proxy.core.reconcile import (
    Found,
    Inconclusive,
    Inquiry,
    LookupVerdict,
    NoneFound,
    Several,
    choose,
)
from proxy.core.rules import Endpoint, Lookup
from proxy.core.views import RequestView
from proxy.rulefile.loader import load_text

SENT_AT = 1_700_000_000.0
NAMES = {"key": "K1", "sent_at": SENT_AT}
MINE = {"id": 7, "meta": {"key": "K1"}}
OTHER = {"id": 8, "meta": {"key": "K2"}}


def endpoint(reconcile: str, more: str = "") -> Endpoint:
    text = f"""
service: acme
hosts: [api.acme.test]
source: https://docs.test
confidence: documented
key: {{in: header, name: Idempotency-Key}}
answers:
  - {{status: 200, body: {{result: refused}}, means: rejected}}
endpoints:
  things.create:
    match: POST /v1/{{shop}}/things
    external_id: id
    marker: {{in: json, name: meta.key}}
    {more}
    reconcile:
{reconcile}
"""
    return load_text(text).service.endpoints[0]


def lookup(target: str = "GET /v1/{path.shop}/things?name={body.name}", **more: str) -> Lookup:
    given = {"items": "data", "where": '{meta.key: "{key}"}', **more}
    lines = [f'request: "{target}"', *(f"{name}: {text}" for name, text in given.items() if text)]
    indented = "\n".join(f"      {line}" for line in lines)
    return endpoint(indented).reconcile[0]


def sent(body: bytes = b'{"name": "A", "meta": {"key": "K1"}}', headers: Headers = ()) -> Request:
    fields = (("Content-Type", "application/json"), *headers)
    return Request("POST", "https", "api.acme.test", 443, "/v1/s1/things", fields, Body.of(body))


def inquiry(wanted: Lookup, request: Request | None = None, **names: Any) -> Inquiry:
    return Inquiry(wanted, request or sent(), {"shop": "s1"}, {**NAMES, **names})


def page(body: Any, *headers: tuple[str, str], status: int = 200) -> Answered:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answered(Answer(status, "", headers, Body.of(text)))


def look(wanted: Lookup, *pages: SendResult, **names: Any) -> tuple[list[str], LookupVerdict]:
    """The targets asked for, one for each page, and the verdict."""
    asked: list[str] = []
    one = inquiry(wanted, **names)
    for result in pages:
        step = one.next()
        assert isinstance(step, Request), step
        asked.append(step.target)
        one.feed(result)
    verdict = one.next()
    assert not isinstance(verdict, Request), f"asks for another page: {verdict.target}"
    return asked, verdict


def test_one_object_is_found_with_its_id_and_an_answer_for_the_caller() -> None:
    wanted = lookup(
        answer='{status: 201, body: {thing: "{item}", name: "{body.name}", x: "{body.x}"}}'
    )

    asked, verdict = look(wanted, page({"data": [OTHER, MINE]}))

    assert asked == ["/v1/s1/things?name=A"]
    assert isinstance(verdict, Found)
    assert verdict.external_id == "7"
    assert verdict.answer.status == 201
    assert verdict.answer.body is not None
    assert verdict.answer.body.data is not None
    assert json.loads(verdict.answer.body.data) == {"thing": MINE, "name": "A"}


def test_numbers_of_the_object_found_are_answered_as_they_came() -> None:
    raw = b'{"data": [{"id": 12345678901234567890, "rate": 1.50, "meta": {"key": "K1"}}]}'

    _, verdict = look(lookup(), page(raw))

    assert isinstance(verdict, Found)
    assert verdict.answer.body is not None
    assert verdict.external_id == "12345678901234567890"
    assert verdict.answer.body.data == raw[len('{"data": [') : -2].replace(b": ", b":").replace(
        b", ", b","
    )


def test_an_empty_list_is_none_and_two_objects_are_several() -> None:
    assert look(lookup(), page({"data": []}))[1] == NoneFound()
    assert look(lookup(), page({"data": [OTHER]}))[1] == NoneFound()
    assert look(lookup(), page({"data": [MINE, {**MINE, "id": 9}]}))[1] == Several(2)
    assert isinstance(look(lookup(), page({"data": [MINE, MINE]}))[1], Found)  # shown twice


@pytest.mark.parametrize(
    ("result", "blocked_by"),
    [
        (page({}, status=401), "credentials"),
        (page({}, status=403), "credentials"),
        (page({}, ("Retry-After", "5"), status=403), "query_failed"),
        (page({}, ("X-RateLimit-Remaining", "0"), status=403), "query_failed"),
        (page({}, ("X-RateLimit-Remaining", "9"), status=403), "credentials"),
        (page({}, status=404), "query_failed"),
        (page({}, status=429), "query_failed"),
        (page({"data": []}, status=500), "query_failed"),
        (page({"data": []}, status=302), "query_failed"),
        (page({"data": []}, status=202), "query_failed"),
        (page({"data": None}), "query_failed"),
        (page({}), "query_failed"),
        (page({"data": {}}, ("Content-Encoding", "br")), "query_failed"),
        (page(b"<html>"), "query_failed"),
        (page({"data": [], "ok": False}), "query_failed"),
        (page({"data": [], "error": {"code": 1}}), "query_failed"),
        (page({"data": [], "errors": ["x"]}), "query_failed"),
        (page({"data": [], "incomplete_results": True}), "query_failed"),
        (page({"data": [], "result": "refused"}), "query_failed"),
        (page({"data": [], "has_more": True}), "query_failed"),
        (page({"data": []}, ("Link", '</v1/x?page=2>; rel="next"')), "query_failed"),
        (page({"data": [], "response_metadata": {"next_cursor": "c"}}), "query_failed"),
        (page({"data": [], "nextPageToken": "c"}), "query_failed"),
        (Answered(page({"data": []}).answer, complete=False), "query_failed"),
        (Lost("reset"), "query_failed"),
        (NotSent("refused"), "query_failed"),
    ],
)
def test_an_answer_that_is_no_whole_list_proves_nothing(
    result: SendResult, blocked_by: str
) -> None:
    _, verdict = look(lookup(), result)

    assert isinstance(verdict, Inconclusive), verdict
    assert verdict.blocked_by == blocked_by


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (lookup(), {"key": None}),
        (lookup("GET /v1/{body.absent}/things"), {}),
        (lookup(where='{meta.key: "{key}", name: "{body.absent}"}'), {}),
    ],
)
def test_a_value_that_is_missing_makes_it_inconclusive_before_anything_is_asked(
    wanted: Lookup, names: dict[str, Any]
) -> None:
    asked, verdict = look(wanted, **names)

    assert asked == []
    assert isinstance(verdict, Inconclusive)
    assert verdict.blocked_by == "no_query"


def test_a_missing_query_parameter_is_dropped_and_widens_the_search() -> None:
    wanted = lookup("GET /v1/things?charge={body.charge}&name={body.name}&limit=9")

    assert look(wanted, page({"data": []}))[0] == ["/v1/things?name=A&limit=9"]


def test_reading_one_object_takes_404_for_none_and_its_fields_for_an_answer() -> None:
    wanted = lookup("GET /v1/things/{key}", items="", where='{name: "{body.name}"}')

    assert look(wanted, page({}, status=404))[1] == NoneFound()
    assert isinstance(look(wanted, page({"id": 7, "name": "A"}))[1], Found)
    assert look(wanted, page({"id": 7, "name": "B"}))[1] == NoneFound()
    assert isinstance(look(wanted, page({"error": "gone"}))[1], Inconclusive)


def test_an_answer_that_is_a_list_itself_is_one() -> None:
    wanted = lookup(items="")

    assert isinstance(look(wanted, page([OTHER, MINE]))[1], Found)
    assert look(wanted, page([]))[1] == NoneFound()


# pages


def next_link(url: str) -> tuple[str, str]:
    return "Link", f'<https://api.acme.test/first>; rel="first", <{url}>; rel="next"'


PAGED: list[tuple[str, Sequence[Answered], list[str]]] = [
    (
        "{link: next, max: 3}",
        [
            page({"data": [OTHER]}, next_link("https://api.acme.test/v1/things?page=2")),
            page({"data": [OTHER]}, next_link("/v1/things?page=3")),
            page({"data": []}),
        ],
        ["/v1/things?page=2", "/v1/things?page=3"],
    ),
    (
        "{cursor: meta.next, into: after}",
        [page({"data": [OTHER], "meta": {"next": "c/1"}}), page({"data": []})],
        ["/v1/s1/things?name=A&after=c%2F1"],
    ),
    (
        "{after_id: starting_after}",
        [page({"data": [OTHER], "has_more": True}), page({"data": [OTHER], "has_more": False})],
        ["/v1/s1/things?name=A&starting_after=8"],
    ),
    (
        "{after_id: starting_after}",
        [page({"data": [OTHER]}), page({"data": []})],
        ["/v1/s1/things?name=A&starting_after=8"],
    ),
    (
        "{offset: start}",
        [page({"data": [OTHER, OTHER]}), page({"data": [OTHER]}), page({"data": []})],
        ["/v1/s1/things?name=A&start=2", "/v1/s1/things?name=A&start=3"],
    ),
    (
        "{page: page}",
        [page({"data": [OTHER]}), page({"data": []})],
        ["/v1/s1/things?name=A&page=2"],
    ),
    (
        "{next: links.next}",
        [
            page({"data": [OTHER], "links": {"next": "/v1/things?c=2"}}),
            page({"data": [], "links": {"next": None}}),
        ],
        ["/v1/things?c=2"],
    ),
    (
        "{next: links.next, until: empty}",
        [
            page({"data": [OTHER], "links": {"next": "/v1/things?c=2"}}),
            page({"data": [], "links": {"next": "/v1/things?c=3"}}),
        ],
        ["/v1/things?c=2"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("pages", "answers", "targets"), PAGED)
def test_pages_are_read_to_the_last(
    pages: str, answers: Sequence[Answered], targets: list[str]
) -> None:
    asked, verdict = look(lookup(pages=pages), *answers)

    assert asked[1:] == targets
    assert isinstance(verdict, NoneFound)
    assert verdict.shifting is ("offset" in pages or "page:" in pages)


@pytest.mark.parametrize(("pages", "answers", "targets"), PAGED)
def test_a_page_that_is_not_reached_is_not_none(
    pages: str, answers: Sequence[Answered], targets: list[str]
) -> None:
    short = pages.replace(", max: 3", "").replace("}", ", max: 1}")

    asked, verdict = look(lookup(pages=short), answers[0])

    assert len(asked) == 1
    assert isinstance(verdict, Inconclusive)
    assert "more than 1 pages" in verdict.reason


def test_a_hit_on_the_first_page_is_enough() -> None:
    wanted = lookup(pages="{after_id: starting_after}")

    assert isinstance(look(wanted, page({"data": [MINE], "has_more": True}))[1], Found)


def test_by_content_every_page_is_read_for_a_second_one() -> None:
    wanted = lookup(by="content", pages="{after_id: starting_after}")
    first = page({"data": [MINE], "has_more": True})

    assert look(wanted, first, page({"data": [{**MINE, "id": 9}], "has_more": False}))[
        1
    ] == Several(2)
    assert isinstance(look(wanted, first, page({"data": [], "has_more": False}))[1], Found)
    assert isinstance(look(wanted, first, page({}, status=500))[1], Inconclusive)
    assert wanted.absent == "ask"


@pytest.mark.parametrize(
    ("pages", "answer"),
    [
        ("{link: next}", page({"data": []}, next_link("https://evil.test/v1/things"))),
        ("{link: next}", page({"data": []}, next_link("http://api.acme.test/v1/things"))),
        ("{next: next}", page({"data": [], "next": "https://api.acme.test:8443/v1"})),
        ("{next: next}", page({"data": [], "next": "/v1/s1/things?name=A"})),
        ("{cursor: next, into: c}", page({"data": [], "has_more": True})),
        ("{after_id: after}", page({"data": [], "has_more": True})),
        ("{after_id: after}", page({"data": [{"name": "no id"}], "has_more": True})),
        ("{page: page}", page({"data": {}})),
    ],
)
def test_a_way_on_that_leads_nowhere_or_elsewhere_is_not_taken(
    pages: str, answer: Answered
) -> None:
    assert isinstance(look(lookup(pages=pages), answer)[1], Inconclusive)


def test_a_cursor_goes_into_the_body_of_a_lookup_by_post() -> None:
    wanted = lookup(
        "POST /v1/search",
        json='{filter: {key: "{key}"}, page: {size: 10}}',
        pages="{cursor: next, into: page.after}",
    )
    one = inquiry(wanted)
    first = one.next()
    one.feed(page({"data": [], "next": "c1"}))
    second = one.next()

    assert isinstance(first, Request)
    assert isinstance(second, Request)
    assert first.method == "POST"
    assert first.body.data == b'{"filter":{"key":"K1"},"page":{"size":10}}'
    assert second.body.data == b'{"filter":{"key":"K1"},"page":{"size":10,"after":"c1"}}'
    assert second.header("content-type") == "application/json"


# objects that record a refusal

STATES = "{succeeded: {state: [done]}, failed: {state: declined}}".replace("[done]", "done")


@pytest.mark.parametrize(
    ("states", "check"),
    [
        (["done"], lambda v: isinstance(v, Found) and not v.failed),
        (["declined"], lambda v: isinstance(v, Found) and v.failed),
        (["declined", "done"], lambda v: isinstance(v, Found) and not v.failed),
        (["done", "done"], lambda v: v == Several(2)),
        (["working"], lambda v: isinstance(v, Inconclusive) and v.blocked_by == "lag"),
    ],
)
def test_an_object_may_record_a_refusal(
    states: list[str], check: Callable[[LookupVerdict], bool]
) -> None:
    items = [{"id": i, "state": state, "meta": {"key": "K1"}} for i, state in enumerate(states)]

    _, verdict = look(lookup(found=STATES), page({"data": items}))

    assert check(verdict), verdict


# what is asked


def test_a_lookup_keeps_what_selects_version_and_account_and_nothing_of_the_body() -> None:
    headers = (
        ("Acme-Version", "3"),
        ("Idempotency-Key", "K1"),
        ("If-Match", "x"),
        ("X-HTTP-Method-Override", "PATCH"),
        ("Accept", "application/vnd.acme+json"),
        ("Accept-Encoding", "br"),
    )
    step = inquiry(lookup(), sent(headers=headers)).next()

    assert isinstance(step, Request)
    assert step.headers == (
        ("Acme-Version", "3"),
        ("Accept", "application/vnd.acme+json"),
        ("Accept-Encoding", "gzip"),
    )
    assert (step.method, step.host, step.body.size) == ("GET", "api.acme.test", 0)


def test_asking_twice_without_an_answer_asks_the_same() -> None:
    one = inquiry(lookup())

    assert one.next() == one.next()


LIST = """
      - when: {body.thread: {exists: true}}
        request: GET /v1/threads/{body.thread}
        where: {meta.key: "{key}"}
      - request: GET /v1/things
        where: {meta.key: "{key}"}
"""


@pytest.mark.parametrize(
    ("body", "source"),
    [(b'{"thread": "t"}', "/v1/threads/{body.thread}"), (b"{}", "/v1/things"), (b"{", None)],
)
def test_the_first_lookup_that_is_meant_for_the_request_is_chosen(
    body: bytes, source: str | None
) -> None:
    chosen = choose(endpoint(LIST), RequestView(sent(body)))

    assert (chosen.target.source if chosen else None) == source
