"""What an intercepted call is: something to pass through, to refuse, or a write with a name.

``triage`` needs no body and says which of the three; ``name`` then works out everything that is
known about a governed write before the ledger is asked: its operation's name, fingerprint,
account, and whose idempotency key it carries.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import field, replace
from functools import lru_cache

from proxy.core import jsonrpc
from proxy.core.credentials import (
    Credentials,
    account_of,
    is_signed,
    is_signed_whole,
    principal,
    split,
)
from proxy.core.decide import Ask
from proxy.core.fingerprint import Canonical, DuplicateMember, canonical, content_digest
from proxy.core.identity import encode_part
from proxy.core.keys import is_minted, keyed_digest
from proxy.core.matching import Matched, effective_method
from proxy.core.model import Identity, Request, frozen
from proxy.core.placement import argument_path, each, items_mean, key_of_caller
from proxy.core.refusal import Refusal
from proxy.core.rules import Endpoint
from proxy.core.views import MISSING, BodyMissing, RequestView

READS = frozenset({"GET", "HEAD", "OPTIONS"})
DERIVED_STEP = "~"  # the step "derived from the canonical body"
UNRULED = "unruled"  # the service name of hosts without a rule, in labels and lists
DIGEST_LENGTH = 32  # hex digits in a name: 128 bits, no two bodies share them


@frozen
class Policy:
    """What the configuration says about calls that no rule decides."""

    mode: str = "enforce"  # enforce | observe | pass
    missing_identity: str = "refuse"  # refuse | pass
    unruled: str = "content"  # content | pass | refuse
    unruled_hosts: Mapping[str, str] = field(default_factory=dict)  # host glob -> the same words
    digest_key: bytes = b""  # keys the digests of accounts, credentials and business keys

    def for_host(self, host: str) -> str:
        for pattern, word in self.unruled_hosts.items():
            if fnmatch.fnmatchcase(host, pattern.lower()):
                return word
        return self.unruled


@frozen
class Passing:
    """To be forwarded unrecorded. ``unprotected``: it is a write all the same."""

    reason: str
    unprotected: bool = False


@frozen
class Governable:
    """A write that will have a name once its body is here."""

    run: str
    step: str
    operation_id: str | None
    matched: Matched | None


@frozen
class Governed:
    """A write with a name."""

    run: str  # encoded, as in the key
    step: str
    operation: str
    former: tuple[str, ...]  # the operation under its endpoint's earlier names
    named_by_caller: bool  # it carries an X-Operation-Id
    endpoint: Endpoint
    params: Mapping[str, str]
    mode: str
    request: Request  # as received
    bare: Request  # without credentials
    url: str  # of ``bare``
    credentials: Credentials
    canonical: Canonical
    noise: tuple[str, ...]  # what does not count in it
    fingerprint: str
    core_fingerprint: str
    account: str | None
    credential: str | None
    caller_key: str | None  # the text of the caller's own key that stays
    caller_key_digest: str | None  # of one that means something: none of an SDK's making
    needs_approval: bool

    @property
    def base(self) -> str:
        return f"{self.run}/{self.step}/{self.operation}"

    @property
    def former_bases(self) -> tuple[str, ...]:
        return tuple(f"{self.run}/{self.step}/{name}" for name in self.former)

    @property
    def business_key(self) -> str | None:
        """The caller's own key, unless an SDK made it up for this one call."""
        return self.caller_key if self.caller_key_digest is not None else None

    @property
    def ruled(self) -> bool:
        return self.endpoint.service != UNRULED

    def ask(
        self,
        *,
        version: int,
        epoch: int,
        arrived_at: float,
        attempts_before: int,
        body_sha256: str | None = None,
    ) -> Ask:
        return Ask(
            version=version,
            fingerprint=self.fingerprint,
            core_fingerprint=self.core_fingerprint,
            account=self.account,
            epoch=epoch,
            fresh=True,
            arrived_at=arrived_at,
            attempts_before=attempts_before,
            credential=self.credential,
            body_sha256=body_sha256,
            needs_approval=self.needs_approval,
        )


def unruled_endpoint(request: Request, view: RequestView | None = None) -> Endpoint:
    """The entry that stands in where no rule file has one. Calls of JSON-RPC are known by what they
    look like, so tools of an MCP server that nobody has named are protected as well."""
    return Endpoint(
        service=UNRULED,
        name="content",
        match=None,
        digest="",
        answer_format="jsonrpc" if _is_rpc(request, view or RequestView(request)) else "json",
        idempotent=effective_method(request) in ("PUT", "DELETE"),
    )


