"""Evict pods, one at a time, and record each attempt: journal, ledger, event, audit log, counter.

A request is in the journal before it is sent, so that the next process records what this one could not. Pods are
evicted through the API server, which enforces disruption budgets. Where the agent is told to evict by CRI, the runtime
stops their containers instead, and the records are the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.model import ObjectReference
from koord.host.audit_log import POD, AuditEvent
from koord.host.filesystem import Host
from koord.host.io_error import IoError
from koord.koordlet.problem_log import ProblemLog
from koord.koordlet.settings import CriEvictionSettings, PodStopped, PodStopper
from koord.koordlet.state_file import StateFile
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.kube.client.eviction import EvictionResult, evict_pod
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.policy.eviction import EVICTED, FAILED, EvictionLedger, record_annotations
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)
FILE_NAME = "evictions.json"
EVICT_TIMEOUT_S = 10.0  # after that the numbers that the choice was made on are old
SUCCESS, FAILURE = "evictPodSuccess", "evictPodFail"  # reasons of events
RECOVER_RETRY_S, RECOVER_TRIES = 10.0, 30  # while the API server is away


class EvictionJournal:
    """The requests under way, in one small file. Without a path they are kept nowhere.

    An agent that is killed before the Event is written leaves the request behind, and the next one records what came of
    it. So a pod that was evicted has its record; an agent that dies just after the Event writes it twice.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else StateFile(Host.local(), str(path), list[EvictionRequest], [])
        self._open: dict[str, EvictionRequest] = {}  # by uid

    def __len__(self) -> int:
        return len(self._open)

    def load(self) -> list[EvictionRequest] | IoError:
        """Return what an earlier process left, and keep it until it is cleared."""
        found = [] if self._file is None else self._file.load()
        if not isinstance(found, IoError):
            self._open = {one.uid: one for one in found} | self._open
        return found

    def begin(self, request: EvictionRequest) -> IoError | None:
        """Add a request that is about to be sent."""
        self._open[request.uid] = request
        return None if self._file is None else self._file.save(list(self._open.values()))

    def clear(self) -> IoError | None:
        """Forget all requests: their records are written."""
        if not self._open:
            return None
        refused = None if self._file is None else self._file.save([])
        if refused is None:
            self._open.clear()
        return refused


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
        journal: EvictionJournal | None = None,
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
        self._journal = EvictionJournal(None) if journal is None else journal
        self._journal_problem = ProblemLog(_LOG, "evictions are not in their journal")
        self._in_flight = 0  # requests whose record is not made yet
        self._stopper = stopper

    async def recover(self) -> None:
        """Record the evictions that an earlier process asked for and could not record."""
        left = self._journal.load()
        if isinstance(left, IoError):
            self._journal_problem.fails(left, left.code)
            return
        for request in left:
            self._in_flight += 1  # the journal keeps all of them until each has its record
            try:
                await self._record_earlier(request)
            finally:
                self._in_flight -= 1

    async def _record_earlier(self, request: EvictionRequest) -> None:
        found: EvictionResult | str | None = ""
        for _ in range(RECOVER_TRIES):
            found = await self._earlier_result(request)
            if not isinstance(found, str):
                break
            await self._clock.sleep(RECOVER_RETRY_S)
        if isinstance(found, str):
            detail = f"an earlier process asked, and what came of it is unknown: {found}"
            found = EvictionResult(outcome=FAILED, detail=detail)
        if found is not None:
            self._record_outcome(request, found)

    async def _earlier_result(self, request: EvictionRequest) -> EvictionResult | str | None:
        """Return what came of it as far as the cluster tells, None when it was never sent, or why that is not known."""
        if self._stopper is not None:
            detail = (
                "an earlier process ended while it asked the runtime, so whether containers were stopped is unknown"
            )
            return EvictionResult(outcome=FAILED, detail=detail)
        try:
            found = await self._client.get(PODS, request.name, request.namespace)
        except TRANSIENT_ERRORS as outage:
            return str(outage)
        if isinstance(found, ApiError) and not found.not_found:
            return str(found)
        stays = (
            not isinstance(found, ApiError)
            and found.metadata.uid == request.uid
            and found.metadata.deletion_timestamp is None
        )
        return None if stays else EvictionResult(outcome=EVICTED, detail="an earlier process asked, and the pod leaves")

    def settle(self) -> None:
        """Clear the journal once every record is written."""
        if not self._in_flight and not self._recorder.pending:
            self._check_journal(self._journal.clear())

    def _check_journal(self, io_error: IoError | None) -> None:
        """Note whether the journal works. A pod that must leave is evicted also when it does not."""
        if io_error is None:
            self._journal_problem.works()
        else:
            self._journal_problem.fails(io_error, io_error.code)

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
        self._check_journal(self._journal.begin(victim))
        self._in_flight += 1
        try:
            return self._record_outcome(victim, await self._request(victim))
        finally:
            self._in_flight -= 1

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
