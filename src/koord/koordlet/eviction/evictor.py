"""Evict pods through the API server, one at a time, and record each attempt: ledger, event, audit log, counter.

The API server enforces disruption budgets, which is why nothing here stops containers through the runtime.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from koord.api.model import ObjectReference
from koord.host.audit_log import POD, AuditEvent
from koord.koordlet.eviction.ledger import (
    EVICTED,
    FAILED,
    REFUSED,
    EvictionEntry,
    EvictionLedger,
    EvictionRequest,
    describe_record,
)
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.telemetry.clock import Clock, now
from koord.values import timestamp

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
    ) -> None:
        """`count` is called with every evicted pod."""
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._ledger = ledger
        self._node = node
        self._audit = audit
        self._count = count

    async def evict(self, victim: EvictionRequest) -> str | None:
        """Request an eviction. Return None when the pod is leaving, else why not; a pod that is gone counts as
        evicted.
        """
        self._audit(
            AuditEvent(
                type=POD,
                namespace=victim.namespace,
                name=victim.name,
                reason=victim.reason,
                message=victim.message,
                owner=victim.record.rule,
                why=describe_record(victim.record),
            )
        )
        try:
            async with asyncio.timeout(EVICT_TIMEOUT_S):
                refused = await self._client.evict(victim.namespace, victim.name, uid=victim.uid)
        except TimeoutError:
            return self._record_outcome(victim, FAILED, f"no answer within {EVICT_TIMEOUT_S:.0f} s")
        except TRANSIENT_ERRORS as gone:
            return self._record_outcome(victim, FAILED, str(gone))
        if refused is None:
            return self._record_outcome(victim, EVICTED, "")
        if refused.not_found or refused.code == 409:  # gone, or another pod of that name
            return self._record_outcome(victim, EVICTED, f"it was gone: {refused.message}")
        return self._record_outcome(victim, REFUSED, refused.message)

    def _record_outcome(self, victim: EvictionRequest, outcome: str, detail: str) -> str | None:
        message = f"evict Pod:{victim.namespace}/{victim.name}, reason: {victim.reason}, message: {victim.message}"
        error = "" if outcome == EVICTED else f", error {detail}"
        why = describe_record(victim.record)
        self._ledger.add(
            EvictionEntry(
                at=timestamp.text(now(self._clock)),
                node=self._node,
                namespace=victim.namespace,
                name=victim.name,
                uid=victim.uid,
                reason=victim.reason,
                message=victim.message,
                outcome=outcome,
                detail=detail,
                record=victim.record,
            )
        )
        reference = ObjectReference(
            api_version="v1", kind="Pod", namespace=victim.namespace, name=victim.name, uid=victim.uid
        )
        self._recorder.record(
            reference, "Warning", SUCCESS if outcome == EVICTED else FAILURE, f"{message}{error} ({why})"
        )
        if outcome == EVICTED:
            self._count(victim)
            _LOG.info("%s: %s", message, why)
            return None
        _LOG.warning("%s%s: %s", message, error, why)
        return detail or outcome
