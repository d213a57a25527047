"""List koord-scheduler's feature gates, each with what reads it, and apply them to plugins and their listers.

This table drives parsing, effect and documentation. A gate is read by the keyword of a plugin's factory, by not listing
some kinds, by transforming pods as informers deliver them, or by the scheduler itself; what is not built is refused by
name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from koord.api.config.gates import ALPHA, BETA, GA, FeatureGate, default_feature_gates
from koord.policy.qos import apply_preemption_policy
from koord.scheduler.cache import pod_model
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.plugins.coscheduling.network_plugin import new_coscheduling
from koord.scheduler.plugins.coscheduling.plugin import Coscheduling
from koord.scheduler.plugins.device_share.plugin import DeviceShare
from koord.scheduler.plugins.dynamic_resources.plugin import DynamicResources
from koord.scheduler.plugins.elastic_quota.plugin import ElasticQuotaPlugin
from koord.scheduler.plugins.registry import PluginFactory
from koord.scheduler.plugins.reservation.plugin import ReservationPlugin
from koord.scheduler.plugins.volumes.volume_binding import VolumeBinding, new_volume_binding

CROSS_SCHEDULER_NOMINATION = "CrossSchedulerNomination"
DYNAMIC_SCHEDULER_CHECK = "DynamicSchedulerCheck"
SKIP_FILTER_WITH_NOMINATED_PODS = "SkipFilterWithNominatedPods"
SYNC_BARRIER = "SyncBarrier"
STORAGE_CAPACITY_SCORING = "StorageCapacityScoring"


class SchedulerGate(FeatureGate, frozen=True, kw_only=True):
    """Describe a gate of koord-scheduler and its one reader."""

    plugin: str = ""
    keyword: str = ""  # of the plugin's factory: it gets the gate's value
    hides: tuple[str, ...] = ()  # kinds that no plugin lists while the gate has its other value
    transform: pod_model.PodTransform | None = None  # of pods, while the gate is on
    by_scheduler: bool = False


# Factories that take keywords, by the name of their plugin.
GATED_FACTORIES: Mapping[str, Callable[..., Plugin]] = {
    Coscheduling.name: new_coscheduling,
    DeviceShare.name: DeviceShare,
    DynamicResources.name: DynamicResources,
    ElasticQuotaPlugin.name: ElasticQuotaPlugin,
    ReservationPlugin.name: ReservationPlugin,
    VolumeBinding.name: new_volume_binding,
}

_OLD_SERVER = "servers of Kubernetes 1.22 and older are not supported"
_ALPHA_DEVICES = "it is alpha in Kubernetes 1.35, and claims are allocated without it"
_MANAGER_ONLY = "koord-manager alone reads it"
_SAME_RESULT = "upstream computes the same in another way then; here it is computed in one way"
_BUDGETS, _CAPACITIES = ("PodDisruptionBudget",), ("CSIStorageCapacity", "CSIDriver")


def _alpha(effect: str, plugin: str = "", keyword: str = "", hides: tuple[str, ...] = ()) -> SchedulerGate:
    return SchedulerGate(False, ALPHA, effect, plugin=plugin, keyword=keyword, hides=hides)


def _transforming(effect: str, transform: pod_model.PodTransform) -> SchedulerGate:
    return SchedulerGate(False, ALPHA, effect, transform=transform)


def _of_scheduler(effect: str) -> SchedulerGate:
    return SchedulerGate(False, ALPHA, effect, by_scheduler=True)


def _unbuilt(effect: str, why: str) -> SchedulerGate:
    return SchedulerGate(False, ALPHA, effect, unbuilt=True, why=why)


SCHEDULER_GATES: Mapping[str, SchedulerGate] = {
    "CSIStorageCapacity": SchedulerGate(True, GA, "VolumeBinding checks storage capacities", hides=_CAPACITIES),
    "CleanExpiredReservationAllocated": _alpha(
        "remove the reservation-allocated annotation of a deleted Reservation from its owners",
        ReservationPlugin.name,
        "clean_owners",
    ),
    "CompatibleCSIStorageCapacity": _unbuilt("list CSIStorageCapacity in its beta version", _OLD_SERVER),
    "CompatiblePodDisruptionBudget": _unbuilt("list PodDisruptionBudget in its beta version", _OLD_SERVER),
    CROSS_SCHEDULER_NOMINATION: _of_scheduler(
        "keep the room of pods of higher priority that other schedulers nominated to a node"
    ),
    "DRAAdminAccess": SchedulerGate(
        True,
        BETA,
        "claims may ask for access to devices as an administrator",
        plugin=DynamicResources.name,
        keyword="admin_access",
    ),
    "DRAConsumableCapacity": _unbuilt("several claims share a device by its capacity", _ALPHA_DEVICES),
    "DRADeviceBindingConditions": _unbuilt("wait with a binding until its devices are ready", _ALPHA_DEVICES),
    "DRADeviceTaintRules": _unbuilt("taint devices by DeviceTaintRules", _ALPHA_DEVICES),
    "DRADeviceTaints": _alpha(
        "taints of devices keep claims off that do not tolerate them", DynamicResources.name, "taints"
    ),
    "DRAExtendedResource": _unbuilt("serve extended resources by device classes", _ALPHA_DEVICES),
    "DRAPartitionableDevices": _alpha(
        "devices of resource slices take from counters that they share", DynamicResources.name, "partitionable"
    ),
    "DRAPrioritizedList": SchedulerGate(
        True,
        BETA,
        "claims may list alternatives, of which the first available one is taken",
        plugin=DynamicResources.name,
        keyword="prioritized_list",
    ),
    "DRASchedulerFilterTimeout": SchedulerGate(
        True,
        BETA,
        "the search for devices on a node is bounded by filterTimeout",
        plugin=DynamicResources.name,
        keyword="bounded",
    ),
    "DevicePluginAdaption": _alpha(
        "write what third-party device plugins read of allocated devices", DeviceShare.name, "adapts"
    ),
    "DisableCSIStorageCapacityInformer": _alpha("as CSIStorageCapacity=false", hides=_CAPACITIES),
    "DisableDefaultQuota": _alpha(
        "pods without a quota belong to none", ElasticQuotaPlugin.name, "disable_default_quota"
    ),
    "DisableDynamicResourceAllocationInformer": _alpha(
        "list no resource claims, for servers that do not have them", DynamicResources.name, "no_claims"
    ),
    "DisablePodDisruptionBudgetInformer": _alpha("as PodDisruptionBudget=false", hides=_BUDGETS),
    DYNAMIC_SCHEDULER_CHECK: SchedulerGate(
        True,
        BETA,
        "look before PreBind whether the pod asks for another scheduler by now, and let a waiting one go",
        by_scheduler=True,
    ),
    "ElasticQuotaGuaranteeUsage": _alpha(
        "a quota keeps what it uses up to its min", ElasticQuotaPlugin.name, "guarantee_usage"
    ),
    "ElasticQuotaIgnorePodOverhead": _alpha(
        "quotas do not count the overhead of pods", ElasticQuotaPlugin.name, "ignore_overhead"
    ),
    "ElasticQuotaIgnoreTerminatingPod": _alpha(
        "quotas do not count pods past their grace period", ElasticQuotaPlugin.name, "ignore_terminating"
    ),
    "ElasticQuotaImmediateIgnoreTerminatingPod": _alpha(
        "quotas do not count pods that are being deleted", ElasticQuotaPlugin.name, "ignore_terminating_immediately"
    ),
    "EnableBatchScheduleNodeSnapshot": SchedulerGate(
        True, BETA, "plan a gang on a snapshot of the nodes", why=_SAME_RESULT
    ),
    "EnableInlineBatchSchedule": _alpha("try all members of a planned gang in one go", Coscheduling.name, "batch"),
    "GangPendingPodsConditionPatch": SchedulerGate(
        True,
        BETA,
        "write into the condition of a gang's untried members why the gang failed",
        plugin=Coscheduling.name,
        keyword="patches_pending_members",
    ),
    "GenericEphemeralVolume": SchedulerGate(
        True, GA, "count the claims of generic ephemeral volumes", unbuilt=False, why="every supported server has them"
    ),
    "LazyReservationRestore": SchedulerGate(
        False, ALPHA, "restore reservations on nodes that PreFilter left only", why=_SAME_RESULT
    ),
    "MultiQuotaTree": _alpha("several trees of quotas, by node", ElasticQuotaPlugin.name, "multi_quota_tree"),
    "OmitNodeLabelsForReservation": _alpha(
        "match reservations without the labels of their nodes", ReservationPlugin.name, "omit_node_labels"
    ),
    "PodDisruptionBudget": SchedulerGate(True, GA, "preemption respects disruption budgets", hides=_BUDGETS),
    "PreemptionPolicyTransformer": _transforming(
        "take the preemption policy from the label preemption-policy; a pod without it preempts nobody",
        apply_preemption_policy,
    ),
    "PriorityTransformer": _transforming(
        "pods without a priority have the default of their priority class", pod_model.set_default_priority
    ),
    "ReplaceResourcesTransformer": _transforming(
        "the annotation replace-resources changes what a pod requests", pod_model.replace_pod_resources
    ),
    "ResizePod": _alpha("reservations of devices can be resized", DeviceShare.name, "resizes"),
    SKIP_FILTER_WITH_NOMINATED_PODS: _of_scheduler(
        "filter a node only with the pods nominated to it, not a second time without them"
    ),
    "SkipReservationFitsNode": SchedulerGate(
        False, ALPHA, "leave out a check of reservations that others make", why=_SAME_RESULT
    ),
    STORAGE_CAPACITY_SCORING: _alpha(
        "VolumeBinding scores nodes by the storage that is left (its argument `shape`)",
        VolumeBinding.name,
        "scores_capacity",
    ),
    "SupportParentQuotaSubmitPod": SchedulerGate(
        False, ALPHA, "pods may belong to a quota with children", why=_MANAGER_ONLY
    ),
    SYNC_BARRIER: _of_scheduler("a new leader waits until its caches show the last binding of the old one"),
}


def apply_feature_gates(
    factories: Mapping[str, PluginFactory], gates: Mapping[str, bool]
) -> Mapping[str, PluginFactory]:
    """Return the factories with those replaced whose gates do not all have their default."""
    keywords: dict[str, dict[str, bool]] = {}
    for name, gate in SCHEDULER_GATES.items():
        if gate.plugin:
            keywords.setdefault(gate.plugin, {})[gate.keyword] = gates[name]
    defaults = default_feature_gates(SCHEDULER_GATES)
    changed = {gate.plugin for name, gate in SCHEDULER_GATES.items() if gates[name] != defaults[name]} - {""}
    return {**factories, **{plugin: partial(GATED_FACTORIES[plugin], **keywords[plugin]) for plugin in changed}}


def hidden_kinds(gates: Mapping[str, bool]) -> frozenset[str]:
    """Return the kinds that plugins are to find none of."""
    changed = (gate.hides for name, gate in SCHEDULER_GATES.items() if gates[name] is not gate.default)
    return frozenset(kind for kinds in changed for kind in kinds)


def pod_transform(gates: Mapping[str, bool]) -> pod_model.PodTransform | None:
    """Return what informers apply to pods; None when no gate asks for anything.

    They are applied in the order of the table. The default priority comes before the replacement of resources: it
    depends on the QoS class, which is that of the resources as stated.
    """
    chosen = (gate.transform for name, gate in SCHEDULER_GATES.items() if gates[name])
    return pod_model.chain_transforms(tuple(transform for transform in chosen if transform is not None))
