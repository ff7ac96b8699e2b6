"""Whose credential goes out: the fresh caller's own, in the background the one that was lent, else
the rule's. A caller is never served with another caller's. Lent ones live in memory only.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from proxy.bound import Bound
from proxy.clock import Clock
from proxy.core.call import credential_digest
from proxy.core.credentials import NONE, Credentials, join
from proxy.core.decide import Ask, Decision, Forward, Hold, Reconcile
from proxy.core.model import Request
from proxy.core.operation import RULE
from proxy.core.rules import Endpoint
from proxy.outbound import Outbound

LENDERS_MAX = 10_000  # operations whose caller's credentials are remembered


@dataclass(frozen=True, slots=True)
class Loan:
    credentials: Credentials
    owner: str | None  # keyed digest of them


class Lending:
    def __init__(self, outbound: Outbound, clock: Clock, digest_key: bytes) -> None:
        self._outbound = outbound
        self._clock = clock
        self._digest_key = digest_key
        self._lent: OrderedDict[str, Loan] = OrderedDict()  # by operation base

    def ask(self, bound: Bound) -> Ask:
        """The ask, with whoever's credential there is by now."""
        credential, signer = self.credential(bound), self._signer(bound.endpoint)
        if credential == bound.ask.credential and signer == bound.ask.signer:
            return bound.ask
        return replace(bound.ask, credential=credential, signer=signer)

    def credential(self, bound: Bound) -> str | None:
        """Whose credential goes out: the fresh caller's own, in the background the lent one, else
        the rule's. A caller is never served with another caller's."""
        if bound.endpoint.signed == "sigv4":  # a signature is good for one request, and never lent
            call = bound.call
            return call.credential if call is not None else self._signer(bound.endpoint)
        if bound.call is not None:
            own = bound.call.credential
        else:
            lent = self._lent.get(bound.base)
            own = lent.owner if lent is not None else None
        if own is None and self._outbound.has_secret(bound.endpoint):
            return RULE
        return own

    def authorised(self, bound: Bound, request: Request) -> Request:
        """Raises MissingCredential."""
        if bound.endpoint.signed == "sigv4":
            call = bound.call
            if call is not None and _is_same(request, call.bare):
                return join(request, call.credentials)
            return self._outbound.signed(request, bound.endpoint, self._clock.time())
        if bound.call is not None:
            credentials = bound.call.credentials
        else:
            lent = self._lent.get(bound.base)
            credentials = lent.credentials if lent is not None else NONE
        return self._outbound.authorised(request, bound.endpoint, credentials)

    def _signer(self, endpoint: Endpoint) -> str | None:
        """Digest of the access key that the proxy has for an API whose requests are signed."""
        if endpoint.signed != "sigv4":
            return None
        key = self._outbound.access_key(endpoint)
        return credential_digest(self._digest_key, key.credentials) if key is not None else None

    def lend(self, bound: Bound, decision: Decision) -> None:
        """A call that is the operation's own lends its credential for the time after it, the newest
        caller's counts; one that was refused as another's does not."""
        call = bound.call
        if call is None or not call.credentials:
            return
        if isinstance(decision, Forward | Reconcile | Hold):
            self._lent[bound.base] = Loan(call.credentials, call.credential)
            self._lent.move_to_end(bound.base)
            if len(self._lent) > LENDERS_MAX:
                self._lent.popitem(last=False)

    def give_back(self, base: str) -> None:
        self._lent.pop(base, None)


def _is_same(one: Request, other: Request) -> bool:
    """Whether they are one message, so that a signature of the one is that of the other."""
    return one is other or (
        (one.method, one.target, one.headers) == (other.method, other.target, other.headers)
        and one.body.sha256 == other.body.sha256
    )