def _is_rpc(request: Request, view: RequestView) -> bool:
    try:
        return jsonrpc.may_be(request.body) and jsonrpc.are_calls(view.get("body"))
    except BodyMissing:
        return False


def is_write(request: Request) -> bool:
    """By its method alone; an override header may make a read a write, never the other way
    round."""
    return effective_method(request) not in READS


def triage(
    request: Request, matched: Matched | None, identity: Identity, policy: Policy
) -> Passing | Governable | Refusal:
    """What to do with a call, as far as that can be said without its body."""
    if matched is not None:
        write = matched.endpoint.effect == "write"
        mode = stricter(policy.mode, matched.endpoint.mode)
    else:
        write = is_write(request)
        mode = policy.mode
    if not write:
        return Passing("read")
    named = identity.run is not None and identity.step is not None
    if matched is None:
        word = policy.for_host(request.host)
        if word == "pass":
            return Passing("unruled host, set to pass", unprotected=True)
        if word == "refuse":
            return Refusal(
                "egress-denied",
                "No rule file has this endpoint and unruled is set to refuse: add a rule, or set "
                f'unruled: {{hosts: {{"{request.host}": content}}}}.',
            )
        if not named:
            return Passing("no rule and no identity", unprotected=True)
    elif not named:
        if policy.missing_identity == "pass" or mode != "enforce":
            return Passing("no identity", unprotected=True)
        if matched.anywhere:  # nobody has named this host
            return Passing("no rule and no identity", unprotected=True)
        return Refusal(
            "missing-identity",
            "A write to an endpoint of a rule needs a run and a step: put them into the proxy "
            "address (http://RUN:STEP@host:port) or into X-Run-Id and X-Step-Id.",
        )
    assert identity.run is not None
    assert identity.step is not None
    return Governable(identity.run, identity.step, identity.operation_id, matched)


def stricter(one: str, other: str) -> str:
    """Of two modes the one that does less."""
    if one == other:
        return one
    order = ("enforce", "observe", "pass")
    return max(one, other, key=order.index)


def name(
    call: Governable, request: Request, matched: Matched | None, policy: Policy
) -> Governed | Refusal:
    """The governed write that ``request``, with its whole body, is."""
    params = matched.params if matched else {}
    view = matched.view if matched else RequestView(request, params)
    endpoint = matched.endpoint if matched else unruled_endpoint(request, view)
    bare, credentials = split(request)
    if credentials and endpoint.signed == "none" and is_signed(credentials):
        # Whatever the rule's author thought of.
        endpoint = replace(endpoint, signed="sigv4" if is_signed_whole(credentials) else "headers")
    if graphql_arguments(endpoint):
        endpoint = replace(
            endpoint,
            noise=_located(bare, endpoint.noise),
            wording=_located(bare, endpoint.wording),
        )
    own_key, business_key = _keys_of_caller(request, endpoint)
    digest_key = policy.digest_key
    noise = noise_of(endpoint, business_key, request)
    try:
        canon = canonical(bare, noise=noise, headers=endpoint.headers, params=params)
    except DuplicateMember as error:
        return Refusal(
            "bad-request",
            f"The JSON body has the member {error.path} twice, and services differ in which one "
            "they take: send it once.",
        )
    try:
        anywhere = matched is not None and matched.anywhere
        operation, former = _operation_name(call, bare, endpoint, view, canon, anywhere=anywhere)
        mode = stricter(policy.mode, endpoint.mode)
        needs_approval = mode == "enforce" and _needs_approval(endpoint, view)
    except BodyMissing as error:
        return Refusal("bad-request", f"The rule for {endpoint.title} must read the body: {error}")
    step = call.step
    if step == DERIVED_STEP:
        step = "~" + content_digest(canon)[:DIGEST_LENGTH]
    else:
        step = encode_part(step)
    account = account_of(request, endpoint.account)
    whose = credential_digest(digest_key, credentials) if credentials else None
    fingerprint = canon.digest()
    return Governed(
        run=encode_part(call.run),
        step=step,
        operation=operation,
        former=former,
        named_by_caller=call.operation_id is not None,
        endpoint=endpoint,
        params=params,
        mode=mode,
        request=request,
        bare=bare,
        url=bare.url,
        credentials=credentials,
        canonical=canon,
        noise=noise,
        fingerprint=fingerprint,
        core_fingerprint=canon.digest(endpoint.wording) if endpoint.wording else fingerprint,
        account=_account_digest(digest_key, endpoint, account),
        credential=whose,
        caller_key=own_key,
        caller_key_digest=(
            keyed_digest(digest_key, "key", endpoint.service, account or whose or "", business_key)
            if business_key is not None
            else None
        ),
        needs_approval=needs_approval,
    )


