"""Take a decided pod through its binding cycle: wait at Permit, run PreBind, write the binding once, and find out what
became of it.

    begin -> wait_on_permit -> pre_bind_and_bind: PreBind -> Bind --201--> confirmed later by the watch
                   |                                 |         |
                   | rejected                        | failed  | refused          no answer: ask the server what is true
                   +---------------------------------+---------+--------> the failure, for the scheduling loop to undo

An answer that never came is not a failure: the pod keeps its resources until the server says whether it is bound. A
reserve pod has no binding: the status of its Reservation is written instead (`StatusBinder`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import msgspec

from koord.api.kubernetes.rbac import RbacRule
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import PODS, Pod
from koord.scheduler.extender import Extenders, HttpExtender
from koord.scheduler.framework.attempt import (
    AttemptFailure,
    SchedulingAttempt,
    describe_error,
    failure_of_rejection,
    plugin_that_raised,
)
from koord.scheduler.framework.binding_runtime import run_bind, run_pre_bind
from koord.scheduler.framework.plugin_timing import AttemptTimer
from koord.scheduler.framework.runtime import PluginRejection
from koord.scheduler.framework.verdict import Fault, PodPatch, PreBindActions, Reject, StatusWrite
from koord.scheduler.metrics import MetricsRecorder
from koord.scheduler.queue.queued_pod import QueuedPod
from koord.scheduler.waiting_pods import WaitingPod, WaitingPods
from koord.telemetry.clock import Clock


class BindingContext:
    """Carry what the steps after a decision need to bind one pod to its node, or to undo that."""

    __slots__ = ("attempt", "pod", "queued", "started", "timer", "waiting_pod", "waits")

    def __init__(
        self, queued: QueuedPod, attempt: SchedulingAttempt, waits: Mapping[str, float], started: float
    ) -> None:
        self.queued = queued
        self.attempt = attempt
        self.pod: PodInfo = attempt.pod  # as it was decided about; `queued.pod` follows the server
        self.waits = waits  # by plugin: how long Permit may hold it
        self.started = started
        self.timer: AttemptTimer | None = None  # of a sampled attempt
        self.waiting_pod: WaitingPod | None = None  # while it waits at Permit

    @property
    def node_name(self) -> str:
        return self.attempt.node_name

    @property
    def scheduler_name(self) -> str:
        return self.attempt.profile.scheduler_name


_STATUS_WRITE_TRIES = 5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0


class StatusBinder:
    """Make a `StatusWrite`: the pod patch and the finalizer to the object's metadata, then its new status.

    After a conflict the status is computed anew from what the server has. An answer that never came is not a failure:
    the server is asked until it says whether the object shows the status.
    """

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock

    async def write(self, binding: StatusWrite, pod_patch: PodPatch | None = None) -> Fault | None:
        if pod_patch is not None and (pod_patch.annotations or pod_patch.labels):
            fault = await self._patch_metadata(binding, pod_patch)
            if fault is not None:
                return fault
        message = ""
        live = binding.known
        for _ in range(_STATUS_WRITE_TRIES):
            if live is None:
                live = await self._latest(binding)
            if isinstance(live, Fault):
                return live
            status = binding.make_status(live)
            if isinstance(status, Fault):
                return status
            if status is None:
                self._note_written(binding, live)
                return None
            try:
                answer = await self._write_once(binding, live, status)
            except TRANSIENT_ERRORS as outage:
                return await self._confirm_status(binding, str(outage))
            if not isinstance(answer, ApiError):
                self._note_written(binding, answer)
                return None
            message = answer.message
            if answer.code >= 500:  # it may be done all the same
                return await self._confirm_status(binding, message)
            if not answer.conflict:
                return Fault(message)
            live = None
        return Fault(message)

    def _note_written(self, binding: StatusWrite, live: Any) -> None:
        """Tell who asked for the write what the server has now."""
        if binding.on_written is not None:
            binding.on_written(live)

    async def _write_once(self, binding: StatusWrite, live: Any, status: dict[str, Any]) -> Any:
        """Write the finalizer if it is missing, then the status; return the server's last answer."""
        if binding.finalizer and binding.finalizer not in live.metadata.finalizers:
            finalizers = [*live.metadata.finalizers, binding.finalizer]
            live = await self._patch(binding, live, {"metadata": {"finalizers": finalizers}})
            if isinstance(live, ApiError):
                return live
        return await self._patch(binding, live, {"status": status}, subresource="status")

    async def _patch(self, binding: StatusWrite, live: Any, patch: dict[str, Any], subresource: str = "") -> Any:
        """Patch the object if it is still what `live` shows."""
        metadata = {**patch.get("metadata", {}), "resourceVersion": live.metadata.resource_version}
        return await self._client.patch(
            binding.resource,
            binding.name,
            {**patch, "metadata": metadata},
            binding.namespace or None,
            kind="merge",
            subresource=subresource,
            uid=binding.uid,
        )

    async def _patch_metadata(self, binding: StatusWrite, pod_patch: PodPatch) -> Fault | None:
        metadata: dict[str, Any] = {"annotations": dict(pod_patch.annotations), "labels": dict(pod_patch.labels)}
        patch = {"metadata": {field: values for field, values in metadata.items() if values}}
        try:
            answer = await self._client.patch(
                binding.resource, binding.name, patch, binding.namespace or None, kind="merge", uid=binding.uid
            )
        except TRANSIENT_ERRORS as outage:
            return Fault(str(outage))
        return Fault(answer.message) if isinstance(answer, ApiError) else None

    async def _latest(self, binding: StatusWrite) -> Any:
        """Return the object as the server has it, or a fault that says why it cannot be written."""
        try:
            live = await self._client.get(binding.resource, binding.name, binding.namespace or None)
        except TRANSIENT_ERRORS as outage:
            return Fault(str(outage))
        if isinstance(live, ApiError):
            return Fault(live.message)
        return live if live.metadata.uid == binding.uid else Fault(f"{binding.name} is another object now")

    async def _confirm_status(self, binding: StatusWrite, message: str) -> Fault | None:
        pause = _FIRST_PAUSE_S
        while True:
            try:
                live = await self._client.get(binding.resource, binding.name, binding.namespace or None)
            except TRANSIENT_ERRORS:
                live = None
            if isinstance(live, ApiError) and live.not_found:
                return Fault(message)
            if live is not None and not isinstance(live, ApiError):
                shown = live.metadata.uid == binding.uid and binding.is_written(live)
                if not shown:
                    return Fault(message)
                self._note_written(binding, live)
                return None
            await self._clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


