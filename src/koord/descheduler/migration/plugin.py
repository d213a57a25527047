"""MigrationController as a plugin: the evictor that turns evictions into PodMigrationJobs, and its filter rules.

They decide why a pod must not be moved: by its kind and by the configured exclusions, by how many are in
flight, and by the rates per workload and namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import msgspec

from koord.api.annotations.pod_codecs import NEVER_EVICT_COST, eviction_cost_or_zero
from koord.api.config.descheduler.plugin_args import (
    LIMITER_NAMESPACE,
    LIMITER_WORKLOAD,
    MigrationControllerArgs,
    ObjectLimiter,
)
from koord.api.koordinator.scheduling import RESERVATION_FIRST, PodMigrationJob
from koord.api.kubernetes.pod import Pod
from koord.api.model import IntOrString
from koord.descheduler.framework.plugin import DeschedulerPlugin, EvictionProposal, RoundState
from koord.descheduler.framework.pod_selection import PodFilter, build_selector
from koord.descheduler.framework.snapshot import ClusterSnapshot, OtherNodeFitChecker, Workload
from koord.descheduler.migration.job import is_active, pod_of_job
from koord.values import duration
from koord.values.selector import EVERYTHING, Selector
from koord.values.token_bucket import TokenBucket


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


class InFlightMigration(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One pod that is to leave its node. Of a pod that no longer exists only name and uid are known."""

    namespace: str
    name: str
    uid: str = ""
    node: str = ""
    owner: str = ""  # the uid of its controller


def migration_of_job(job: PodMigrationJob, snapshot: ClusterSnapshot) -> InFlightMigration | None:
    ref, pod = job.spec.pod_ref, pod_of_job(job, snapshot)
    if pod is not None:
        return migration_of_pod(pod)
    return None if ref is None else InFlightMigration(namespace=ref.namespace, name=ref.name, uid=ref.uid)


def migration_of_pod(pod: Pod) -> InFlightMigration:
    meta = pod.metadata
    return InFlightMigration(
        namespace=meta.namespace, name=meta.name, uid=meta.uid, node=pod.spec.node_name, owner=controller_uid(pod)
    )


class InFlightMigrations:
    """The migrations in flight, counted by namespace, node and owner as they are added, so that lookups are cheap."""

    def __init__(self, in_flight: Iterable[InFlightMigration] = ()) -> None:
        self._all: set[InFlightMigration] = set()
        self._names: set[tuple[str, str]] = set()
        self._in_namespace: dict[str, set[InFlightMigration]] = {}
        self._on_node: dict[str, set[InFlightMigration]] = {}
        self._of_owner: dict[str, set[InFlightMigration]] = {}
        for migration in in_flight:
            self.add(migration)

    def add(self, migration: InFlightMigration) -> None:
        self._all.add(migration)
        self._names.add((migration.namespace, migration.name))
        self._in_namespace.setdefault(migration.namespace, set()).add(migration)
        if migration.node:
            self._on_node.setdefault(migration.node, set()).add(migration)
        if migration.owner:
            self._of_owner.setdefault(migration.owner, set()).add(migration)

    def has_pod_named(self, namespace: str, name: str) -> bool:
        """Return whether a pod of this name is in flight, whatever its uid: the successor may have the same name."""
        return (namespace, name) in self._names

    # A pod's own moves never count against it.

    def others(self, own: InFlightMigration) -> int:
        return len(self._all) - (own in self._all)

    def others_in_namespace(self, own: InFlightMigration) -> int:
        return _count_others(self._in_namespace.get(own.namespace), own)

    def others_on_node(self, own: InFlightMigration) -> int:
        return _count_others(self._on_node.get(own.node), own)

    def pod_uids_of_owners(self, owners: Iterable[str]) -> set[str]:
        """Return the uids of the in-flight pods that these owners control."""
        return {migration.uid for owner in owners for migration in self._of_owner.get(owner, ())}


def _count_others(in_flight: set[InFlightMigration] | None, own: InFlightMigration) -> int:
    return 0 if in_flight is None else len(in_flight) - (own in in_flight)


