"""DefaultEvictor: the filter of pods that may be evicted at once, and the evictor through the Eviction API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from koord.api.config.descheduler.plugin_args import DeschedulerPluginArgs, PriorityThreshold
from koord.api.kubernetes.builtin_kinds import (
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    PRIORITY_CLASSES,
)
from koord.api.kubernetes.meta import LabelSelector
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.resource import Resource
from koord.api.model import Model
from koord.api.schema_markers import Duration
from koord.descheduler.framework.plugin import DeschedulerPlugin, EvictionProposal, RoundState
from koord.descheduler.framework.pod_selection import build_selector
from koord.descheduler.framework.snapshot import ClusterSnapshot, OtherNodeFitChecker
from koord.descheduler.migration.plugin import EVICT_ANNOTATION, SYSTEM_CRITICAL_PRIORITY, unevictable_reason
from koord.descheduler.plugins.kube.plugin_args import plugin_factory, selector_errors
from koord.values import duration
from koord.values.selector import EVERYTHING, Selector, SelectorError

PREFER_NO_EVICTION = "descheduler.alpha.kubernetes.io/prefer-no-eviction"
MANDATORY, PREFERRED = "Mandatory", "Preferred"
EXTRA_PROTECTIONS = ("PodsWithPVC", "PodsWithoutPDB", "PodsWithResourceClaims")
DEFAULT_PROTECTIONS = ("PodsWithLocalStorage", "DaemonSetPods", "SystemCriticalPods", "FailedBarePods")


class PodProtections(Model, frozen=True, kw_only=True):
    extra_enabled: tuple[str, ...] = ()
    default_disabled: tuple[str, ...] = ()
    config: dict[str, Any] | None = None


class DefaultEvictorArgs(DeschedulerPluginArgs, frozen=True, kw_only=True):
    node_selector: str = ""
    label_selector: LabelSelector | None = None
    namespace_label_selector: LabelSelector | None = None
    priority_threshold: PriorityThreshold | None = None
    node_fit: bool = False
    min_replicas: int = 0
    min_pod_age: Duration | None = None
    no_eviction_policy: str = ""
    pod_protections: PodProtections | None = None
    evict_local_storage_pods: bool = False
    evict_daemon_set_pods: bool = False
    evict_system_critical_pods: bool = False
    ignore_pvc_pods: bool = False
    ignore_pods_without_pdb: bool = False
    evict_failed_bare_pods: bool = False

    @property
    def deprecated(self) -> bool:
        return any(
            (
                self.evict_local_storage_pods,
                self.evict_daemon_set_pods,
                self.evict_system_critical_pods,
                self.ignore_pvc_pods,
                self.ignore_pods_without_pdb,
                self.evict_failed_bare_pods,
            )
        )


class DefaultEvictor(DeschedulerPlugin):
    name: ClassVar[str] = "DefaultEvictor"
    extra_resources: ClassVar[tuple[Resource[Any], ...]] = (
        POD_DISRUPTION_BUDGETS,
        PERSISTENT_VOLUME_CLAIMS,
        PRIORITY_CLASSES,
        NAMESPACES,
    )

    def __init__(self, args: DefaultEvictorArgs) -> None:
        self._args = args
        given = args.pod_protections or PodProtections()
        off, extra = frozenset(given.default_disabled), frozenset(given.extra_enabled)
        self._protect_local_storage = not (args.evict_local_storage_pods or DEFAULT_PROTECTIONS[0] in off)
        self._protect_daemon_sets = not (args.evict_daemon_set_pods or DEFAULT_PROTECTIONS[1] in off)
        self._protect_system_critical = not (args.evict_system_critical_pods or DEFAULT_PROTECTIONS[2] in off)
        self._protect_bare_pods = not (args.evict_failed_bare_pods or DEFAULT_PROTECTIONS[3] in off)
        self._protect_pvc = args.ignore_pvc_pods or EXTRA_PROTECTIONS[0] in extra
        self._protect_without_pdb = args.ignore_pods_without_pdb or EXTRA_PROTECTIONS[1] in extra
        self._protect_resource_claims = EXTRA_PROTECTIONS[2] in extra
        self._protected_storage_classes = frozenset(_storage_classes(given))
        self._labels = build_selector(args.label_selector)
        self._nodes = Selector.parse(args.node_selector) if args.node_selector else EVERYTHING
        self._namespaces = build_selector(args.namespace_label_selector)
        self._last_index: _SnapshotIndex | None = None
        self._min_pod_age_s = duration.parse_seconds(args.min_pod_age) if args.min_pod_age else 0.0

    def filter(self, pod: Pod, round_state: RoundState) -> str | None:
        meta = pod.metadata
        if EVICT_ANNOTATION in meta.annotations:
            return None
        if self._args.no_eviction_policy == MANDATORY and PREFER_NO_EVICTION in meta.annotations:
            return "it prefers not to be evicted"
        return (
            unevictable_reason(pod)
            or self._check_kind(pod, round_state.snapshot)
            or self._check_volumes(pod, round_state.snapshot)
            or self._check_owner(pod, round_state.snapshot)
        )

    def pre_eviction_filter(self, pod: Pod, round_state: RoundState) -> str | None:
        snapshot = round_state.snapshot
        if self._args.node_fit and not self._index(snapshot).other_node_fit.fits(pod):
            return "it fits no other node"
        wanted = self._namespaces
        if wanted is None or not wanted.requirements:
            return None
        labels = self._index(snapshot).namespace_labels.get(pod.metadata.namespace, {})
        return None if wanted.matches(labels) else "pod's namespace does not match the namespace label selector"

    def _index(self, snapshot: ClusterSnapshot) -> _SnapshotIndex:
        if self._last_index is None or self._last_index.snapshot is not snapshot:
            self._last_index = _SnapshotIndex(snapshot, self._nodes)
        return self._last_index

    def evict(self, proposal: EvictionProposal, round_state: RoundState) -> str | None:
        uid = proposal.pod.metadata.uid
        taken = any(other.pod.metadata.uid == uid for other in round_state.proposed)
        return "it is on its way out already" if taken else None

    def _check_kind(self, pod: Pod, snapshot: ClusterSnapshot) -> str | None:
        priority, owners = pod.spec.priority or 0, pod.metadata.owner_references
        if self._protect_system_critical:
            if priority >= SYSTEM_CRITICAL_PRIORITY:
                return "it is critical to the system"
            threshold = self._priority_threshold(snapshot)
            if threshold is not None and priority >= threshold:
                return f"its priority {priority} is not below the threshold {threshold}"
        if not owners and self._protect_bare_pods:
            return "it has no owner"
        if not owners and pod.status.phase != "Failed":
            return "it has no owner and has not failed"
        if self._protect_daemon_sets and any(owner.kind == "DaemonSet" for owner in owners):
            return "it belongs to a DaemonSet"
        return None

    def _priority_threshold(self, snapshot: ClusterSnapshot) -> int | None:
        given = self._args.priority_threshold
        if given is None:
            return None
        if given.value is not None:
            return given.value
        classes = snapshot.others.get(PRIORITY_CLASSES.plural, ())
        return next((c.value for c in classes if c.metadata.name == given.name), SYSTEM_CRITICAL_PRIORITY)

    def _check_volumes(self, pod: Pod, snapshot: ClusterSnapshot) -> str | None:
        volumes = pod.spec.volumes
        if self._protect_local_storage and any(v.host_path is not None or v.empty_dir is not None for v in volumes):
            return "it has local storage"
        claims = [v.persistent_volume_claim.claim_name for v in volumes if v.persistent_volume_claim is not None]
        if self._protect_pvc and claims and self._is_claim_protected(pod, claims, snapshot):
            return "it has persistent volume claims"
        if self._protect_resource_claims and pod.spec.resource_claims:
            return "it has resource claims"
        return None

    def _is_claim_protected(self, pod: Pod, claims: list[str], snapshot: ClusterSnapshot) -> bool:
        """Return whether a claim is of a protected storage class; an unknown class protects as well."""
        if not self._protected_storage_classes:
            return True
        held = self._index(snapshot).storage_classes
        found = [held.get((pod.metadata.namespace, name)) for name in claims]
        return any(name is None or name in self._protected_storage_classes for name in found)

    def _check_owner(self, pod: Pod, snapshot: ClusterSnapshot) -> str | None:
        if self._protect_without_pdb and not self._index(snapshot).has_disruption_budget(pod):
            return "no PodDisruptionBudget covers it"
        if self._labels is not None and not self._labels.matches(pod.metadata.labels):
            return "its labels are not selected"
        owners = pod.metadata.owner_references
        if self._args.min_replicas > 1 and len(owners) == 1:
            peers = len(snapshot.by_owner.get(owners[0].uid, ()))
            if peers < self._args.min_replicas:
                return f"its owner has {peers} pods, fewer than {self._args.min_replicas}"
        if self._min_pod_age_s and (
            pod.status.start_time is None or snapshot.now_s - pod.status.start_time.timestamp() < self._min_pod_age_s
        ):
            return f"it is younger than {self._args.min_pod_age}"
        return None


class _SnapshotIndex:
    """Indexes over one snapshot, each built when it is first needed."""

    def __init__(self, snapshot: ClusterSnapshot, nodes: Selector) -> None:
        self.snapshot = snapshot
        self._nodes = nodes

    @cached_property
    def other_node_fit(self) -> OtherNodeFitChecker:
        return OtherNodeFitChecker(self.snapshot, self._nodes)

    @cached_property
    def namespace_labels(self) -> Mapping[str, Mapping[str, str]]:
        """Return the labels of the namespaces."""
        return {n.metadata.name: n.metadata.labels for n in self.snapshot.others.get(NAMESPACES.plural, ())}

    @cached_property
    def storage_classes(self) -> Mapping[tuple[str, str], str | None]:
        """Return the storage class by claim."""
        claims = self.snapshot.others.get(PERSISTENT_VOLUME_CLAIMS.plural, ())
        return {(c.metadata.namespace, c.metadata.name): c.spec.storage_class_name for c in claims}

    @cached_property
    def _budgets(self) -> Mapping[str, Sequence[Selector]]:
        found: dict[str, list[Selector]] = {}
        for budget in self.snapshot.others.get(POD_DISRUPTION_BUDGETS.plural, ()):
            selector = build_selector(budget.spec.selector)
            if selector is not None:
                found.setdefault(budget.metadata.namespace, []).append(selector)
        return found

    def has_disruption_budget(self, pod: Pod) -> bool:
        return any(s.matches(pod.metadata.labels) for s in self._budgets.get(pod.metadata.namespace, ()))


def _storage_classes(given: PodProtections) -> list[str]:
    """Return the protected storage classes, from a key in Kubernetes' capitals that no model has."""
    config = (given.config or {}).get("PodsWithPVC") or {}
    return [entry.get("name", "") for entry in config.get("protectedStorageClasses") or ()]