_LOG = logging.getLogger(__name__)

# Bindings on the wire at a time. More does not make an API server quicker, and decisions should not run far ahead.
MAX_CONCURRENT_BINDINGS = 64
# Decided pods that may queue for their turn; the loop pauses beyond that, so that decisions see a recent state.
MAX_PENDING_BINDINGS = 256
_PREBIND_POLL_S = (0.1, 1.0)  # first and longest interval between checks whether PreBind actions are done
DEFAULT_BINDER = "DefaultBinder"
_PRE_BIND_FAILED = 'running PreBind plugin "DefaultPreBind"'
SCHEDULER_NAME_UNMATCHED = "schedulerName unmatched"
_CONFIRM_POLL_S = (0.5, 10.0)  # first and longest interval between questions to the server whether the pod is bound


# How long a pod that is bound with others keeps its place while its binding fails; first and longest pause between.
_KEEP_PLACE_S = 120.0
_REBIND_PAUSE_S = (0.25, 10.0)


class _BindingFailure(AttemptFailure, frozen=True, kw_only=True):
    """Say that a binding failed, whether the next may succeed, and when the server wants to be asked again."""

    may_pass: bool = False
    retry_after_s: float = 0.0


class Binder:
    """Run the steps of binding cycles, as many at a time as an API server takes. It decides nothing about failures."""

    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("", ("pods",), ("get", "patch")),  # patch: what plugins annotate before binding
        RbacRule("", ("pods/binding",), ("create",)),
    )

    def __init__(
        self,
        client: Client,
        clock: Clock,
        waiting_pods: WaitingPods,
        *,
        committed: Callable[[str], None],
        metrics: MetricsRecorder,
        latest_pod: Callable[[PodInfo], Pod | None] | None = None,
        extenders: Extenders | None = None,
    ) -> None:
        """Take the parts; `committed` is called with the UID of each pod that no longer waits for anything.

        With `latest_pod` a pod is checked before PreBind: one that the watch shows with another scheduler, or being
        deleted, is not bound. One of `extenders` may bind in place of the scheduler.
        """
        self._client = client
        self._clock = clock
        self._waiting_pods = waiting_pods
        self._on_committed = committed
        self._metrics = metrics
        self._latest_pod = latest_pod
        self._extenders = extenders
        self._semaphore = asyncio.Semaphore(MAX_CONCURRENT_BINDINGS)
        self._drained = asyncio.Event()
        self._status_binder = StatusBinder(client, clock)
        self.in_progress = 0  # past Permit, not yet answered

    def begin(self, context: BindingContext) -> None:
        """Count the pod from now on, as waiting at Permit or as being bound."""
        context.attempt.evaluation = None  # the pod may wait for long, and nothing reads the results of its class now
        if context.waits:
            now = self._clock.monotonic()
            deadlines = {name: now + wait for name, wait in context.waits.items()}
            context.waiting_pod = WaitingPod(context.pod, context.node_name, deadlines, now)
            self._waiting_pods.add(context.waiting_pod)
        else:
            self._commit(context)

    async def wait_for_releases(self) -> None:
        """Wait until pods just rejected at Permit have released their resources: the next decision must see them."""
        while self._waiting_pods.releasing:  # noqa: ASYNC110 - a turn or two of the loop: their answer is there already
            await asyncio.sleep(0)

    async def write_status(self, write: StatusWrite) -> None:
        """Make a write that no pod waits for; a failure is logged."""
        fault = await self._status_binder.write(write)
        if fault is not None:
            _LOG.warning("writing the status of %s %s: %s", write.resource.kind, write.name, fault.message)
            if write.on_failed is not None:
                write.on_failed(fault)

    @property
    def has_capacity(self) -> bool:
        return self.in_progress < MAX_PENDING_BINDINGS

    async def wait_for_capacity(self) -> None:
        while not self.has_capacity:
            self._drained.clear()
            await self._drained.wait()

    # The binding cycle -------------------------------------------------------------------------------------------

    async def wait_on_permit(self, context: BindingContext) -> AttemptFailure | None:
        """Wait until every plugin that made the pod wait allows it; return the failure if one rejects it."""
        if context.waiting_pod is None:
            return None
        began = self._clock.monotonic()
        try:
            rejection = await context.waiting_pod.wait(self._clock, context.waits)
        finally:
            self._waiting_pods.remove(context.pod.uid)
            context.waiting_pod = None
        result = "Success" if rejection is None else "Unschedulable"
        self._metrics.permit_waited(result, self._clock.monotonic() - began)
        if rejection is not None:
            if not rejection.plugin:  # it is not about the node: the pod is gone, or another scheduler's
                return AttemptFailure(message=rejection.message, error=True)
            failure = failure_of_rejection(PluginRejection(rejection.plugin, Reject((rejection.message,)), "Permit"))
            return msgspec.structs.replace(failure, silent_release=rejection.quiet)
        self._commit(context)
        return None

    async def pre_bind_and_bind(self, context: BindingContext) -> AttemptFailure | None:
        """Run PreBind and Bind when it is the pod's turn; return the failure, None when the pod is bound."""
        try:
            async with self._semaphore:
                return await self._pre_bind_and_bind(context)
        except Exception as error:  # noqa: BLE001 - a plugin's or our own fault: this pod fails, the scheduler lives
            _LOG.exception("binding %s failed", context.pod.key)
            return AttemptFailure(
                message=f'running "{plugin_that_raised(error)}" plugin: {describe_error(error)}', error=True
            )
        finally:
            self.in_progress -= 1
            if self.has_capacity:
                self._drained.set()

    def _commit(self, context: BindingContext) -> None:
        self.in_progress += 1
        self._on_committed(context.pod.uid)

    def _check_latest(self, context: BindingContext) -> AttemptFailure | None:
        latest = self._latest_pod(context.pod) if self._latest_pod is not None else None
        if latest is None or latest.metadata.uid != context.pod.uid:  # if it is gone, the server says so
            return None
        if latest.spec.scheduler_name != context.scheduler_name:
            return AttemptFailure(message=f"{_PRE_BIND_FAILED}: {SCHEDULER_NAME_UNMATCHED}", error=True)
        if latest.metadata.deletion_timestamp is not None:
            return AttemptFailure(message=f"{_PRE_BIND_FAILED}: pod is being deleted", error=True)
        return None

    async def _pre_bind_and_bind(self, context: BindingContext) -> AttemptFailure | None:
        failure = self._check_latest(context)
        if failure is not None:
            return failure
        began = self._clock.monotonic()
        pod_patch = await run_pre_bind(context.attempt, self._execute, context.timer)
        self._metrics.point_took(context.scheduler_name, "PreBind", self._clock.monotonic() - began)
        if isinstance(pod_patch, PluginRejection):
            return failure_of_rejection(pod_patch)
        if self._extenders is not None and (extender := self._extenders.binder_of(context.pod)) is not None:
            failure = await self._bind_by_extender(extender, context, pod_patch)
            if failure is None or not extender.settings.ignorable:
                return failure
            _LOG.warning("extender %s does not bind %s: %s", extender.name, context.pod.key, failure.message)
        bound = run_bind(context.attempt)
        if isinstance(bound, PluginRejection):
            return failure_of_rejection(bound)
        if bound is not None:  # in place of a binding
            plugin, effect = bound
            if isinstance(effect, PreBindActions):
                fault = await self._execute(effect)
            else:
                fault = await self._status_binder.write(effect, pod_patch)
            return None if fault is None else failure_of_rejection(PluginRejection(plugin, fault, "Bind"))
        if pod_patch is not None and pod_patch.labels:
            failure = await self._patch_pod(context, {"labels": dict(pod_patch.labels)})
            if failure is not None:
                return failure
        began = self._clock.monotonic()
        failure = await self._bind_with_retries(context, pod_patch)
        took = self._clock.monotonic() - began
        self._metrics.point_took(context.scheduler_name, "Bind", took)
        if context.timer is not None:
            self._metrics.plugin_took(DEFAULT_BINDER, "Bind", "Success" if failure is None else "Error", took)
        return failure

    async def _bind_with_retries(self, context: BindingContext, pod_patch: PodPatch | None) -> AttemptFailure | None:
        """Write the binding; that of a pod bound with others again while its refusal may pass, on the same node.

        Nobody else gets its place meanwhile, because it stays assumed.
        """
        annotations = pod_patch.annotations if pod_patch is not None else None
        again = pod_patch is not None and pod_patch.bound_with_others
        end = self._clock.monotonic() + _KEEP_PLACE_S
        pause, longest = _REBIND_PAUSE_S
        while True:
            failure = await self._post_binding(context, annotations)
            if failure is None or not failure.may_pass or not again:
                return failure
            pause = max(pause, failure.retry_after_s)
            if self._clock.monotonic() + pause > end:
                return failure
            _LOG.warning("%s keeps its place on %s: %s", context.pod.key, context.node_name, failure.message)
            await self._clock.sleep(pause)
            pause = min(2 * pause, longest)
            if self._check_latest(context) is not None or not self._has_node(context):
                return failure

    def _has_node(self, context: BindingContext) -> bool:
        return context.attempt.cycle.state.node(context.node_name) is not None

    async def _post_binding(
        self, context: BindingContext, annotations: Mapping[str, str] | None
    ) -> _BindingFailure | None:
        pod, node = context.pod, context.node_name
        try:
            refused = await self._client.bind(pod.namespace, pod.name, node, uid=pod.uid, annotations=annotations)
        except TRANSIENT_ERRORS as outage:
            return await self._confirm_binding(context, f'running Bind plugin "{DEFAULT_BINDER}": {outage}')
        if refused is None:
            return None
        message = f'running Bind plugin "{DEFAULT_BINDER}": {refused.message}'
        if refused.code >= 500 or refused.conflict:  # it may be bound all the same, by this call or by a lost one
            return await self._confirm_binding(context, message)
        may_pass = refused.code == 429  # it was not looked at
        return _BindingFailure(
            message=message, error=True, may_pass=may_pass, retry_after_s=refused.retry_after_s or 0.0
        )

    async def _execute(self, actions: PreBindActions) -> Fault | None:
        for write in actions.writes:
            try:
                done = await self._client.patch(
                    write.resource, write.name, write.patch, write.namespace or None, kind="merge"
                )
            except TRANSIENT_ERRORS as outage:
                return Fault(str(outage))
            if isinstance(done, ApiError):
                return Fault(done.message)
        for status_write in actions.status_writes:
            fault = await self._status_binder.write(status_write)
            if fault is not None:
                return fault
        end = self._clock.monotonic() + actions.timeout_s
        pause, longest = _PREBIND_POLL_S
        while True:
            settled = actions.is_done()
            if isinstance(settled, Fault):
                return settled
            if settled:
                return None
            if self._clock.monotonic() >= end:
                return Fault("timed out waiting for the condition")
            await self._clock.sleep(pause)
            pause = min(2 * pause, longest)

    async def _bind_by_extender(
        self, extender: HttpExtender, context: BindingContext, pod_patch: PodPatch | None
    ) -> AttemptFailure | None:
        """Let an extender bind the pod, after what plugins left to write: its binding carries nothing of ours."""
        if pod_patch is not None and (pod_patch.annotations or pod_patch.labels):
            metadata = {"annotations": dict(pod_patch.annotations), "labels": dict(pod_patch.labels)}
            failure = await self._patch_pod(context, {field: values for field, values in metadata.items() if values})
            if failure is not None:
                return failure
        began = self._clock.monotonic()
        fault = await extender.bind(context.pod, context.node_name)
        self._metrics.point_took(context.scheduler_name, "Bind", self._clock.monotonic() - began)
        return None if fault is None else await self._confirm_binding(context, fault.message)

    async def _patch_pod(self, context: BindingContext, metadata: Mapping[str, Any]) -> AttemptFailure | None:
        """Patch the pod's labels before the binding, which can carry annotations but no labels; or all of them."""
        pod = context.pod
        patch = {"metadata": metadata}
        try:
            done = await self._client.patch(PODS, pod.name, patch, pod.namespace, kind="merge", uid=pod.uid)
        except TRANSIENT_ERRORS as outage:
            return AttemptFailure(message=f"{_PRE_BIND_FAILED}: {outage}", error=True)
        if isinstance(done, ApiError):
            return AttemptFailure(message=f"{_PRE_BIND_FAILED}: {done.message}", error=True)
        return None

    async def _confirm_binding(self, context: BindingContext, message: str) -> _BindingFailure | None:
        """Ask the server until it says whether the pod is bound after all; return the failure if it is not."""
        pod = context.pod
        pause, longest = _CONFIRM_POLL_S
        while True:
            try:
                seen = await self._client.get(PODS, pod.name, pod.namespace)
            except TRANSIENT_ERRORS:
                seen = None
            if isinstance(seen, ApiError) and seen.not_found:
                return _BindingFailure(message=message, error=True)
            if seen is not None and not isinstance(seen, ApiError):
                same = seen.metadata.uid == pod.uid
                if same and seen.spec.node_name == context.node_name:
                    return None
                waits = same and not seen.spec.node_name and seen.metadata.deletion_timestamp is None
                return _BindingFailure(message=message, error=True, may_pass=waits)
            await self._clock.sleep(pause)
            pause = min(2 * pause, longest)
