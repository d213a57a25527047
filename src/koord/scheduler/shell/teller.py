"""Report what happens to pods: events, conditions and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from koord.api.custom import RESERVATIONS
from koord.api.part import ObjectReference
from koord.api.protocol import A_RESERVATION_NAME
from koord.kube.recorder import Recorder
from koord.scheduler.framework.decision import Chosen, Decision, Unschedulable
from koord.scheduler.queue.entry import QueuedPod
from koord.scheduler.queue.scheduling import SchedulingQueue
from koord.scheduler.shell.announcer import Announcer
from koord.scheduler.shell.bond import Bond
from koord.scheduler.shell.meter import Meter
from koord.scheduler.shell.outcome import Failure
from koord.scheduler.shell.report import Report, Reporter
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.wire import Pod
from koord.telemetry.clock import Clock


class Teller:
    """Report attempts and bindings as events, pod conditions and metrics, and refresh the queue's view of failed pods.

    """
    def __init__(
        self,
        *,
        latest: Callable[[PodInfo], Pod | None],
        state: ClusterState,
        queue: SchedulingQueue,
        recorders: Mapping[str, Recorder],
        reporter: Reporter,
        announcer: Announcer,
        meter: Meter,
        clock: Clock,
    ) -> None:
        self._latest = latest
        self._state = state
        self._queue = queue
        self._recorders = recorders
        self._reporter = reporter
        self._announcer = announcer
        self._meter = meter
        self._clock = clock

    def refresh(self, queued: QueuedPod) -> bool:
        """Update the queue's pod to what the watch has shown; return False when nothing is left to schedule.

        Updates of a pod in its binding cycle were not given to the queue, because the binding decides what becomes of it.
        """
        pod = self._latest(queued.pod)
        if pod is None or pod.metadata.uid != queued.uid or pod.spec.node_name:
            return False
        self._queue.update(self._state.info(pod), self._clock.monotonic())
        return True

    def skipped(self, pod: PodInfo) -> None:
        self._event(pod, "Warning", "FailedScheduling", f"skip schedule deleting pod: {pod.key}", "Scheduling")

    def bound(self, bond: Bond) -> None:
        pod, queued = bond.pod, bond.queued
        self._reporter.drop(pod.uid)
        who = pod.annotations[A_RESERVATION_NAME] if pod.reserve else pod.key
        note = f"Successfully assigned {who} to {bond.node_name}"
        self._announcer.announce(lambda: self._event(pod, "Normal", "Scheduled", note, "Binding"))
        now = self._clock.monotonic()
        since = queued.first_attempt if queued.first_attempt is not None else queued.queued_at
        self._meter.bound(bond.profile.scheduler_name, now - bond.started, now - since, queued.attempts)

    def undone(self, bond: Bond, failure: Failure) -> None:
        took_s = self._clock.monotonic() - bond.started
        self._meter.undone(bond.profile.scheduler_name, "error" if failure.error else "unschedulable", took_s)

    def failed(self, pod: PodInfo, failure: Failure) -> None:
        self._event(pod, "Warning", "FailedScheduling", failure.message, "Scheduling")
        self._reporter.report(
            Report(
                namespace=pod.namespace,
                name=pod.name,
                uid=pod.uid,
                reason=failure.reason,
                message=failure.message,
                nominate=failure.nominate,
            )
        )

    def unpromised(self, pod: PodInfo) -> None:
        """Clear the nomination of a pod whose nominated resources went to a pod of higher priority."""
        if pod.reserve:
            return  # nothing shows its nomination
        self._reporter.report(Report(namespace=pod.namespace, name=pod.name, uid=pod.uid, nominate=""))

    def decided(self, pod: PodInfo, decision: Decision, took_s: float) -> None:
        if isinstance(decision, Chosen):
            self._meter.decided(pod.scheduler, "scheduled", took_s)
            self._meter.found(self._state.node_count, decision.feasible)
        elif isinstance(decision, Unschedulable):
            self._meter.decided(pod.scheduler, "unschedulable", took_s)
            self._meter.preempted(len(decision.preempt.victims) if decision.preempt is not None else 0)
        else:
            self._meter.decided(pod.scheduler, "error", took_s)

    def _event(self, pod: PodInfo, kind: str, reason: str, note: str, action: str) -> None:
        about = about_pod(pod)
        self._recorders[pod.scheduler].record(
            about, "Normal" if kind == "Normal" else "Warning", reason, note, action=action
        )


def about_pod(pod: PodInfo) -> ObjectReference:
    """Return the object that an event is about: the pod, or the Reservation of a reserve pod."""
    if pod.reserve:
        return ObjectReference(
            api_version=RESERVATIONS.api_version,
            kind=RESERVATIONS.kind,
            name=pod.annotations[A_RESERVATION_NAME],
            uid=pod.uid,
            resource_version=pod.revision,
        )
    return ObjectReference(
        api_version="v1",
        kind="Pod",
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        resource_version=pod.revision,
    )
