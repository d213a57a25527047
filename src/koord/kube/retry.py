"""This module decides whether a failed call may be retried and after how long; the caller owns clock and
randomness.
"""

from __future__ import annotations

from typing import Any

import msgspec

from koord.kube.refused import retry_after_s
from koord.kube.transport import APPLY_PATCH, JSON_PATCH, Answer, Request, Unreachable

_TROUBLE = frozenset({500, 502, 503, 504})


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    attempts: int = 5  # tries in all, the first included
    first_s: float = 0.2
    factor: float = 2.0
    cap_s: float = 10.0
    jitter: float = 0.5  # the share of a delay that chance may add, so that clients do not return in step
    patience_s: float = 60.0  # a server that asks for a longer pause than this is answered by giving up


NEVER = RetryPolicy(attempts=1)


def pause_s(
    policy: RetryPolicy, tried: int, request: Request, outcome: Answer | Unreachable, chance: float
) -> float | None:
    """Return the seconds to wait before the next try, or None to let the outcome stand. `chance` is uniform in [0,
    1).
    """
    if tried >= policy.attempts or not _worth_it(request, outcome):
        return None
    backoff = min(policy.cap_s, policy.first_s * policy.factor ** (tried - 1)) * (1 + policy.jitter * chance)
    asked = retry_after_s(outcome) if isinstance(outcome, Answer) else None
    if asked is None:
        return backoff
    return None if asked > policy.patience_s else max(asked, backoff)


def _worth_it(request: Request, outcome: Answer | Unreachable) -> bool:
    if isinstance(outcome, Unreachable):
        return not outcome.sent or repeatable(request)
    if outcome.status == 429:
        # It was turned away before it ran. But an eviction's 429 is a disruption budget's verdict, not load.
        return not request.path.endswith("/eviction")
    return outcome.status in _TROUBLE and repeatable(request)


def repeatable(request: Request) -> bool:
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
