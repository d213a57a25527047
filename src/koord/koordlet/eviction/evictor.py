"""Evict pods through the API server, one at a time, and record each attempt: ledger, event, audit log, counter.

The API server enforces disruption budgets, which is why nothing here stops containers through the runtime.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from koord.api.part import ObjectReference
from koord.host.audit_log import POD, AuditEvent
from koord.koordlet.eviction.ledger import EVICTED, FAILED, REFUSED, Entry, Ledger, account
from koord.koordlet.plan import Evict
from koord.kube.client import Client
from koord.kube.outage import OUTAGE
from koord.kube.recorder import Recorder
from koord.telemetry.clock import Clock, now
from koord.values import instant

_LOG = logging.getLogger(__name__)

PATIENCE_S = 10.0  # after that the numbers that the choice was made on are old
SUCCESS, FAILURE = "evictPodSuccess", "evictPodFail"  # reasons of events


class Evictor:
    """The only part of koordlet that evicts pods."""
    def __init__(
        self,
        client: Client,
        recorder: Recorder,
        clock: Clock,
        ledger: Ledger,
        *,
        node: str,
        audit: Callable[[AuditEvent], None],
        count: Callable[[Evict], None],
    ) -> None:
        """`count` is called with every evicted pod."""
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._ledger = ledger
        self._node = node
        self._audit = audit
        self._count = count

    async def evict(self, victim: Evict) -> str | None:
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
                why=account(victim.record),
            )
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                refused = await self._client.evict(victim.namespace, victim.name, uid=victim.uid)
        except TimeoutError:
            return self._tell(victim, FAILED, f"no answer within {PATIENCE_S:.0f} s")
        except OUTAGE as gone:
            return self._tell(victim, FAILED, str(gone))
        if refused is None:
            return self._tell(victim, EVICTED, "")
        if refused.not_found or refused.code == 409:  # gone, or another pod of that name
            return self._tell(victim, EVICTED, f"it was gone: {refused.message}")
        return self._tell(victim, REFUSED, refused.message)

    def _tell(self, victim: Evict, outcome: str, detail: str) -> str | None:
        message = f"evict Pod:{victim.namespace}/{victim.name}, reason: {victim.reason}, message: {victim.message}"
        error = "" if outcome == EVICTED else f", error {detail}"
        why = account(victim.record)
        self._ledger.add(
            Entry(
                at=instant.text(now(self._clock)),
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
