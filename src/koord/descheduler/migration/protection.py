"""Protection from migration: why a pod must not be moved at all, by its kind and by the configured exclusions."""

from __future__ import annotations

from koord.api.annotations.pod_codecs import NEVER_EVICT_COST, eviction_cost_or_zero
from koord.api.config.descheduler.migration_args import MigrationControllerArgs
from koord.api.kubernetes.pod import Pod
from koord.api.model import IntOrString
from koord.descheduler.framework.pod_selection import PodFilter, build_selector
from koord.descheduler.framework.snapshot import ClusterSnapshot


def max_disrupted_replicas(replicas: int, given: IntOrString | None) -> int:
    """Return how many replicas may be migrating or unavailable at a time.

    A percentage is rounded down; without a value the workload's size decides. At least one, at most all replicas.
    """
    if given is None:
        wanted = replicas // 10 if replicas > 10 else 2 if replicas >= 4 else 1
    elif isinstance(given, int):
        wanted = given
    else:
        wanted = replicas * int(given.removesuffix("%")) // 100
    return min(max(wanted, 1), replicas)


EVICT_ANNOTATION = "descheduler.alpha.kubernetes.io/evict"  # on a pod: it may go, whatever is said below
MIRROR_POD_ANNOTATION = "kubernetes.io/config.mirror"
CONFIG_SOURCE_ANNOTATION = "kubernetes.io/config.source"
SYSTEM_CRITICAL_PRIORITY = 2_000_000_000


def controller_uid(pod: Pod) -> str:
    """Return the uid of the owner that controls the pod; empty without one."""
    return next((owner.uid for owner in pod.metadata.owner_references if owner.controller), "")


def unevictable_reason(pod: Pod) -> str | None:
    """Return why nobody can evict the pod: its kubelet would start it again at once, or it is on its way out."""
    if MIRROR_POD_ANNOTATION in pod.metadata.annotations:
        return "it is a mirror pod"
    if pod.metadata.annotations.get(CONFIG_SOURCE_ANNOTATION, "api") != "api":
        return "it is a static pod"
    return "it is terminating" if pod.metadata.deletion_timestamp is not None else None


class MigrationProtection:
    """Decides which pods must never be moved (upstream's non-retryable filter). Arguments may skip single checks."""

    def __init__(self, args: MigrationControllerArgs) -> None:
        self._args = args
        self._skipped_gates = frozenset(args.skip_eviction_gates)
        self._pod_filter = PodFilter(args.namespaces)
        self._label_selector = build_selector(args.label_selector)

    def rejection_reason(self, pod: Pod, snapshot: ClusterSnapshot) -> str | None:
        """Return the first reason against moving the pod; None when it may be moved."""
        if EVICT_ANNOTATION in pod.metadata.annotations:
            return None
        if "Namespaces" not in self._skipped_gates and not self._pod_filter.matches_namespace(pod.metadata.namespace):
            return "its namespace is excluded"
        if eviction_cost_or_zero(pod.metadata.annotations) == NEVER_EVICT_COST:
            return "its eviction cost forbids it"
        return (
            self._check_kind(pod)
            or self._check_priority(pod)
            or self._check_storage(pod)
            or self._check_labels(pod)
            or self._check_replicas(pod, snapshot)
        )

    def _check_kind(self, pod: Pod) -> str | None:
        meta, args = pod.metadata, self._args
        if any(owner.kind == "DaemonSet" for owner in meta.owner_references):
            return "it belongs to a DaemonSet"
        if (why := unevictable_reason(pod)) is not None:
            return why
        if not meta.owner_references and not (args.evict_all_bare_pods or "BarePods" in self._skipped_gates):
            if not args.evict_failed_bare_pods:
                return "nothing would create it again: it has no owner"
            if pod.status.phase != "Failed":
                return "it has no owner and has not failed"
        return None

    def _check_priority(self, pod: Pod) -> str | None:
        if self._args.evict_system_critical_pods or "SystemCritical" in self._skipped_gates:
            return None
        priority = pod.spec.priority or 0
        if priority >= SYSTEM_CRITICAL_PRIORITY:
            return "it is critical to the system"
        threshold = self._args.priority_threshold
        limit = threshold.value if threshold is not None else None
        if limit is not None and "PriorityThreshold" not in self._skipped_gates and priority >= limit:
            return f"its priority {priority} is not below the threshold {limit}"
        return None

    def _check_storage(self, pod: Pod) -> str | None:
        volumes = pod.spec.volumes
        local = any(v.host_path is not None or v.empty_dir is not None for v in volumes)
        if local and not (self._args.evict_local_storage_pods or "LocalStorage" in self._skipped_gates):
            return "it has local storage"
        claims = any(v.persistent_volume_claim is not None for v in volumes)
        if claims and self._args.ignore_pvc_pods and "PVC" not in self._skipped_gates:
            return "it has persistent volume claims"
        return None

    def _check_labels(self, pod: Pod) -> str | None:
        if (
            self._label_selector is None
            or "LabelSelector" in self._skipped_gates
            or self._label_selector.matches(pod.metadata.labels)
        ):
            return None
        return "its labels are not selected"

    def _check_replicas(self, pod: Pod, snapshot: ClusterSnapshot) -> str | None:
        """Protect a workload whose replicas might all be unavailable at once."""
        owner = controller_uid(pod)
        if not owner or self._args.skip_check_expected_replicas or "ExpectedReplicas" in self._skipped_gates:
            return None
        workload = snapshot.workloads.get(owner)
        replicas = workload.replicas if workload is not None else 0
        migrating = max_disrupted_replicas(replicas, self._args.max_migrating_per_workload)
        unavailable = max_disrupted_replicas(replicas, self._args.max_unavailable_per_workload)
        if replicas == 1 or replicas in (migrating, unavailable):
            name = f"{workload.kind} {workload.name}" if workload is not None else "its workload, which was not found,"
            count = "1 replica" if replicas == 1 else f"{replicas} replicas"
            return f"{name} has {count}, of which {max(migrating, unavailable)} may be away at once"
        return None