def _account_digest(digest_key: bytes, endpoint: Endpoint, account: str | None) -> str | None:
    """Where the rule says what selects the account, "none named" is an account like any other."""
    if endpoint.account is None:
        return None
    return keyed_digest(digest_key, "account", *([] if account is None else [account]))


@lru_cache(maxsize=256)  # an agent has few credentials and sends them with every call
def credential_digest(digest_key: bytes, credentials: Credentials) -> str:
    return keyed_digest(digest_key, "credential", principal(credentials) or "")


def _operation_name(
    call: Governable,
    bare: Request,
    endpoint: Endpoint,
    view: RequestView,
    canon: Canonical,
    *,
    anywhere: bool,
) -> tuple[str, tuple[str, ...]]:
    """``anywhere``: the rule is for any host, so the host is part of the name."""
    if endpoint.service == UNRULED:
        title = encode_part(f"{bare.method} {bare.authority}{bare.path}")
        if jsonrpc.speaks(endpoint):
            title += _marked("=", jsonrpc.called(view.get("body")))
        if call.operation_id is not None:
            return f"{title}:{encode_part(call.operation_id)}", ()
        return f"{title}~{content_digest(canon)[:DIGEST_LENGTH]}", ()
    suffix = _marked("@", bare.authority + canon.path) if anywhere else ""
    which = endpoint.match.jsonrpc if endpoint.match is not None else None
    if which is not None:
        value = view.get("body")
        if not which.tells_tool:
            suffix += _marked("=", jsonrpc.tool_in(value) or "")
        suffix += _marked("+", jsonrpc.round_of(value) or "")
    if call.operation_id is not None:
        suffix += f":{encode_part(call.operation_id)}"
    elif endpoint.distinguish:
        values = [view.get(path) for path in endpoint.distinguish]
        text = [None if value is MISSING else value for value in values]
        suffix += f"~{keyed_digest(b'', *map(repr, text))[:DIGEST_LENGTH]}"
    former = tuple(f"{endpoint.service}.{old}{suffix}" for old in endpoint.was)
    return endpoint.title + suffix, former


def _marked(mark: str, text: str) -> str:
    """A part of an operation's name that no other part can be taken for."""
    part = encode_part(text) if text else ""
    return mark + "".join(f"%{ord(c):X}" if c in "=@+:~" else c for c in part) if part else ""


def _keys_of_caller(request: Request, endpoint: Endpoint) -> tuple[str | None, str | None]:
    """The caller's own idempotency key if it stays in the request, and if it means something. One
    that an SDK made up stays where a signature covers it, or the rule keeps those: then the API
    goes by it, but the next process makes up another."""
    if endpoint.key is None:
        return None, None
    own = key_of_caller(request, endpoint.key, endpoint.match)
    if own is None or not is_minted(own, endpoint.key.minted):
        return own, own
    stays = endpoint.key.existing == "keep" or endpoint.signed != "none"
    return (own if stays else None), None


def graphql_arguments(endpoint: Endpoint) -> bool:
    """Whether the rule names fields of the body as arguments of a GraphQL field."""
    return any(path.startswith("graphql.") for path in (*endpoint.noise, *endpoint.wording))


def _located(request: Request, paths: tuple[str, ...]) -> tuple[str, ...]:
    """The places of arguments in this request. One that the document writes out has none of its
    own: it counts."""
    found = [
        argument_path(request, path.removeprefix("graphql."))
        if path.startswith("graphql.")
        else path
        for path in paths
    ]
    return tuple(path for path in found if path is not None)


def noise_of(endpoint: Endpoint, business_key: str | None, request: Request) -> tuple[str, ...]:
    """What does not count in the fingerprint: the rule's noise, the ids of a JSON-RPC exchange, and
    the place of the key where the caller's SDK makes up another one each time."""
    key, noise = endpoint.key, endpoint.noise
    if jsonrpc.speaks(endpoint):
        noise = (*noise, *jsonrpc.noise(request.body))
    if key is None or business_key is not None:
        return noise
    if each(key.name) and items_mean(request, key):
        return noise
    if key.place in ("query", "path"):
        return (*noise, f"{key.place}.{key.name}")
    if key.place == "graphql":
        path = argument_path(request, key.name)
        return noise if path is None else (*noise, path)
    if key.place in ("json", "form", "body"):
        return (*noise, f"body.{key.name}")
    return noise


def _needs_approval(endpoint: Endpoint, view: RequestView) -> bool:
    approval = endpoint.approval
    if approval is None:
        return False
    return approval.required or (approval.when is not None and approval.when.may_hold(view))
