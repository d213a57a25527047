"""This module sends one call for a client: throttled, and retried where the policy allows."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from koord.kube.transport.api_error import retry_after_s
from koord.kube.transport.interface import (
    APPLY_PATCH,
    JSON_PATCH,
    ApiRequest,
    ApiResponse,
    Transport,
    Unreachable,
    WatchStream,
)
from koord.telemetry.clock import Clock
from koord.values.token_bucket import TokenBucket


def request_throttle(rate: float, burst: int, now_s: float) -> TokenBucket | None:
    """Return the throttle of a client: `rate` calls a second, at most `burst` saved up; None (burst 0) is no limit."""
    if not burst:
        return None
    if rate <= 0:
        raise ValueError(f"a rate limit needs a rate above zero, not {rate} (burst 0 means no limit)")
    return TokenBucket(rate, burst, now_s)


_RETRYABLE_STATUS = frozenset({500, 502, 503, 504})


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    attempts: int = 5  # tries in all, the first included
    first_s: float = 0.2
    factor: float = 2.0
    cap_s: float = 10.0
    jitter: float = 0.5  # the share of a delay that chance may add, so that clients do not return in step
    max_retry_after_s: float = 60.0  # a server that asks for a longer pause than this is answered by giving up


NEVER_RETRY = RetryPolicy(attempts=1)


def retry_delay_s(
    policy: RetryPolicy, tried: int, request: ApiRequest, outcome: ApiResponse | Unreachable, chance: float
) -> float | None:
    """Return the seconds to the next try, or None to let the outcome stand. `chance` is uniform in [0, 1)."""
    if tried >= policy.attempts or not _is_retryable(request, outcome):
        return None
    backoff = min(policy.cap_s, policy.first_s * policy.factor ** (tried - 1)) * (1 + policy.jitter * chance)
    asked = retry_after_s(outcome) if isinstance(outcome, ApiResponse) else None
    if asked is None:
        return backoff
    return None if asked > policy.max_retry_after_s else max(asked, backoff)


def _is_retryable(request: ApiRequest, outcome: ApiResponse | Unreachable) -> bool:
    if isinstance(outcome, Unreachable):
        return not outcome.sent or is_idempotent(request)
    if outcome.status == 429:
        # It was turned away before it ran. But an eviction's 429 is a disruption budget's verdict, not load.
        return not request.path.endswith("/eviction")
    return outcome.status in _RETRYABLE_STATUS and is_idempotent(request)


def is_idempotent(request: ApiRequest) -> bool:
    """Return whether running the request twice has the effect of running it once, and hits no other object."""
    body = request.body
    match request.method:
        case "GET" | "HEAD":
            return True
        case "PUT":
            return bool(_metadata(body).get("resourceVersion"))
        case "PATCH" if request.content_type == APPLY_PATCH:
            return True
        case "PATCH" if request.content_type == JSON_PATCH:
            # A uid test is not enough here: an "add" to a list's end would be done twice.
            return isinstance(body, list) and any(_tests_version(op) for op in body)
        case "PATCH":
            metadata = _metadata(body)
            return bool(metadata.get("uid") or metadata.get("resourceVersion"))
        case "DELETE":
            return isinstance(body, dict) and bool(body.get("preconditions"))
        case _:
            return False


def _tests_version(op: Any) -> bool:
    return isinstance(op, dict) and op.get("op") == "test" and op.get("path") == "/metadata/resourceVersion"


def _metadata(body: Any) -> dict[str, Any]:
    metadata = body.get("metadata") if isinstance(body, dict) else None
    return metadata if isinstance(metadata, dict) else {}


R = TypeVar("R")


class RetryingCaller:
    """RetryingCaller is what the typed and the dynamic view of one client share."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        throttle: TokenBucket | None,
        retry: RetryPolicy,
        user_agent: str,
        chance: random.Random,
    ) -> None:
        self.transport = transport
        self._clock = clock
        self._throttle = throttle
        self._retry = retry
        self._user_agent = user_agent
        self._chance = chance

    async def send(self, request: ApiRequest) -> ApiResponse:
        return await self._send_with_retries(self.transport.send, request)

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        return await self._send_with_retries(self.transport.watch, request)

    async def _send_with_retries(
        self, attempt: Callable[[ApiRequest], Awaitable[R | ApiResponse]], request: ApiRequest
    ) -> R | ApiResponse:
        if not request.user_agent:
            request = msgspec.structs.replace(request, user_agent=self._user_agent)
        tried = 0
        while True:
            if self._throttle is not None and (wait_s := self._throttle.reserve(self._clock.monotonic())) > 0:
                await self._clock.sleep(wait_s)
            tried += 1
            try:
                outcome = await attempt(request)
            except Unreachable as failure:
                pause = retry_delay_s(self._retry, tried, request, failure, self._chance.random())
                if pause is None:
                    raise
            else:
                if not isinstance(outcome, ApiResponse) or outcome.ok:
                    return outcome
                pause = retry_delay_s(self._retry, tried, request, outcome, self._chance.random())
                if pause is None:
                    return outcome
            await self._clock.sleep(pause)
