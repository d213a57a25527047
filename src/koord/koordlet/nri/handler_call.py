"""This module holds the interface between the NRI session and what koordlet decides, and runs handlers under their
deadline, so that no handler keeps the runtime waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Literal, Protocol

from koord.koordlet.nri.settings import FailurePolicy
from koord.telemetry.clock import Clock
from koord.wire.nri_messages import ContainerAdjustment, ContainerUpdate, LinuxResources, NriContainer, NriPodSandbox
from koord.wire.ttrpc import MAX_DATA, UNKNOWN, TtrpcResponse, error_status

# The names of Koordinator's stages; it has none for Synchronize.
SYNCHRONIZE = "Synchronize"
PRE_RUN_POD_SANDBOX = "PreRunPodSandbox"
PRE_REMOVE_RUN_POD_SANDBOX = "PreRemoveRunPodSandbox"
PRE_CREATE_CONTAINER = "PreCreateContainer"
PRE_UPDATE_CONTAINER_RESOURCES = "PreUpdateContainerResources"

HandlerOutcome = Literal["success", "failed", "timeout"]
OutcomeObserver = Callable[[str, HandlerOutcome, float, str], None]  # stage, outcome, seconds, detail


class NriHandler(Protocol):
    """NriHandler decides about pods and containers.

    The runtime waits for each answer. A method that raises, or that is slower than its deadline and is then cancelled,
    changes nothing, and with the failure policy Fail the runtime is told. The runtime holds its lock while it waits:
    a method that calls UpdateContainers would wait for itself.
    """

    async def synchronize(self, pods: tuple[NriPodSandbox, ...], containers: tuple[NriContainer, ...]) -> None:
        """Take over all pods and containers that exist; called once for each connection, before any other method."""

    async def run_pod_sandbox(self, pod: NriPodSandbox) -> None:
        """Act on a new pod: its sandbox's cgroup exists, its containers do not."""

    async def remove_pod_sandbox(self, pod: NriPodSandbox) -> None:
        """Act on a pod that goes. Its annotations are those of its start if this connection saw it, or else empty."""

    async def create_container(self, pod: NriPodSandbox, container: NriContainer) -> ContainerAdjustment | None:
        """Return what to change of a container before it is created."""

    async def update_container(
        self, pod: NriPodSandbox, container: NriContainer, resources: LinuxResources
    ) -> ContainerUpdate | None:
        """Return what to change of an update. `resources` are those that the container is about to have.

        An update without a container_id is about this container.
        """


_RESPONSE_OVERHEAD = 16  # bytes of a ttrpc response around its payload
_CANCEL_S = 1.0
_LOG = logging.getLogger(__name__)


class HandlerCalls:
    """HandlerCalls makes the answer of each handler's call, whatever the handler does, and reports the outcome."""

    def __init__(self, clock: Clock, failure_policy: FailurePolicy, on_outcome: OutcomeObserver | None) -> None:
        self._clock = clock
        self._failure_policy = failure_policy
        self._on_outcome = on_outcome
        self._tasks: set[asyncio.Task[bytes]] = set()

    async def run(
        self, stage: str, subject: str, deadline_s: float, work: Coroutine[None, None, bytes]
    ) -> TtrpcResponse:
        """Answer with what `work` returns by the deadline; else with nothing, or with an error under Fail."""
        began = self._clock.monotonic()
        task = asyncio.create_task(work, name=f"nri-handler-{stage}")
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        try:
            # Not asyncio.timeout: a handler that does not heed its cancellation would keep the runtime waiting.
            await asyncio.wait({task}, timeout=deadline_s)
            outcome, detail, payload = _handler_result(task, deadline_s)
        finally:
            task.cancel()  # nothing, where it is done
        if outcome != "success":
            _LOG.warning("NRI %s of %s: %s (failure policy %s)", stage, subject, detail, self._failure_policy)
        self._observe(stage, outcome, self._clock.monotonic() - began, f"{subject}: {detail}" if detail else subject)
        if outcome == "success" or self._failure_policy == "Ignore":
            return TtrpcResponse(payload=payload)
        # Also a late handler is UNKNOWN: a runtime that takes a deadline for a lost plugin would drop it and go on.
        return TtrpcResponse(status=error_status(UNKNOWN, f"{stage} of {subject}: {detail}"))

    async def close(self) -> None:
        """Cancel the handlers that run, and wait for them a little."""
        if not self._tasks:
            return
        for task in self._tasks:
            if not task.cancelling():  # a second cancellation would break into what it does because of the first
                task.cancel()
        _, late = await asyncio.wait(self._tasks, timeout=_CANCEL_S)
        for task in late:
            _LOG.error("NRI: %s goes on after its session was closed", task.get_name())

    def _forget(self, task: asyncio.Task[bytes]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and task.cancelling():
            _LOG.warning("NRI: %s failed after its deadline: %s", task.get_name(), task.exception())

    def _observe(self, stage: str, outcome: HandlerOutcome, seconds: float, detail: str) -> None:
        if self._on_outcome is None:
            return
        try:
            self._on_outcome(stage, outcome, seconds, detail)
        except Exception:  # noqa: BLE001
            _LOG.exception("NRI: the outcome of %s could not be recorded", stage)  # the container starts all the same


def _handler_result(task: asyncio.Task[bytes], deadline_s: float) -> tuple[HandlerOutcome, str, bytes]:
    """Return outcome, detail and payload of a handler's task; one that is not done is too late."""
    if not task.done():
        return "timeout", f"no result after {deadline_s:.2f} s", b""
    if task.cancelled():
        return "failed", "the handler was cancelled", b""
    raised = task.exception()
    if raised is not None:
        return "failed", f"{type(raised).__name__}: {raised}", b""
    payload = task.result()
    if len(payload) > MAX_DATA - _RESPONSE_OVERHEAD:
        return "failed", f"an answer of {len(payload)} bytes is longer than the runtime takes", b""
    return "success", "", payload