class MigrationBudget:
    """Limits concurrent migrations globally, per node, namespace and workload (upstream's retryable filter)."""

    def __init__(self, args: MigrationControllerArgs) -> None:
        self._args = args
        self._skipped_gates = frozenset(args.skip_eviction_gates)

    def rejection_reason(self, pod: Pod, snapshot: ClusterSnapshot, in_flight: InFlightMigrations) -> str | None:
        if EVICT_ANNOTATION in pod.metadata.annotations:
            return None
        own = migration_of_pod(pod)
        return (
            self._check_global(own, in_flight)
            or self._check_node(own, in_flight)
            or self._check_namespace(own, in_flight)
            or self._check_workload(own, snapshot, in_flight)
        )

    def _limit(self, gate: str, given: int | None) -> int:
        """Return the limit of a gate; 0 is no limit."""
        return 0 if gate in self._skipped_gates else max(given or 0, 0)

    def _check_global(self, own: InFlightMigration, in_flight: InFlightMigrations) -> str | None:
        limit = self._limit("MaxMigratingGlobally", self._args.max_migrating_globally)
        others = in_flight.others(own)
        return f"{others} pods are migrating, and {limit} may" if limit and others >= limit else None

    def _check_node(self, own: InFlightMigration, in_flight: InFlightMigrations) -> str | None:
        limit = self._limit("MaxMigratingPerNode", self._args.max_migrating_per_node)
        others = in_flight.others_on_node(own) if own.node else 0
        return f"{others} pods of node {own.node} are migrating, and {limit} may" if limit and others >= limit else None

    def _check_namespace(self, own: InFlightMigration, in_flight: InFlightMigrations) -> str | None:
        limit = self._limit("MaxMigratingPerNamespace", self._args.max_migrating_per_namespace)
        others = in_flight.others_in_namespace(own)
        if not limit or others < limit:
            return None
        return f"{others} pods of namespace {own.namespace} are migrating, and {limit} may"

    def _check_workload(
        self, own: InFlightMigration, snapshot: ClusterSnapshot, in_flight: InFlightMigrations
    ) -> str | None:
        if not own.owner:
            return None
        workload = snapshot.workloads.get(own.owner)
        if workload is None:
            return "the size of its workload is not known"
        moving = in_flight.pod_uids_of_owners(workload.controller_uids or (own.owner,)) - {own.uid}
        limit = max_disrupted_replicas(workload.replicas, self._args.max_migrating_per_workload)
        if "MaxMigratingPerWorkload" not in self._skipped_gates and moving and len(moving) >= limit:
            return f"{len(moving)} pods of {workload.kind} {workload.name} are migrating, and {limit} may"
        if "MaxUnavailablePerWorkload" in self._skipped_gates:
            return None
        limit = max_disrupted_replicas(workload.replicas, self._args.max_unavailable_per_workload)
        away = (moving | snapshot.unavailable_pod_uids(workload, own.owner)) - {own.uid}
        if away and len(away) >= limit:
            return f"{len(away)} pods of {workload.kind} {workload.name} are migrating or not ready, and {limit} may"
        return None


IDLE_PERIODS_KEPT = 1.5  # times the period: an idle bucket is full by then


class EvictionRateLimiter:
    """Limits the rate of evictions per workload and namespace. Time arrives with each call.

    A bucket exists from the first eviction on; without a bucket nothing is limited.
    """

    def __init__(self, args: MigrationControllerArgs) -> None:
        self._per_workload = args.max_migrating_per_workload
        self._limits: Mapping[str, tuple[ObjectLimiter, float]] = {
            kind: (limiter, period)
            for kind, limiter in args.object_limiters.items()
            if (period := duration.parse_seconds(limiter.duration or "0s")) > 0
        }
        self._buckets: dict[tuple[str, str], TokenBucket] = {}

    def rejection_reason(self, pod: Pod, now_s: float) -> str | None:
        for kind, key in _bucket_keys(pod):
            bucket = self._buckets.get((kind, key))
            if bucket is not None and kind in self._limits and bucket.tokens(now_s) < 1:
                return f"another pod of its {kind} was evicted a moment ago"
        return None

    def record_eviction(self, pod: Pod, workload: Workload | None, now_s: float) -> None:
        self._drop_idle_buckets(now_s)
        for kind, key in _bucket_keys(pod):
            if kind not in self._limits:
                continue
            limiter, period_s = self._limits[kind]
            max_migrating = self._max_migrating(kind, limiter.max_migrating, workload)
            if max_migrating <= 0:
                continue
            bucket = self._buckets.get((kind, key))
            if bucket is None:
                bucket = self._buckets[kind, key] = TokenBucket(max_migrating / period_s, limiter.burst or 1, now_s)
            bucket.reserve(now_s)

    def _max_migrating(self, kind: str, given: IntOrString | None, workload: Workload | None) -> int:
        if kind == LIMITER_NAMESPACE:
            return given if isinstance(given, int) else 0  # a share of nothing in particular
        return (
            max_disrupted_replicas(workload.replicas, given if given is not None else self._per_workload)
            if workload
            else 0
        )

    def _drop_idle_buckets(self, now_s: float) -> None:
        gone = [
            key
            for key, bucket in self._buckets.items()
            if key[0] not in self._limits or bucket.idle_s(now_s) > IDLE_PERIODS_KEPT * self._limits[key[0]][1]
        ]
        for key in gone:
            del self._buckets[key]


