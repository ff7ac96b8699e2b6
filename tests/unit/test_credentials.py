"""Secrets leave a request before it is stored, and come back byte-exact before it is sent."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.credentials import (
    NONE,
    Credentials,
    MissingCredential,
    account_of,
    join,
    principal,
    split,
)
from proxy.core.model import Body, Headers, Request

GOOGLE_KEY = "AIzaSyD4x9Qk2LmN7pR1sT5uV8wX0yZ3aB6cD9e"


def request(
    *headers: tuple[str, str], target: str = "/v1/things", method: str = "POST", body: bytes = b""
) -> Request:
    return Request(method, "https", "api.example.com", 443, target, headers, Body.of(body))


def bearer(claims: object) -> tuple[str, str]:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return ("Authorization", f"Bearer eyJhbGciOiJub25lIn0.{payload}.c2ln")


# --- taking out -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "Authorization",
        "cookie",
        "X-Api-Key",
        "api-key",
        "X-Goog-Api-Key",
        "X-Shopify-Access-Token",
        "PRIVATE-TOKEN",
        "X-Amz-Security-Token",
        "xi-api-key",
        "X-Auth-Token",
        "DD-API-KEY",
    ],
)
def test_a_credential_header_is_taken_out(name: str) -> None:
    bare, credentials = split(request(("Accept", "*/*"), (name, "S3CRET"), ("X-Other", "1")))
    assert bare.headers == (("Accept", "*/*"), ("X-Other", "1"))
    assert credentials.headers == ((name, "S3CRET"),)


@pytest.mark.parametrize(
    "name", ["Idempotency-Key", "Stripe-Account", "X-Key", "Token-Count", "Content-Type", "ETag"]
)
def test_an_ordinary_header_stays(name: str) -> None:
    plain = request((name, "value"))
    assert split(plain) == (plain, NONE)


@pytest.mark.parametrize(
    ("target", "masked"),
    [
        ("/x?access_token=abc&a=1", "/x?access_token=***&a=1"),
        ("/x?a=1&API_KEY=abc", "/x?a=1&API_KEY=***"),
        ("/x?sig=a%2Fb%3D&se=2030", "/x?sig=***&se=2030"),
        ("/x?api%5Fkey=abc", "/x?api%5Fkey=***"),
        (f"/x?key={GOOGLE_KEY}", "/x?key=***"),
        ("/x?token=9f86d081884c7d659a2feaa0c55ad015", "/x?token=***"),
        (
            "/x?X-Amz-Signature=00ff&X-Amz-Date=20261130",
            "/x?X-Amz-Signature=***&X-Amz-Date=20261130",
        ),
    ],
)
def test_a_credential_in_the_query_leaves_a_mask(target: str, masked: str) -> None:
    bare, credentials = split(request(target=target))
    assert bare.target == masked
    assert credentials
    assert join(bare, credentials).target == target


@pytest.mark.parametrize(
    "target",
    [
        "/cache?key=user:1",
        "/objects?key=order-2024-11-30-customer-42",
        "/x?token=next",
        "/x?session_id=1842",
        "/x?page_token=abc&keyword=key",
        "/x?access_token=&a",
        "/x?",
        "/x??&&a=1&&",
    ],
)
def test_an_ordinary_parameter_stays(target: str) -> None:
    """Masking it would make `?key=user:1` and `?key=user:2` the same call."""
    plain = request(target=target)
    assert split(plain) == (plain, NONE)


def test_credentials_are_not_shown_by_repr() -> None:
    _, credentials = split(request(("Authorization", "Bearer S3CRET"), target="/x?sig=S3CRET"))
    assert "S3CRET" not in repr(credentials)


# --- putting back ---------------------------------------------------------------------------------

names = st.sampled_from(
    ["Authorization", "Cookie", "X-Api-Key", "Accept", "X-A", "x-api-key", "Content-Type"]
)
headers_strategy = st.lists(st.tuples(names, st.text(max_size=8)), max_size=8).map(tuple)
pieces = st.tuples(
    st.sampled_from(["sig", "api_key", "a", "Key", "token", "api%5fkey", ""]),
    st.sampled_from(["=", ""]),
    st.sampled_from(["", "1", "***", GOOGLE_KEY, "a%20b+c", "x=y", "é"]),
).map("".join)
targets = st.lists(pieces, max_size=6).map(lambda p: "/x?" + "&".join(p)) | st.just("/x")


@given(headers_strategy, targets)
def test_a_request_comes_back_byte_exact(headers: Headers, target: str) -> None:
    whole = request(*headers, target=target)
    bare, credentials = split(whole)
    assert join(bare, credentials) == whole
    assert split(bare)[1].headers == ()


def test_a_header_added_meanwhile_stays_beside_them() -> None:
    bare, credentials = split(request(("Authorization", "a"), ("Accept", "b"), ("Cookie", "c")))
    placed = bare.with_(headers=(*bare.headers, ("Idempotency-Key", "k")))
    assert join(placed, credentials).headers == (
        ("Authorization", "a"),
        ("Accept", "b"),
        ("Cookie", "c"),
        ("Idempotency-Key", "k"),
    )


def test_a_mask_never_goes_upstream() -> None:
    bare, _ = split(request(target="/x?api_key=abc"))
    for lent in (NONE, Credentials(query=(("sig", "sig=1"),))):
        with pytest.raises(MissingCredential, match="api_key"):
            join(bare, lent)


def test_a_later_call_of_the_same_caller_lends_its_credentials() -> None:
    stored, _ = split(request(("Authorization", "Bearer old"), target="/x?a=1&api_key=old"))
    _, fresh = split(request(("Authorization", "Bearer new"), target="/x?api_key=new&a=1"))
    assert join(stored, fresh) == request(
        ("Authorization", "Bearer new"), target="/x?a=1&api_key=new"
    )


def test_a_lookup_is_lent_credentials_but_no_signature_of_another_request() -> None:
    _, credentials = split(request(("X-Api-Key", "k"), target="/x?api_key=abc&sig=def"))
    assert join(request(target="/things?limit=5"), credentials) == request(
        ("X-Api-Key", "k"), target="/things?limit=5&api_key=abc"
    )
    assert join(request(target="/things"), credentials).target == "/things?api_key=abc"


# --- whose credentials ----------------------------------------------------------------------------


def who(*headers: tuple[str, str], target: str = "/x") -> str | None:
    return principal(split(request(*headers, target=target))[1])


def test_the_principal_changes_with_any_credential_and_nothing_else() -> None:
    one = who(("Authorization", "Bearer a"), ("Accept", "x"))
    assert one == who(("authorization", "Bearer a"), target="/y?b=1")
    assert one != who(("Authorization", "Bearer b"))
    assert one != who(("X-Api-Key", "Bearer a"))
    assert one != who(("Authorization", "Bearer a"), ("Cookie", "s=1"))
    assert who(target="/x?api_key=1") != who(target="/x?api_key=2")
    assert who(("Accept", "x")) is None


def test_a_signature_made_for_one_request_does_not_change_the_principal() -> None:
    def aws(key: str, date: str, signature: str) -> tuple[str, str]:
        scope = f"{key}/{date}/eu-west-1/sqs/aws4_request"
        return (
            "Authorization",
            f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature={signature}",
        )

    assert who(aws("AKIA1", "20261130", "00")) == who(aws("AKIA1", "20261201", "ff"))
    assert who(aws("AKIA1", "20261130", "00")) != who(aws("AKIA2", "20261130", "00"))
    oauth = 'OAuth oauth_consumer_key="c", oauth_token="{}", oauth_nonce="{}", oauth_signature="{}"'
    assert who(("Authorization", oauth.format("t", 1, 2))) == who(
        ("Authorization", oauth.format("t", 3, 4))
    )
    assert who(("Authorization", oauth.format("t", 1, 2))) != who(
        ("Authorization", oauth.format("u", 1, 2))
    )
    assert who(target="/x?sig=1") is None


@given(headers_strategy, headers_strategy)
def test_other_credentials_are_another_principal(a: Headers, b: Headers) -> None:
    def named(headers: Headers) -> list[tuple[str, str]]:
        return sorted(
            (name.lower(), value) for name, value in headers if name in {"Cookie", "X-Api-Key"}
        )

    a = tuple(pair for pair in a if pair[0] in {"Cookie", "X-Api-Key"})
    b = tuple(pair for pair in b if pair[0] in {"Cookie", "X-Api-Key"})
    assert (who(*a) == who(*b)) == (named(a) == named(b))


@pytest.mark.parametrize(
    ("headers", "account", "expected"),
    [
        ((("stripe-account", "acct_1"),), ("header", "Stripe-Account"), "acct_1"),
        ((("S-A", "1"), ("s-a", "2")), ("header", "S-A"), "1, 2"),
        ((("Accept", "x"),), ("header", "Stripe-Account"), None),
        ((("Authorization", "Basic QUMxOnRva2Vu"),), ("basic", "user"), "AC1"),
        ((("Authorization", "basic  QUMxOg=="),), ("basic", "user"), "AC1"),
        ((("Authorization", "Basic !!!"),), ("basic", "user"), None),
        ((("Authorization", "Bearer QUMx"),), ("basic", "user"), None),
        ((bearer({"org": "o1"}),), ("jwt", "org"), "o1"),
        ((bearer({"org": {"b": 1, "a": 2}}),), ("jwt", "org"), '{"a":2,"b":1}'),
        ((bearer({"sub": "s"}),), ("jwt", "org"), None),
        ((bearer([1]),), ("jwt", "org"), None),
        ((("Authorization", "Bearer opaque"),), ("jwt", "org"), None),
        ((("Authorization", "Bearer a.%%%.c"),), ("jwt", "org"), None),
        ((), None, None),
    ],
)
def test_the_account_is_read_the_way_the_rule_says(
    headers: Headers, account: tuple[str, str] | None, expected: str | None
) -> None:
    assert account_of(request(*headers), account) == expected


@pytest.mark.parametrize(
    ("host", "target", "secret"),
    [
        (
            "api.telegram.org",
            "/bot123456:AAHsecretsecret/sendMessage?a=1",
            "123456:AAHsecretsecret",
        ),
        ("hooks.slack.com", "/services/T000/B000/XXXXsecretXXXX", "T000/B000/XXXXsecretXXXX"),
        ("discord.com", "/api/v10/webhooks/42/secret-token?wait=true", "secret-token"),
    ],
)
def test_a_secret_in_the_path_leaves_a_digest_and_comes_back(
    host: str, target: str, secret: str
) -> None:
    request = Request("POST", "https", host, 443, target, ())
    bare, credentials = split(request)
    assert secret not in bare.target
    assert secret not in repr(credentials)
    assert join(bare, credentials) == request
    other = Request("POST", "https", host, 443, target.replace(secret, secret + "2"), ())
    assert split(other)[0].target != bare.target
    assert principal(split(other)[1]) != principal(credentials)
    with pytest.raises(MissingCredential):
        join(bare, NONE)
