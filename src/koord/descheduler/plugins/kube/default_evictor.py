"""DefaultEvictor: the filter of pods that may be evicted at once, and the evictor through the Eviction API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from koord.api.builtin import (
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    PRIORITY_CLASSES,
)
from koord.api.config.descheduler.args import PluginArgs
from koord.api.config.descheduler.migration import PriorityThreshold
from koord.api.marker import Duration
from koord.api.meta import LabelSelector
from koord.api.model import Model
from koord.api.resource import Resource
from koord.descheduler.framework.effect import Evict
from koord.descheduler.framework.plugin import Plugin
from koord.descheduler.framework.round import Sight
from koord.descheduler.migration.protection import EVICT, MIRROR, SOURCE, SYSTEM_CRITICAL
from koord.descheduler.plugins.choice import selector_of
from koord.descheduler.plugins.kube.args import read, selector_error
from koord.descheduler.plugins.node_fit import Elsewhere
from koord.descheduler.snapshot import Snapshot
from koord.descheduler.wire import Pod
from koord.values import duration
from koord.values.selector import EVERYTHING, Selector, SelectorError

PREFER_NO_EVICTION = "descheduler.alpha.kubernetes.io/prefer-no-eviction"
MANDATORY, PREFERRED = "Mandatory", "Preferred"
EXTRA = ("PodsWithPVC", "PodsWithoutPDB", "PodsWithResourceClaims")
DEFAULT = ("PodsWithLocalStorage", "DaemonSetPods", "SystemCriticalPods", "FailedBarePods")


class Protections(Model, frozen=True, kw_only=True):
    extra_enabled: tuple[str, ...] = ()
    default_disabled: tuple[str, ...] = ()
    config: dict[str, Any] | None = None


class Args(PluginArgs, frozen=True, kw_only=True):
    node_selector: str = ""
    label_selector: LabelSelector | None = None
    namespace_label_selector: LabelSelector | None = None
    priority_threshold: PriorityThreshold | None = None
    node_fit: bool = False
    min_replicas: int = 0
    min_pod_age: Duration | None = None
    no_eviction_policy: str = ""
    pod_protections: Protections | None = None
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


class DefaultEvictor(Plugin):
    name: ClassVar[str] = "DefaultEvictor"
    reads: ClassVar[tuple[Resource[Any], ...]] = (
        POD_DISRUPTION_BUDGETS,
        PERSISTENT_VOLUME_CLAIMS,
        PRIORITY_CLASSES,
        NAMESPACES,
    )

    def __init__(self, args: Args) -> None:
        self._args = args
        given = args.pod_protections or Protections()
        off, extra = frozenset(given.default_disabled), frozenset(given.extra_enabled)
        self._local = not (args.evict_local_storage_pods or DEFAULT[0] in off)
        self._daemons = not (args.evict_daemon_set_pods or DEFAULT[1] in off)
        self._critical = not (args.evict_system_critical_pods or DEFAULT[2] in off)
        self._bare = not (args.evict_failed_bare_pods or DEFAULT[3] in off)
        self._claims = args.ignore_pvc_pods or EXTRA[0] in extra
        self._unbudgeted = args.ignore_pods_without_pdb or EXTRA[1] in extra
        self._resource_claims = EXTRA[2] in extra
        self._classes = frozenset(_storage_classes(given))
        self._labels = selector_of(args.label_selector)
        self._nodes = Selector.parse(args.node_selector) if args.node_selector else EVERYTHING
        self._namespaces = selector_of(args.namespace_label_selector)
        self._last: _Seen | None = None
        self._least_age_s = duration.parse_seconds(args.min_pod_age) if args.min_pod_age else 0.0

    def refuses(self, pod: Pod, sight: Sight) -> str | None:
        meta = pod.metadata
        if EVICT in meta.annotations:
            return None
        if self._args.no_eviction_policy == MANDATORY and PREFER_NO_EVICTION in meta.annotations:
            return "it prefers not to be evicted"
        if MIRROR in meta.annotations:
            return "it is a mirror pod"
        if meta.annotations.get(SOURCE, "api") != "api":
            return "it is a static pod"
        if meta.deletion_timestamp is not None:
            return "it is terminating"
        return (
            self._what_it_is(pod, sight.snapshot)
            or self._what_it_holds(pod, sight.snapshot)
            or self._whose(pod, sight.snapshot)
        )

    def refuses_now(self, pod: Pod, sight: Sight) -> str | None:
        snapshot = sight.snapshot
        if self._args.node_fit and not self._seen(snapshot).elsewhere.fits(pod):
            return "it fits no other node"
        wanted = self._namespaces
        if wanted is None or not wanted.requirements:
            return None
        labels = self._seen(snapshot).namespaces.get(pod.metadata.namespace, {})
        return None if wanted.matches(labels) else "pod's namespace does not match the namespace label selector"

    def _seen(self, snapshot: Snapshot) -> _Seen:
        if self._last is None or self._last.snapshot is not snapshot:
            self._last = _Seen(snapshot, self._nodes)
        return self._last

    def evicts(self, proposal: Evict, sight: Sight) -> str | None:
        uid = proposal.pod.metadata.uid
        taken = any(other.pod.metadata.uid == uid for other in sight.proposed)
        return "it is on its way out already" if taken else None

    def _what_it_is(self, pod: Pod, snapshot: Snapshot) -> str | None:
        priority, owners = pod.spec.priority or 0, pod.metadata.owner_references
        if self._critical:
            if priority >= SYSTEM_CRITICAL:
                return "it is critical to the system"
            threshold = self._threshold(snapshot)
            if threshold is not None and priority >= threshold:
                return f"its priority {priority} is not below the threshold {threshold}"
        if not owners and self._bare:
            return "it has no owner"
        if not owners and pod.status.phase != "Failed":
            return "it has no owner and has not failed"
        if self._daemons and any(owner.kind == "DaemonSet" for owner in owners):
            return "it belongs to a DaemonSet"
        return None

    def _threshold(self, snapshot: Snapshot) -> int | None:
        given = self._args.priority_threshold
        if given is None:
            return None
        if given.value is not None:
            return given.value
        classes = snapshot.others.get(PRIORITY_CLASSES.plural, ())
        return next((c.value for c in classes if c.metadata.name == given.name), SYSTEM_CRITICAL)

    def _what_it_holds(self, pod: Pod, snapshot: Snapshot) -> str | None:
        volumes = pod.spec.volumes
        if self._local and any(v.host_path is not None or v.empty_dir is not None for v in volumes):
            return "it has local storage"
        claims = [v.persistent_volume_claim.claim_name for v in volumes if v.persistent_volume_claim is not None]
        if self._claims and claims and self._guarded(pod, claims, snapshot):
            return "it has persistent volume claims"
        if self._resource_claims and pod.spec.resource_claims:
            return "it has resource claims"
        return None

    def _guarded(self, pod: Pod, claims: list[str], snapshot: Snapshot) -> bool:
        """Return whether a claim is of a protected storage class; an unknown class protects as well."""
        if not self._classes:
            return True
        held = self._seen(snapshot).classes
        found = [held.get((pod.metadata.namespace, name)) for name in claims]
        return any(name is None or name in self._classes for name in found)

    def _whose(self, pod: Pod, snapshot: Snapshot) -> str | None:
        if self._unbudgeted and not self._seen(snapshot).is_budgeted(pod):
            return "no PodDisruptionBudget covers it"
        if self._labels is not None and not self._labels.matches(pod.metadata.labels):
            return "its labels are not selected"
        owners = pod.metadata.owner_references
        if self._args.min_replicas > 1 and len(owners) == 1:
            peers = len(snapshot.by_owner.get(owners[0].uid, ()))
            if peers < self._args.min_replicas:
                return f"its owner has {peers} pods, fewer than {self._args.min_replicas}"
        if self._least_age_s and (
            pod.status.start_time is None or snapshot.now_s - pod.status.start_time.timestamp() < self._least_age_s
        ):
            return f"it is younger than {self._args.min_pod_age}"
        return None


class _Seen:
    """Indexes over one snapshot, each built when it is first needed."""

    def __init__(self, snapshot: Snapshot, nodes: Selector) -> None:
        self.snapshot = snapshot
        self._nodes = nodes

    @cached_property
    def elsewhere(self) -> Elsewhere:
        return Elsewhere(self.snapshot, self._nodes)

    @cached_property
    def namespaces(self) -> Mapping[str, Mapping[str, str]]:
        """Return the labels of the namespaces."""
        return {n.metadata.name: n.metadata.labels for n in self.snapshot.others.get(NAMESPACES.plural, ())}

    @cached_property
    def classes(self) -> Mapping[tuple[str, str], str | None]:
        """Return the storage class by claim."""
        claims = self.snapshot.others.get(PERSISTENT_VOLUME_CLAIMS.plural, ())
        return {(c.metadata.namespace, c.metadata.name): c.spec.storage_class_name for c in claims}

    @cached_property
    def _budgets(self) -> Mapping[str, Sequence[Selector]]:
        found: dict[str, list[Selector]] = {}
        for budget in self.snapshot.others.get(POD_DISRUPTION_BUDGETS.plural, ()):
            selector = selector_of(budget.spec.selector)
            if selector is not None:
                found.setdefault(budget.metadata.namespace, []).append(selector)
        return found

    def is_budgeted(self, pod: Pod) -> bool:
        return any(s.matches(pod.metadata.labels) for s in self._budgets.get(pod.metadata.namespace, ()))


def _storage_classes(given: Protections) -> list[str]:
    """Return the protected storage classes, from a key in Kubernetes' capitals that no model has."""
    config = (given.config or {}).get("PodsWithPVC") or {}
    return [entry.get("name", "") for entry in config.get("protectedStorageClasses") or ()]


def default_evictor(raw: Any) -> Plugin | list[str]:
    args = read(DefaultEvictor.name, Args, raw)
    if isinstance(args, list):
        return args
    errors = selector_error(args.label_selector) + selector_error(args.namespace_label_selector)
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
            f"unknown protection {p!r} in extraEnabled; known are {', '.join(EXTRA)}"
            for p in given.extra_enabled
            if p not in EXTRA
        ]
        errors += [
            f"unknown protection {p!r} in defaultDisabled; known are {', '.join(DEFAULT)}"
            for p in given.default_disabled
            if p not in DEFAULT
        ]
        if args.deprecated:
            errors.append("podProtections cannot be mixed with the deprecated fields that it replaces")
    return errors or DefaultEvictor(args)