def _bucket_keys(pod: Pod) -> list[tuple[str, str]]:
    owner = controller_uid(pod)
    return [*([(LIMITER_WORKLOAD, owner)] if owner else []), (LIMITER_NAMESPACE, pod.metadata.namespace)]


class MigrationControllerPlugin(DeschedulerPlugin):
    name: ClassVar[str] = "MigrationController"

    def __init__(self, args: MigrationControllerArgs) -> None:
        """Take defaulted and validated arguments."""
        self.args = args
        self.protection = MigrationProtection(args)
        self.budget = MigrationBudget(args)
        self.limiter = EvictionRateLimiter(args)
        self._nodes = Selector.parse(args.node_selector) if args.node_selector else EVERYTHING
        self._round_migrations: _RoundMigrations | None = None
        self._other_node_fit: OtherNodeFitChecker | None = None

    def filter(self, pod: Pod, round_state: RoundState) -> str | None:
        meta, args = pod.metadata, self.args
        seen = self._current_migrations(round_state)
        if seen.in_flight.has_pod_named(meta.namespace, meta.name):
            return "it is being migrated already"
        if meta.uid in seen.arrived_uids:
            return "it has just arrived from another node"
        if args.default_job_mode == RESERVATION_FIRST and pod.spec.scheduler_name not in args.scheduler_names:
            return f"its scheduler {pod.spec.scheduler_name!r} knows no reservations"
        snapshot = round_state.snapshot
        if (
            meta.uid not in seen.protection_reasons
        ):  # asked of every candidate several times, and it does not change in a round
            seen.protection_reasons[meta.uid] = self.protection.rejection_reason(pod, snapshot)
        return seen.protection_reasons[meta.uid] or self.budget.rejection_reason(pod, snapshot, seen.in_flight)

    def pre_eviction_filter(self, pod: Pod, round_state: RoundState) -> str | None:
        if not self.args.node_fit or "NodeFit" in self.args.skip_eviction_gates:
            return None
        if self._other_node_fit is None or self._other_node_fit.snapshot is not round_state.snapshot:
            self._other_node_fit = OtherNodeFitChecker(round_state.snapshot, self._nodes)
        return None if self._other_node_fit.fits(pod) else "it fits no other node"

    def evict(self, proposal: EvictionProposal, round_state: RoundState) -> str | None:
        pod = proposal.pod
        return self.filter(pod, round_state) or self.limiter.rejection_reason(pod, round_state.snapshot.now_s)

    def _current_migrations(self, round_state: RoundState) -> _RoundMigrations:
        if self._round_migrations is None or self._round_migrations.round_state is not round_state:
            self._round_migrations = _RoundMigrations(round_state)
        self._round_migrations.update()
        return self._round_migrations


class _RoundMigrations:
    """The migrations of one round so far: those of active jobs, and those that the round has proposed."""

    def __init__(self, round_state: RoundState) -> None:
        self.round_state = round_state
        snapshot = round_state.snapshot
        alive = [job for job in snapshot.jobs if is_active(job)]
        self.in_flight = InFlightMigrations(
            migration for job in alive if (migration := migration_of_job(job, snapshot)) is not None
        )
        self.arrived_uids = frozenset(job.status.pod_ref.uid for job in alive if job.status.pod_ref is not None)
        self.protection_reasons: dict[str, str | None] = {}  # by uid of the pod: why it must not be moved at all
        self._count = 0

    def update(self) -> None:
        for proposal in self.round_state.proposed[self._count :]:
            self.in_flight.add(migration_of_pod(proposal.pod))
        self._count = len(self.round_state.proposed)
