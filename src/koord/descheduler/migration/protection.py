"""Protection from migration: why a pod must not be moved at all, by its kind and by the configured exclusions."""

from __future__ import annotations

from koord.api.annotations.eviction_cost import NEVER, or_zero
from koord.api.config.descheduler.migration import MigrationControllerArgs
from koord.descheduler.migration.scaling import at_most
from koord.descheduler.plugins.choice import Choice, selector_of
from koord.descheduler.snapshot import Snapshot, Workload
from koord.descheduler.wire import Pod

EVICT = "descheduler.alpha.kubernetes.io/evict"  # on a pod: it may go, whatever is said below
MIRROR = "kubernetes.io/config.mirror"
SOURCE = "kubernetes.io/config.source"
SYSTEM_CRITICAL = 2_000_000_000


def controller_uid(pod: Pod) -> str:
    """Return the uid of the owner that controls the pod; empty without one."""
    return next((owner.uid for owner in pod.metadata.owner_references if owner.controller), "")


def is_bare(pod: Pod) -> bool:
    return not pod.metadata.owner_references


class Protection:
    """Decides which pods must never be moved (upstream's non-retryable filter). The arguments may skip single
    checks.
    """

    def __init__(self, args: MigrationControllerArgs) -> None:
        self._args = args
        self._skips = frozenset(args.skip_eviction_gates)
        self._choice = Choice(args.namespaces)
        self._labels = selector_of(args.label_selector)

    def refuses(self, pod: Pod, snapshot: Snapshot) -> str | None:
        """Return the first reason against moving the pod; None when it may be moved."""
        if EVICT in pod.metadata.annotations:
            return None
        if "Namespaces" not in self._skips and not self._choice.takes_namespace(pod.metadata.namespace):
            return "its namespace is excluded"
        if or_zero(pod.metadata.annotations) == NEVER:
            return "its eviction cost forbids it"
        return (
            self._kind(pod)
            or self._priority(pod)
            or self._storage(pod)
            or self._selected(pod)
            or self._alone(pod, snapshot)
        )

    def _kind(self, pod: Pod) -> str | None:
        meta, args = pod.metadata, self._args
        if any(owner.kind == "DaemonSet" for owner in meta.owner_references):
            return "it belongs to a DaemonSet"
        if MIRROR in meta.annotations:
            return "it is a mirror pod"
        if meta.annotations.get(SOURCE, "api") != "api":
            return "it is a static pod"
        if meta.deletion_timestamp is not None:
            return "it is terminating"
        if is_bare(pod) and not (args.evict_all_bare_pods or "BarePods" in self._skips):
            if not args.evict_failed_bare_pods:
                return "nothing would create it again: it has no owner"
            if pod.status.phase != "Failed":
                return "it has no owner and has not failed"
        return None

    def _priority(self, pod: Pod) -> str | None:
        if self._args.evict_system_critical_pods or "SystemCritical" in self._skips:
            return None
        priority = pod.spec.priority or 0
        if priority >= SYSTEM_CRITICAL:
            return "it is critical to the system"
        threshold = self._args.priority_threshold
        limit = threshold.value if threshold is not None else None
        if limit is not None and "PriorityThreshold" not in self._skips and priority >= limit:
            return f"its priority {priority} is not below the threshold {limit}"
        return None

    def _storage(self, pod: Pod) -> str | None:
        volumes = pod.spec.volumes
        local = any(v.host_path is not None or v.empty_dir is not None for v in volumes)
        if local and not (self._args.evict_local_storage_pods or "LocalStorage" in self._skips):
            return "it has local storage"
        claims = any(v.persistent_volume_claim is not None for v in volumes)
        if claims and self._args.ignore_pvc_pods and "PVC" not in self._skips:
            return "it has persistent volume claims"
        return None

    def _selected(self, pod: Pod) -> str | None:
        if self._labels is None or "LabelSelector" in self._skips or self._labels.matches(pod.metadata.labels):
            return None
        return "its labels are not selected"

    def _alone(self, pod: Pod, snapshot: Snapshot) -> str | None:
        """Protect a workload whose replicas might all be unavailable at once."""
        owner = controller_uid(pod)
        if not owner or self._args.skip_check_expected_replicas or "ExpectedReplicas" in self._skips:
            return None
        workload = snapshot.workloads.get(owner)
        replicas = workload.replicas if workload is not None else 0
        migrating = at_most(replicas, self._args.max_migrating_per_workload)
        unavailable = at_most(replicas, self._args.max_unavailable_per_workload)
        if replicas == 1 or replicas in (migrating, unavailable):
            name = f"{workload.kind} {workload.name}" if workload is not None else "its workload, which was not found,"
            return f"{name} has {replicas} replicas, of which {max(migrating, unavailable)} may be away at once"
        return None


def workload_of(pod: Pod, snapshot: Snapshot) -> Workload | None:
    owner = controller_uid(pod)
    return snapshot.workloads.get(owner) if owner else None
