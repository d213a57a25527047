"""Evict pods, one at a time, and record each attempt: ledger, event, audit log, counter.

Pods are evicted through the API server, which enforces disruption budgets. Where the agent is told to evict by CRI, the
runtime stops their containers instead, and the records are the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from koord.api.model import ObjectReference
from koord.host.audit_log import POD, AuditEvent
from koord.koordlet.pod_stopper import CriEvictionSettings, PodStopped, PodStopper
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.kube.client.eviction import EvictionResult, evict_pod
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.policy.eviction import EVICTED, FAILED, EvictionLedger, record_annotations
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

EVICT_TIMEOUT_S = 10.0  # after that the numbers that the choice was made on are old
SUCCESS, FAILURE = "evictPodSuccess", "evictPodFail"  # reasons of events


class KoordletEvictor:
    """The only part of koordlet that evicts pods."""

    def __init__(
        self,
        client: Client,
        recorder: EventRecorder,
        clock: Clock,
        ledger: EvictionLedger,
        *,
        node: str,
        audit: Callable[[AuditEvent], None],
        count: Callable[[EvictionRequest], None],
        stopper: PodStopper | None = None,
    ) -> None:
        """`count` is called with every evicted pod. With a `stopper` pods are evicted by CRI."""
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._ledger = ledger
        self._node = node
        self._audit = audit
        self._count = count
        self._stopper = stopper

    async def evict(self, victim: EvictionRequest) -> str | None:
        """Evict a pod. Return None when it is leaving, stopped or gone, else why not."""
        self._audit(
            AuditEvent(
                type=POD,
                namespace=victim.namespace,
                name=victim.name,
                reason=victim.reason,
                message=victim.message,
                owner=victim.record.rule,
                why=victim.record.numbers(),
            )
        )
        return self._record_outcome(victim, await self._request(victim))

    @property
    def evicts_by_stopping(self) -> bool:
        """Return whether evicted pods stay in the API server, with stopped containers."""
        return self._stopper is not None

    async def close(self) -> None:
        if self._stopper is not None:
            await self._stopper.close()

    async def _request(self, victim: EvictionRequest) -> EvictionResult:
        if self._stopper is None:
            return await evict_pod(
                self._client, victim.namespace, victim.name, uid=victim.uid, timeout_s=EVICT_TIMEOUT_S
            )
        stopped = await self._stopper.stop_pod(victim.uid)
        if isinstance(stopped, PodStopped):
            return EvictionResult(outcome=EVICTED, detail=f"the runtime stopped {', '.join(stopped.containers)}")
        return EvictionResult(outcome=FAILED, detail=stopped.reason)

    def _record_outcome(self, victim: EvictionRequest, result: EvictionResult) -> str | None:
        message = f"evict Pod:{victim.namespace}/{victim.name}, reason: {victim.reason}, message: {victim.message}"
        error = "" if result.evicted else f", error {result.detail}"
        why = victim.record.numbers()
        record = msgspec.structs.replace(victim.record, node=self._node).concluded(
            self._clock.time(), result.outcome, result.detail
        )
        self._ledger.add(record)
        reference = ObjectReference(
            api_version="v1", kind="Pod", namespace=victim.namespace, name=victim.name, uid=victim.uid
        )
        self._recorder.record(
            reference,
            "Warning",
            SUCCESS if result.evicted else FAILURE,
            f"{message}{error} ({why})",
            annotations=record_annotations(record),
        )
        if result.evicted:
            self._count(victim)
            _LOG.info("%s: %s", message, why)
            return None
        _LOG.warning("%s%s: %s", message, error, why)
        return result.detail or result.outcome


def build_pod_stopper(settings: CriEvictionSettings | None) -> PodStopper | None:
    """Return the client of the runtime where pods are evicted by CRI."""
    if settings is None:
        return None
    from koord.koordlet.cri_client import CriClient  # gRPC, which only this needs

    return CriClient(settings)
