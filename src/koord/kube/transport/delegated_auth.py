"""This module decides who may use a program's secure port by delegated authentication and authorization: the
API server reviews tokens and access.

The order is Kubernetes': an unknown token is rejected even where anyone may ask; then come the paths open
to all; then the API server's SubjectAccessReview. Results are cached for a short while, in bounded memory,
tokens only as digests.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from koord.api.kubernetes.rbac import RbacRule
from koord.kube.transport.interface import DECODE_ERRORS, TRANSIENT_ERRORS, ApiRequest, ApiResponse, Transport
from koord.telemetry.clock import Clock
from koord.telemetry.http_routing import HttpCall, HttpReply, status_reply

V = TypeVar("V")

_LOG = logging.getLogger(__name__)

_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
_SUBJECT_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_MASTERS = "system:masters"
_MAX_CACHED = 1024


class AuthenticatedUser(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


ANONYMOUS_USER = AuthenticatedUser(name="system:anonymous", groups=("system:unauthenticated",))


class AuthCacheTtls(msgspec.Struct, frozen=True, kw_only=True):
    """AuthCacheTtls says for how long a review result is cached."""

    token_s: float = 10.0
    allowed_s: float = 10.0
    denied_s: float = 10.0


class DelegatedAuth:
    """DelegatedAuth guards an endpoint. Without an authentication transport everyone is anonymous; without an
    authorization transport only the open paths are served.
    """

    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("authentication.k8s.io", ("tokenreviews",), ("create",)),
        RbacRule("authorization.k8s.io", ("subjectaccessreviews",), ("create",)),
    )

    def __init__(
        self,
        clock: Clock,
        *,
        authentication: Transport | None = None,
        authorization: Transport | None = None,
        open_paths: Sequence[str] = ("/healthz", "/readyz", "/livez"),
        cache_ttls: AuthCacheTtls = AuthCacheTtls(),  # noqa: B008 - a frozen value
    ) -> None:
        """Create a guard. An open path that ends in /* opens everything below it."""
        self._authentication = authentication
        self._authorization = authorization
        self._open = frozenset(path for path in open_paths if not path.endswith("*"))
        self._open_below = tuple(path[:-1] for path in open_paths if path.endswith("*"))
        self._cache_ttls = cache_ttls
        self._users: _TtlCache[AuthenticatedUser | None] = _TtlCache(clock)
        self._denials: _TtlCache[str | None] = _TtlCache(clock)

    async def __call__(self, call: HttpCall) -> HttpReply | None:
        try:
            user = await self._user(call)
            if user is None:
                return status_reply(401, "Unauthorized", "Unauthorized")
            if call.path in self._open or call.path.startswith(self._open_below) or _MASTERS in user.groups:
                return None
            refusal = await self._denial(user, call.method.lower(), call.path)
        except _REVIEW_ERRORS as trouble:
            _LOG.warning("cannot decide on %s %s: %s", call.method, call.path, trouble)
            return status_reply(500, "InternalError", "Internal Server Error: the API server could not be asked")
        return None if refusal is None else status_reply(403, "Forbidden", refusal)

    async def _user(self, call: HttpCall) -> AuthenticatedUser | None:
        """Return the caller's user, or None when the credentials shown are invalid."""
        if call.certificate is not None:
            return _user_from_certificate(call.certificate)
        scheme, _, token = call.headers.get("Authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or self._authentication is None:
            return ANONYMOUS_USER
        key = hashlib.sha256(token.encode()).digest()
        known, user = self._users.get(key)
        if not known:
            status = await _review(
                self._authentication, _TOKEN_REVIEWS, "authentication", "TokenReview", {"token": token}
            )
            user = _user_from_review(status) if status.get("authenticated") is True else None
            self._users.put(key, user, self._cache_ttls.token_s)
        return user

    async def _denial(self, user: AuthenticatedUser, verb: str, path: str) -> str | None:
        words = f'forbidden: User "{user.name}" cannot {verb} path "{path}"'
        if self._authorization is None:
            return words
        key = (user, verb, path)
        known, refusal = self._denials.get(key)
        if known:
            return refusal
        spec: dict[str, Any] = {"nonResourceAttributes": {"path": path, "verb": verb}}
        spec |= {"user": user.name, "groups": list(user.groups)}
        if user.uid:
            spec["uid"] = user.uid
        if user.extra:
            spec["extra"] = {name: list(values) for name, values in user.extra}
        status = await _review(
            self._authorization, _SUBJECT_ACCESS_REVIEWS, "authorization", "SubjectAccessReview", spec
        )
        allowed = status.get("allowed") is True
        reason = status.get("reason")
        refusal = None if allowed else f"{words}: {reason}" if reason else words
        self._denials.put(key, refusal, self._cache_ttls.allowed_s if allowed else self._cache_ttls.denied_s)
        return refusal


class _ReviewFailed(Exception):
    """_ReviewFailed means that the API server responded, but not with a review result."""


_REVIEW_ERRORS: tuple[type[Exception], ...] = (*TRANSIENT_ERRORS, *DECODE_ERRORS, _ReviewFailed)


class _TtlCache(Generic[V]):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[Hashable, tuple[float, V]] = {}

    def get(self, key: Hashable) -> tuple[bool, V | None]:
        found = self._kept.get(key)
        if found is None or found[0] <= self._clock.monotonic():
            return False, None
        return True, found[1]

    def put(self, key: Hashable, value: V, seconds: float) -> None:
        self._kept.pop(key, None)
        while len(self._kept) >= _MAX_CACHED:
            del self._kept[next(iter(self._kept))]
        if seconds > 0:
            self._kept[key] = (self._clock.monotonic() + seconds, value)


async def _review(transport: Transport, path: str, group: str, kind: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    body = {"apiVersion": f"{group}.k8s.io/v1", "kind": kind, "metadata": {}, "spec": spec}
    answer: ApiResponse = await transport.send(ApiRequest(method="POST", path=path, body=body, user_agent="koord"))
    if not answer.ok:
        raise _ReviewFailed(f"{kind} was answered with {answer.status}")
    plain = answer.body.plain()
    status = plain.get("status") if isinstance(plain, dict) else None
    if not isinstance(status, dict):
        raise _ReviewFailed(f"{kind} came back without a status")
    return status


def _user_from_review(status: Mapping[str, Any]) -> AuthenticatedUser:
    user = status.get("user") or {}
    extra = user.get("extra") or {}
    return AuthenticatedUser(
        name=str(user.get("username", "")),
        uid=str(user.get("uid", "")),
        groups=tuple(user.get("groups") or ()),
        extra=tuple((str(name), tuple(values)) for name, values in sorted(extra.items())),
    )


def _user_from_certificate(certificate: Mapping[str, Any]) -> AuthenticatedUser | None:
    """Return the user of a client certificate: the common name is the user, organisations are its groups."""
    pairs = [pair for part in certificate.get("subject", ()) for pair in part]
    names = [value for field, value in pairs if field == "commonName"]
    if not names:
        return None
    groups = [value for field, value in pairs if field == "organizationName"]
    return AuthenticatedUser(name=names[0], groups=(*groups, "system:authenticated"))