def _default_evictor_errors(args: DefaultEvictorArgs) -> list[str]:
    errors = selector_errors(args.label_selector) + selector_errors(args.namespace_label_selector)
    try:
        Selector.parse(args.node_selector)
    except SelectorError as error:
        errors.append(f"nodeSelector: {error}")
    if args.min_replicas == 1:
        errors.append("minReplicas must be at least 2 to be effective")
    if args.no_eviction_policy not in ("", MANDATORY, PREFERRED):
        errors.append(f"noEvictionPolicy {args.no_eviction_policy!r} must be {PREFERRED} or {MANDATORY}")
    threshold = args.priority_threshold
    if threshold is not None and threshold.value is not None and threshold.name:
        errors.append("only one of priorityThreshold's name and value can be set")
    given = args.pod_protections
    if given is not None:
        errors += [
            f"unknown protection {p!r} in extraEnabled; known are {', '.join(EXTRA_PROTECTIONS)}"
            for p in given.extra_enabled
            if p not in EXTRA_PROTECTIONS
        ]
        errors += [
            f"unknown protection {p!r} in defaultDisabled; known are {', '.join(DEFAULT_PROTECTIONS)}"
            for p in given.default_disabled
            if p not in DEFAULT_PROTECTIONS
        ]
        if args.deprecated:
            errors.append("podProtections cannot be mixed with the deprecated fields that it replaces")
    return errors


build_default_evictor = plugin_factory(DefaultEvictor, DefaultEvictorArgs, _default_evictor_errors)
