"""Sync one pod on its simulated host: admit or recover it, advance its run, and report its status to the
API server.

The fleet decides which pod is synced and when. Admission and recovery are pure decisions.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import datetime

import msgspec

from koord.api.kubernetes.builtin_kinds import PODS, RESOURCE_CLAIMS
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.pod import ContainerState, ContainerStateTerminated, ContainerStatus, PodStatus
from koord.api.model import ObjectReference
from koord.embedded.kubelet import pod_behaviour, pod_status, usage_model
from koord.embedded.kubelet.pod_lifecycle import (
    ConditionState,
    ContainerExited,
    ContainerRun,
    ContainerRunning,
    ContainerWaiting,
    PodDeletion,
    PodPhase,
    PodRun,
    RunSpec,
    advance,
    next_due,
    start_run,
)
from koord.embedded.kubelet.simulated_host import SimulatedPod
from koord.embedded.kubelet.slim_views import ANNOTATION_PREFIX, NODES, SharedPodTemplate
from koord.embedded.kubelet.usage_model import InvalidUsageModel, PodLoad, UsageTrace, resolve_load
from koord.kube.client import request_builder
from koord.kube.client.typed_client import Client
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, RequeueAfter
from koord.kube.events.recorder import EventRecorder, object_reference
from koord.kube.rate_limit import RateLimitedLog
from koord.kube.transport.api_error import ApiError, error_from_response
from koord.kube.transport.interface import TRANSIENT_ERRORS, ApiRequest
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

DEFAULT_GRACE_S = 30
DEFAULT_RESTART_POLICY = "Always"
UNPREPARED_CLAIMS = "FailedPrepareDynamicResources"
CLAIM_RETRY_S = 2.0


class PodWorker:
    def __init__(
        self, client: Client, clock: Clock, seed: int, recorder: EventRecorder, traces: Mapping[str, UsageTrace]
    ) -> None:
        self._client = client
        self._clock = clock
        self._seed = seed
        self._recorder = recorder
        self._traces = traces
        self._limited_log = RateLimitedLog(_LOG, clock)

    async def sync(self, sim_pod: SimulatedPod) -> ReconcileResult:
        try:
            return await self._sync(sim_pod)
        except TRANSIENT_ERRORS as error:
            self._limited_log.warning("pod %s: %s", sim_pod.view.metadata.name, error)
            return Requeue(str(error))

    def run_spec(self, sim_pod: SimulatedPod, plan: pod_behaviour.PodBehaviour) -> RunSpec:
        spec, status = sim_pod.view.spec, sim_pod.view.status
        grace = spec.termination_grace_period_seconds
        return RunSpec(
            plan=plan,
            restart_policy=spec.restart_policy or DEFAULT_RESTART_POLICY,
            deadline_s=spec.active_deadline_seconds,
            grace_s=DEFAULT_GRACE_S if grace is None else grace,
            deletion=sim_pod.deletion,
            gates_open=all(status.condition(gate) == "True" for gate in sim_pod.template.gates),
        )

    async def _sync(self, sim_pod: SimulatedPod) -> ReconcileResult:
        now = self._clock.time()
        self._note_deletion(sim_pod, now)
        if sim_pod.run is None and not sim_pod.rejected:
            if sim_pod.view.claims and not sim_pod.view.status.start_time:
                waits = await self._claims_not_ready(sim_pod)
                if waits and sim_pod.deletion is not None:
                    return await self._finish(sim_pod)
                if waits:
                    self._recorder.record(_pod_reference(sim_pod.view), "Warning", UNPREPARED_CLAIMS, waits)
                    return RequeueAfter(CLAIM_RETRY_S)
            refused = await self._admit_or_recover(sim_pod, now)
            if refused is not None:
                return self._outcome(sim_pod, refused)
        if sim_pod.run is not None and not sim_pod.run.is_over and sim_pod.view.status.phase in ("Succeeded", "Failed"):
            sim_pod.rejected = True  # someone else declared it over, and that is final
            sim_pod.host.release(sim_pod)
        if sim_pod.rejected or sim_pod.run is None or sim_pod.plan is None:
            return await self._finish(sim_pod)
        run_spec = self.run_spec(sim_pod, sim_pod.plan)
        run = sim_pod.run = advance(sim_pod.run, run_spec, now)
        refused = await self._report_status(sim_pod, run)
        if refused is not None:
            return self._outcome(sim_pod, refused)
        if run.is_over:
            sim_pod.host.release(sim_pod)
            return await self._finish(sim_pod)
        sim_pod.host.account(sim_pod)
        due = next_due(run, run_spec)
        return Done() if due is None else RequeueAfter(max(0.0, due - self._clock.time()))

    def update_load(self, sim_pod: SimulatedPod) -> None:
        """Apply a changed usage annotation; everything else was settled when the pod was admitted."""
        load = self._load(sim_pod)
        if isinstance(load, pod_behaviour.InvalidAnnotation):
            self._recorder.record(_pod_reference(sim_pod.view), "Warning", "InvalidSimulation", str(load))
        else:
            sim_pod.load = load

    def _load(self, sim_pod: SimulatedPod) -> PodLoad | pod_behaviour.InvalidAnnotation:
        key = ANNOTATION_PREFIX + pod_behaviour.USAGE_KEY
        said = sim_pod.view.metadata.annotations.get(key)
        model = sim_pod.host.machine.pool.usage if said is None else usage_model.parse_usage_model(said)
        template = sim_pod.template
        if not isinstance(model, InvalidUsageModel):
            load = resolve_load(model, template.requests, template.limits, self._traces)
            if not isinstance(load, InvalidUsageModel):
                return load
            model = load
        return pod_behaviour.InvalidAnnotation(key=key, value=said or "", rule=model.rule)

    def _note_deletion(self, sim_pod: SimulatedPod, now: float) -> None:
        meta = sim_pod.view.metadata
        if meta.deletion_timestamp is None:
            return
        grace = float(meta.deletion_grace_period_seconds or 0)
        if sim_pod.deletion is None or grace < sim_pod.deletion.grace_s:
            sim_pod.deletion = PodDeletion(now, grace)

    async def _admit_or_recover(self, sim_pod: SimulatedPod, now: float) -> ApiError | None:
        """Admit a pod that is new here, or recover one that ran before this process did."""
        status = sim_pod.view.status
        if status.phase in ("Succeeded", "Failed"):
            sim_pod.rejected = True  # over before it was ours: only its deletion is left to do
            return None
        (plan, files), load = self._behaviour(sim_pod), self._load(sim_pod)
        if isinstance(plan, pod_behaviour.InvalidAnnotation):
            return await self._reject(sim_pod, "InvalidSimulation", f"Pod was rejected: {plan}", now)
        if isinstance(load, pod_behaviour.InvalidAnnotation):
            return await self._reject(sim_pod, "InvalidSimulation", f"Pod was rejected: {load}", now)
        sim_pod.load = load
        host = sim_pod.host
        if status.start_time:
            return await self._recover(sim_pod, plan, now)
        rejection = admit_pod(sim_pod.template, host.allocatable, host.used, host.ports, host.labels)
        if rejection is not None:
            # Pods and nodes come on two watches: the scheduler may know more of the node than this host by now.
            node = await self._client.get(NODES, host.name)
            if not isinstance(node, ApiError):
                host.observe_node(node)
                rejection = admit_pod(sim_pod.template, host.allocatable, host.used, host.ports, host.labels)
            elif not node.not_found:
                return node
        if rejection is not None:
            return await self._reject(sim_pod, rejection.reason, rejection.message, now)
        sim_pod.plan, host.files = plan, files
        sim_pod.run = start_run(plan, now, pod_behaviour.sandbox_delay_s(plan, self._seed, _pod_key(sim_pod)))
        host.account(sim_pod)
        host.assign_ip(sim_pod)
        return None

    async def _claims_not_ready(self, sim_pod: SimulatedPod) -> str:
        """Return why the devices of a pod cannot be prepared; empty when its claims are allocated and reserved for it.

        A kubelet does not start such a pod, and tries again.
        """
        meta = sim_pod.view.metadata
        for name in sim_pod.view.claims:
            if not name:
                return "Failed to prepare dynamic resources: a ResourceClaim of the pod is not created yet"
            claim = await self._client.get(RESOURCE_CLAIMS, name, meta.namespace)
            if isinstance(claim, ApiError):
                return f"Failed to prepare dynamic resources: fetch ResourceClaim {name}: {claim.message}"
            if claim.status.allocation is None:
                return f"Failed to prepare dynamic resources: ResourceClaim {name} is not allocated"
            if all(consumer.uid != meta.uid for consumer in claim.status.reserved_for):
                return f"Failed to prepare dynamic resources: ResourceClaim {name} is not reserved for the pod"
        return ""

    def _behaviour(
        self, sim_pod: SimulatedPod
    ) -> tuple[pod_behaviour.PodBehaviour | pod_behaviour.InvalidAnnotation, frozenset[str]]:
        """Return how the pod behaves, and the files on its node once it has started."""
        policy = sim_pod.view.spec.restart_policy or DEFAULT_RESTART_POLICY
        scripts: pod_behaviour.ScriptRuns = ()
        files = sim_pod.host.files
        if sim_pod.view.environment:
            scripts, files = pod_behaviour.script_runs(sim_pod.view, files, self._seed)
        annotations, job_s = sim_pod.view.metadata.annotations, sim_pod.host.machine.pool.job_seconds
        plan = pod_behaviour.parse_behaviour(annotations, sim_pod.template, policy, scripts, job_s)
        return plan, files

    async def _recover(self, sim_pod: SimulatedPod, plan: pod_behaviour.PodBehaviour, now: float) -> ApiError | None:
        meta = sim_pod.view.metadata
        found = await self._client.get(PODS, meta.name, meta.namespace)
        if isinstance(found, ApiError):
            return found
        host = sim_pod.host
        sim_pod.plan = plan
        sim_pod.run = recover_run(found.status, sim_pod.template, plan, now)
        sim_pod.ip = found.status.pod_ip
        if sim_pod.ip and not sim_pod.view.spec.host_network:
            host.pod_cidr.reserve(sim_pod.ip)
        host.account(sim_pod)
        host.assign_ip(sim_pod)
        sim_pod.reported = (sim_pod.run, sim_pod.status_facts())
        return None

    async def _reject(self, sim_pod: SimulatedPod, reason: str, message: str, now: float) -> ApiError | None:
        status = pod_status.rejected_pod_status(reason, message, sim_pod.status_facts(), now)
        refused = await self._patch(sim_pod, status)
        if refused is None:
            sim_pod.rejected = True
            self._recorder.record(_pod_reference(sim_pod.view), "Warning", reason, message)
        return refused

    async def _report_status(self, sim_pod: SimulatedPod, run: PodRun) -> ApiError | None:
        about, reported = sim_pod.status_facts(), sim_pod.reported
        contradicted = reported is not None and sim_pod.is_overwritten()
        if reported is not None and reported[0] is run and reported[1] == about and not contradicted:
            return None
        before = None if reported is None or contradicted else pod_status.pod_status(*reported)
        patch = pod_status.pod_status_patch(before, pod_status.pod_status(run, about))
        if patch is None:
            return None
        refused = await self._patch(sim_pod, patch)
        if refused is None:
            self._record_backoff(sim_pod, None if reported is None else reported[0], run)
            sim_pod.reported = (run, about)
        return refused

    def _record_backoff(self, sim_pod: SimulatedPod, before: PodRun | None, after: PodRun) -> None:
        """Record a BackOff event only: an event on every start would double the writes."""
        for name in pod_status.containers_in_backoff(before, after, sim_pod.template):
            meta = sim_pod.view.metadata
            note = f"Back-off restarting failed container {name} in pod {meta.name}_{meta.namespace}({meta.uid})"
            self._recorder.record(_pod_reference(sim_pod.view), "Warning", "BackOff", note)

    async def _finish(self, sim_pod: SimulatedPod) -> ReconcileResult:
        """Delete a pod that is over from the API server when its deletion was requested."""
        if sim_pod.deletion is None and sim_pod.view.metadata.deletion_timestamp is None:
            return Done()
        meta = sim_pod.view.metadata
        request = request_builder.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_seconds=0)
        refused = await self._send(request)
        return Done() if refused is None else self._outcome(sim_pod, refused)

    async def _patch(self, sim_pod: SimulatedPod, status: pod_status.Plain) -> ApiError | None:
        meta = sim_pod.view.metadata
        body = {"status": status}
        return await self._send(
            request_builder.patch(
                PODS, meta.name, body, meta.namespace, kind="strategic", subresource="status", uid=meta.uid
            )
        )

    async def _send(self, request: ApiRequest) -> ApiError | None:
        answer = await self._client.raw(request)
        return None if answer.ok else error_from_response(answer)

    def _outcome(self, sim_pod: SimulatedPod, refused: ApiError) -> ReconcileResult:
        if refused.not_found or refused.conflict:
            return Done()  # it is gone, or a namesake has come: the informer will say so
        self._limited_log.warning("pod %s/%s: %s", sim_pod.view.metadata.namespace, sim_pod.view.metadata.name, refused)
        return Requeue(str(refused))


def _pod_key(sim_pod: SimulatedPod) -> str:
    meta = sim_pod.view.metadata
    return f"{meta.namespace}/{meta.name}/{meta.uid}"


def _pod_reference(pod: Object) -> ObjectReference:
    return object_reference(PODS, pod)


# Resources that every node has. An extended resource that a node does not list is somebody else's business.
_NATIVE_RESOURCES = frozenset(("cpu", "memory", "ephemeral-storage", "pods"))


class PodRejection(msgspec.Struct, frozen=True, kw_only=True):
    reason: str
    message: str


def admit_pod(
    template: SharedPodTemplate,
    allocatable: Mapping[str, int],
    used: Mapping[str, int],
    ports: Collection[tuple[str, str, int]],
    labels: Mapping[str, str],
) -> PodRejection | None:
    """Return why the node rejects the pod, or None. `used` and `ports` are those of pods that are not over."""
    for name, asked in (("pods", 1), *template.requests.items()):
        known = name in allocatable
        if asked == 0 or (not known and name not in _NATIVE_RESOURCES):
            continue
        taken, room = used.get(name, 0), allocatable.get(name, 0)
        if taken + asked > room:
            return _reject(
                f"OutOf{name}",
                f"Node didn't have enough resource: {name}, requested: {asked}, used: {taken}, capacity: {room}",
            )
    if any(labels.get(key) != value for key, value in template.node_selector.items()):
        return _reject(
            "NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
        )
    if any(_ports_conflict(port, taken) for port in template.host_ports for taken in ports):
        return _reject(
            "NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"
        )
    return None


def _ports_conflict(one: tuple[str, str, int], other: tuple[str, str, int]) -> bool:
    """Return whether two host ports are the same, on the same address or with either of them on all addresses."""
    return one[1:] == other[1:] and (one[0] == other[0] or "0.0.0.0" in (one[0], other[0]))


def _reject(reason: str, message: str) -> PodRejection:
    return PodRejection(reason=reason, message=f"Pod was rejected: {message}")


def recover_run(status: PodStatus, template: SharedPodTemplate, plan: pod_behaviour.PodBehaviour, now: float) -> PodRun:
    """Return the run that a status describes, for a pod that was started before this process was."""
    began = _timestamp_or(status.start_time, now)
    init = {s.name: s for s in status.init_container_statuses}
    main = {s.name: s for s in status.container_statuses}
    waiting = "PodInitializing" if template.init_containers else "ContainerCreating"
    conditions = {
        c.type: ConditionState(c.status == "True", _timestamp_or(c.last_transition_time, now))
        for c in status.conditions
    }
    phase = status.phase
    known: PodPhase = phase if phase in ("Running", "Succeeded", "Failed") else "Pending"  # type: ignore[assignment]
    no = ConditionState(False, began)
    return PodRun(
        phase=known,
        admitted_at=began,
        sandbox_at=now,
        init=tuple(
            _recover_container(init.get(v.name), p, waiting, now) for v, p in zip(template.init_containers, plan.init)
        ),
        main=tuple(
            _recover_container(main.get(v.name), p, waiting, now) for v, p in zip(template.containers, plan.main)
        ),
        sandbox=conditions.get("PodReadyToStartContainers", no),
        initialized=conditions.get("Initialized", ConditionState(not plan.init, began)),
        containers_ready=conditions.get("ContainersReady", no),
        ready=conditions.get("Ready", no),
        reason=status.reason,
        message=status.message,
    )


def _recover_container(
    status: ContainerStatus | None, plan: pod_behaviour.ContainerBehaviour, waiting: str, now: float
) -> ContainerRun:
    if status is None:
        return ContainerRun(ContainerWaiting(waiting))
    last = _recover_exit(status.last_state, now)
    state = status.state
    if state.running is not None:
        since = _timestamp_or(state.running.started_at, now)
        run_s = plan.nth_run(status.restart_count).run_s
        ends_at = None if run_s is None else since + run_s
        return ContainerRun(
            ContainerRunning(since, since + plan.ready_s, ends_at, status.ready), status.restart_count, last
        )
    end = _recover_exit(state, now)
    if end is not None:
        return ContainerRun(end, status.restart_count, last)
    if last is not None:  # it was waiting to be restarted: the wait is cut short
        return ContainerRun(ContainerWaiting("CrashLoopBackOff", now), status.restart_count, last)
    return ContainerRun(ContainerWaiting(waiting))


def _recover_exit(state: ContainerState, now: float) -> ContainerExited | None:
    end: ContainerStateTerminated | None = state.terminated
    if end is None:
        return None
    return ContainerExited(
        end.exit_code, end.reason, _timestamp_or(end.started_at, now), _timestamp_or(end.finished_at, now)
    )


def _timestamp_or(stamp: datetime | None, now: float) -> float:
    return now if stamp is None else stamp.timestamp()
