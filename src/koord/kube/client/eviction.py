"""Evict one pod through the API server; the outcome is a value, also when there is no answer."""

from __future__ import annotations

import asyncio

import msgspec

from koord.api.kubernetes.builtin_kinds import PODS
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.policy.eviction import EVICTED, FAILED, REFUSED, EvictionOutcome


class EvictionResult(msgspec.Struct, frozen=True, kw_only=True):
    """Say what came of a request to evict a pod. A pod that is gone counts as evicted."""

    outcome: EvictionOutcome
    detail: str = ""
    error: ApiError | None = None

    @property
    def evicted(self) -> bool:
        return self.outcome == EVICTED

    @property
    def was_gone(self) -> bool:
        return self.evicted and self.error is not None

    @property
    def error_text(self) -> str:
        """Return the error with its code and reason."""
        return self.detail if self.error is None else str(self.error)

    @property
    def may_pass(self) -> bool:
        """Return whether the server had too much to do or a problem of its own, so that another try may succeed."""
        return self.error is not None and (self.error.too_many or self.error.code >= 500)


async def evict_pod(
    client: Client,
    namespace: str,
    name: str,
    *,
    uid: str,
    grace_seconds: int | None = None,
    timeout_s: float | None = None,
    retries_conflict: bool = False,
) -> EvictionResult:
    """Evict the pod of that UID with the Eviction API, which enforces disruption budgets.

    A conflict means that another pod has the name by now, and the pod is gone. A caller that looks at the pod again and
    retries sets `retries_conflict`: then it is a failure.
    """
    try:
        async with asyncio.timeout(timeout_s):
            error = await client.evict(namespace, name, uid=uid, grace_seconds=grace_seconds)
    except TimeoutError:
        return EvictionResult(outcome=FAILED, detail=f"no answer within {timeout_s:.0f} s")
    except TRANSIENT_ERRORS as outage:
        return EvictionResult(outcome=FAILED, detail=str(outage))
    return _result(error, refusal=REFUSED, retries_conflict=retries_conflict)


async def delete_pod(
    client: Client,
    namespace: str,
    name: str,
    *,
    uid: str,
    grace_seconds: int | None = None,
    retries_conflict: bool = False,
) -> EvictionResult:
    """Delete the pod of that UID, whatever disruption budgets say, as preemption and the policy Delete do."""
    try:
        answer = await client.delete(PODS, name, namespace, uid=uid, grace_seconds=grace_seconds)
    except TRANSIENT_ERRORS as outage:
        return EvictionResult(outcome=FAILED, detail=str(outage))
    return _result(answer if isinstance(answer, ApiError) else None, refusal=FAILED, retries_conflict=retries_conflict)


def _result(error: ApiError | None, *, refusal: EvictionOutcome, retries_conflict: bool) -> EvictionResult:
    if error is None:
        return EvictionResult(outcome=EVICTED)
    if error.not_found or (error.conflict and not retries_conflict):
        return EvictionResult(outcome=EVICTED, detail=f"it was gone: {error.message}", error=error)
    return EvictionResult(outcome=refusal if error.too_many else FAILED, detail=error.message, error=error)
