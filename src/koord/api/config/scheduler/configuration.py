"""This module holds KubeSchedulerConfiguration: profiles, their plugins by extension point, the process around them,
and extenders (HTTP services that the scheduler asks about nodes beside its own plugins); and the catalog of plugins
whose arguments have a known shape: their model, defaults and validation.

The configuration that Koordinator's chart installs has its plugins at every point, in their order, with arguments. It
is what a scheduler without a configuration file runs. The manifests of Koordinator's repository differ: no load
thresholds, no network topology, DefaultPreemption for gangs too, and another order at PreFilter, Filter and Reserve.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import field

from koord.api.config import component
from koord.api.config.component import (
    ALL_PLUGINS,
    LeaderElectionConfiguration,
    PluginArgsKind,
    PluginConfig,
    PluginEntry,
    PluginSet,
    enable_plugins,
    fill_empty,
    fill_none,
    merge_plugin_sets,
    validate_plugin_configs,
)
from koord.api.config.field_error import FieldError, duration_errors, range_errors, required_error
from koord.api.config.scheduler import in_tree_args, koordinator_args
from koord.api.config.scheduler.in_tree_args import API_VERSION, LEAST_ALLOCATED, SchedulerPluginArgs
from koord.api.koordinator.protocol import NAMESPACE, SCHEDULER
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY, CPU, MEMORY
from koord.api.model import Model, to_dict
from koord.api.schema_markers import Duration

SCHEDULER_PLUGIN_CATALOG: dict[str, PluginArgsKind[Any]] = {
    "NodeResourcesFit": PluginArgsKind(
        in_tree_args.NodeResourcesFitArgs, in_tree_args.defaulted_fit, in_tree_args.validate_fit
    ),
    "NodeResourcesBalancedAllocation": PluginArgsKind(
        in_tree_args.NodeResourcesBalancedAllocationArgs,
        in_tree_args.defaulted_balanced,
        in_tree_args.validate_balanced,
    ),
    "InterPodAffinity": PluginArgsKind(
        in_tree_args.InterPodAffinityArgs,
        in_tree_args.defaulted_inter_pod_affinity,
        in_tree_args.validate_inter_pod_affinity,
    ),
    "PodTopologySpread": PluginArgsKind(
        in_tree_args.PodTopologySpreadArgs, in_tree_args.defaulted_spread, in_tree_args.validate_spread
    ),
    "DefaultPreemption": PluginArgsKind(
        in_tree_args.DefaultPreemptionArgs, in_tree_args.defaulted_preemption, in_tree_args.validate_preemption
    ),
    "NodeAffinity": PluginArgsKind(in_tree_args.NodeAffinityArgs),
    "VolumeBinding": PluginArgsKind(
        in_tree_args.VolumeBindingArgs, in_tree_args.defaulted_volume_binding, in_tree_args.validate_volume_binding
    ),
    "DynamicResources": PluginArgsKind(
        in_tree_args.DynamicResourcesArgs,
        in_tree_args.defaulted_dynamic_resources,
        in_tree_args.validate_dynamic_resources,
    ),
    "LoadAwareScheduling": PluginArgsKind(
        koordinator_args.LoadAwareSchedulingArgs,
        koordinator_args.defaulted_load_aware,
        koordinator_args.validate_load_aware,
    ),
    "NodeNUMAResource": PluginArgsKind(
        koordinator_args.NodeNUMAResourceArgs, koordinator_args.defaulted_numa, koordinator_args.validate_numa
    ),
    "Reservation": PluginArgsKind(
        koordinator_args.ReservationArgs, koordinator_args.defaulted_reservation, koordinator_args.validate_reservation
    ),
    "ElasticQuota": PluginArgsKind(
        koordinator_args.ElasticQuotaArgs,
        koordinator_args.defaulted_elastic_quota,
        koordinator_args.validate_elastic_quota,
    ),
    "Coscheduling": PluginArgsKind(
        koordinator_args.CoschedulingArgs,
        koordinator_args.defaulted_coscheduling,
        koordinator_args.validate_coscheduling,
    ),
    "DeviceShare": PluginArgsKind(
        koordinator_args.DeviceShareArgs,
        koordinator_args.defaulted_device_share,
        koordinator_args.validate_device_share,
    ),
    "NodeResourcesFitPlus": PluginArgsKind(koordinator_args.NodeResourcesFitPlusArgs),
    "ScarceResourceAvoidance": PluginArgsKind(koordinator_args.ScarceResourceAvoidanceArgs),
    "SchedulingHint": PluginArgsKind(
        koordinator_args.SchedulingHintArgs,
        koordinator_args.defaulted_scheduling_hint,
        koordinator_args.validate_scheduling_hint,
    ),
}


def typed_args(plugin: str, raw: dict[str, Any] | None) -> SchedulerPluginArgs | list[FieldError]:
    """Return the defaulted, validated arguments of a plugin in the catalog, or all that is wrong with them."""
    args: SchedulerPluginArgs | list[FieldError]
    args = SCHEDULER_PLUGIN_CATALOG[plugin].typed(plugin, raw, API_VERSION)
    return args


KIND = "KubeSchedulerConfiguration"
# What a file that names nothing gets: kube-scheduler's own names, so that its files mean here what they mean there.
DEFAULT_SCHEDULER = "default-scheduler"
_LEASE = ("kube-scheduler", "kube-system")
# Koordinator's single write before the binding.
DEFAULT_PRE_BIND = "DefaultPreBind"
# Older versions had these; an entry for one of them is a leftover that must not pass for a setting.
REMOVED_PLUGINS = ("AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits")
_INT32 = (1 << 31) - 1
_FIT, _IGNORED = "NodeResourcesFit", "ignoredResources"


class SchedulerPlugins(Model, frozen=True, kw_only=True):
    pre_enqueue: PluginSet = PluginSet()
    queue_sort: PluginSet = PluginSet()
    pre_filter: PluginSet = PluginSet()
    filter: PluginSet = PluginSet()
    post_filter: PluginSet = PluginSet()
    pre_score: PluginSet = PluginSet()
    score: PluginSet = PluginSet()
    reserve: PluginSet = PluginSet()
    permit: PluginSet = PluginSet()
    pre_bind: PluginSet = PluginSet()
    bind: PluginSet = PluginSet()
    post_bind: PluginSet = PluginSet()
    multi_point: PluginSet = PluginSet()


class KubeSchedulerProfile(Model, frozen=True, kw_only=True):
    scheduler_name: str | None = None
    percentage_of_nodes_to_score: int | None = None
    plugins: SchedulerPlugins | None = None
    plugin_config: tuple[PluginConfig, ...] = ()


class KubeSchedulerConfiguration(Model, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    parallelism: int | None = None
    leader_election: component.LeaderElectionConfiguration = component.LeaderElectionConfiguration()
    client_connection: component.ClientConnectionConfiguration = component.ClientConnectionConfiguration()
    enable_profiling: bool | None = None
    enable_contention_profiling: bool | None = None
    percentage_of_nodes_to_score: int | None = None
    pod_initial_backoff_seconds: int | None = None
    pod_max_backoff_seconds: int | None = None
    delay_cache_until_active: bool = False
    profiles: tuple[KubeSchedulerProfile, ...] = ()
    extenders: tuple[Extender, ...] = ()


# Kubernetes 1.35, in its order; everything else about these plugins follows from the points that they implement.
DEFAULT_MULTI_POINT = enable_plugins(
    "SchedulingGates",
    "PrioritySort",
    "NodeUnschedulable",
    "NodeName",
    "TaintToleration",
    "NodeAffinity",
    "NodePorts",
    "NodeResourcesFit",
    "VolumeRestrictions",
    "NodeVolumeLimits",
    "VolumeBinding",
    "VolumeZone",
    "PodTopologySpread",
    "InterPodAffinity",
    "DynamicResources",
    "DefaultPreemption",
    "NodeResourcesBalancedAllocation",
    "ImageLocality",
    "DefaultBinder",
    TaintToleration=3,
    NodeAffinity=2,
    NodeResourcesFit=1,
    PodTopologySpread=2,
    InterPodAffinity=2,
    DynamicResources=2,
    NodeResourcesBalancedAllocation=1,
    ImageLocality=1,
)


def defaulted(given: KubeSchedulerConfiguration) -> KubeSchedulerConfiguration:
    """Fill in everything; each profile's plugins are merged over Kubernetes' own."""
    profiles = given.profiles or (KubeSchedulerProfile(),)
    if len(profiles) == 1 and profiles[0].scheduler_name is None:
        profiles = (msgspec.structs.replace(profiles[0], scheduler_name=DEFAULT_SCHEDULER),)
    profiling = True if given.enable_profiling is None else given.enable_profiling
    contention = given.enable_contention_profiling
    given = fill_none(given, parallelism=16, percentage_of_nodes_to_score=0)
    given = fill_none(given, pod_initial_backoff_seconds=1, pod_max_backoff_seconds=10)
    return msgspec.structs.replace(
        given,
        api_version=API_VERSION,
        kind=KIND,
        leader_election=component.defaulted_election(given.leader_election, *_LEASE),
        client_connection=component.defaulted_client(given.client_connection),
        enable_profiling=profiling,
        enable_contention_profiling=profiling if contention is None else contention,
        profiles=tuple(_defaulted_profile(p, ignored_resources(given.extenders)) for p in profiles),
        extenders=tuple(map(defaulted_extender, given.extenders)),
    )


def _defaulted_profile(profile: KubeSchedulerProfile, ignored: tuple[str, ...]) -> KubeSchedulerProfile:
    """Fill in a profile. Resources that an extender manages alone are ignored by NodeResourcesFit."""
    made = msgspec.structs.replace(profile, plugins=effective_plugins(profile))
    if not ignored:
        return made
    fit = next((entry for entry in profile.plugin_config if entry.name == _FIT), PluginConfig(name=_FIT))
    stated = fit.args.get(_IGNORED)
    if stated is not None and not isinstance(stated, list):  # for validation to say
        return made
    both = dict.fromkeys((*(stated or ()), *ignored))
    entry = PluginConfig(name=_FIT, args={**fit.args, _IGNORED: list(both)})
    others = tuple(entry if other is fit else other for other in profile.plugin_config)
    return msgspec.structs.replace(made, plugin_config=others if fit in profile.plugin_config else (*others, entry))


def effective_plugins(profile: KubeSchedulerProfile) -> SchedulerPlugins:
    """Return a profile's plugins with the defaults merged in, and DefaultPreBind unless the profile disables it.

    A default disabled at multiPoint is gone everywhere; the sets of single points have no defaults of their
    own.
    """
    given = profile.plugins or SchedulerPlugins()
    made = msgspec.structs.replace(given, multi_point=merge_plugin_sets(DEFAULT_MULTI_POINT, given.multi_point))
    bound = made.pre_bind
    named = any(p.name == DEFAULT_PRE_BIND for p in bound.enabled)
    if named or bound.disables(DEFAULT_PRE_BIND):
        return made
    appended = msgspec.structs.replace(bound, enabled=(*bound.enabled, *enable_plugins(DEFAULT_PRE_BIND).enabled))
    return msgspec.structs.replace(made, pre_bind=appended)


def validate(config: KubeSchedulerConfiguration) -> list[FieldError]:
    """Validate a defaulted configuration."""
    errors = range_errors("parallelism", config.parallelism, low=1, high=_INT32)
    errors += range_errors("percentageOfNodesToScore", config.percentage_of_nodes_to_score, low=0, high=100)
    errors += range_errors("podInitialBackoffSeconds", config.pod_initial_backoff_seconds, above=0)
    first = config.pod_initial_backoff_seconds
    errors += range_errors("podMaxBackoffSeconds", config.pod_max_backoff_seconds, low=first)
    errors += component.validate_election(config.leader_election) + component.validate_client(config.client_connection)
    names: set[str] = set()
    for index, profile in enumerate(config.profiles):
        errors += _profile_errors(profile, f"profiles[{index}]")
        name = profile.scheduler_name or ""
        if name in names and name:
            rule = "is a duplicate: every profile needs a name of its own"
            errors.append(FieldError(f"profiles[{index}].schedulerName", name, rule))
        names.add(name)
    return errors + _queue_sort_errors(config) + validate_extenders(config.extenders)


def _profile_errors(profile: KubeSchedulerProfile, path: str) -> list[FieldError]:
    errors = [] if profile.scheduler_name else [required_error(f"{path}.schedulerName")]
    errors += range_errors(f"{path}.percentageOfNodesToScore", profile.percentage_of_nodes_to_score, low=0, high=100)
    errors += validate_plugin_configs(profile.plugin_config, f"{path}.pluginConfig")
    for index, config in enumerate(profile.plugin_config):
        here = f"{path}.pluginConfig[{index}]"
        if config.name in REMOVED_PLUGINS:
            errors.append(
                FieldError(f"{here}.name", config.name, "is a plugin that Kubernetes removed: delete the entry")
            )
        if config.name in SCHEDULER_PLUGIN_CATALOG:
            args = typed_args(config.name, config.args)
            wrong = args if isinstance(args, list) else []
            errors += [FieldError(f"{here}.args.{e.field}", e.value, e.rule) for e in wrong]
    return errors


def _queue_sort_errors(config: KubeSchedulerConfiguration) -> list[FieldError]:
    """Check that all profiles sort alike, because they feed one queue."""
    sorts = [(p.plugins or SchedulerPlugins()).queue_sort for p in config.profiles]
    errors = [
        FieldError(
            f"profiles[{i}].plugins.queueSort.enabled", [p.name for p in sort.enabled], "must name one plugin only"
        )
        for i, sort in enumerate(sorts[:1])
        if len(sort.enabled) > 1
    ]
    return errors + [
        FieldError(
            f"profiles[{i}].plugins.queueSort",
            to_dict(sort),
            f"must be the same for all profiles, and profiles[0] has {to_dict(sorts[0])}",
        )
        for i, sort in enumerate(sorts)
        if sort != sorts[0]
    ]


_QUALIFIED = re.compile(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
_NATIVE = "kubernetes.io/"


class ExtenderTLS(Model, frozen=True, kw_only=True):
    insecure: bool = False
    server_name: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    cert_data: str = ""  # base64, as the other two
    key_data: str = ""
    ca_data: str = ""


class ManagedResource(Model, frozen=True, kw_only=True):
    name: str = ""
    ignored_by_scheduler: bool = False


class Extender(Model, frozen=True, kw_only=True):
    url_prefix: str = ""
    filter_verb: str = ""
    preempt_verb: str = ""
    prioritize_verb: str = ""
    weight: int = 0
    bind_verb: str = ""
    enable_https: bool = field(default=False, name="enableHTTPS")
    tls_config: ExtenderTLS | None = None
    http_timeout: Duration | None = field(default=None, name="httpTimeout")
    node_cache_capable: bool = False
    managed_resources: tuple[ManagedResource, ...] = ()
    ignorable: bool = False


def defaulted_extender(given: Extender) -> Extender:
    return fill_empty(given, http_timeout="5s")


def ignored_resources(extenders: tuple[Extender, ...]) -> tuple[str, ...]:
    """Return the resources that the scheduler itself must not count, because an extender does."""
    return tuple(r.name for extender in extenders for r in extender.managed_resources if r.ignored_by_scheduler)


def validate_extenders(extenders: tuple[Extender, ...], path: str = "extenders") -> list[FieldError]:
    errors: list[FieldError] = []
    managed: set[str] = set()
    for index, extender in enumerate(extenders):
        here = f"{path}[{index}]"
        if extender.prioritize_verb:
            errors += range_errors(f"{here}.weight", extender.weight, above=0)
        errors += duration_errors(f"{here}.httpTimeout", extender.http_timeout)
        tls = extender.tls_config
        if tls is not None and tls.insecure and (tls.ca_file or tls.ca_data):
            errors.append(FieldError(f"{here}.tlsConfig.insecure", True, "must be false with caFile or caData"))
        for number, resource in enumerate(extender.managed_resources):
            name, field_name = resource.name, f"{here}.managedResources[{number}].name"
            if not _is_extended(name):
                rule = "must be an extended resource name, such as 'example.com/gpu'"
                errors.append(FieldError(field_name, name, rule))
            elif name in managed:
                errors.append(FieldError(field_name, name, "must be managed by one extender only, and once"))
            managed.add(name)
    binders = [extender.url_prefix for extender in extenders if extender.bind_verb]
    if len(binders) > 1:
        errors.append(FieldError(path, binders, "only one extender can implement bind"))
    return errors


def _is_extended(name: str) -> bool:
    """Return whether a resource name has a domain that is not Kubernetes' own and is no quota request name."""
    domain, slash, _ = name.partition("/")
    native = f"{domain}/".endswith(_NATIVE)
    return bool(slash and _QUALIFIED.match(name)) and not native and not name.startswith("requests.")


def _only(*names: str) -> PluginSet:
    return PluginSet(enabled=enable_plugins(*names).enabled, disabled=(PluginEntry(name=ALL_PLUGINS),))


def plugins() -> SchedulerPlugins:
    return SchedulerPlugins(
        pre_enqueue=enable_plugins("Coscheduling"),
        queue_sort=_only("PrioritySort"),
        pre_filter=enable_plugins(
            "SchedulingHint", "Coscheduling", "Reservation", "NodeNUMAResource", "DeviceShare", "ElasticQuota"
        ),
        filter=enable_plugins("Reservation", "LoadAwareScheduling", "NodeNUMAResource", "DeviceShare"),
        post_filter=_only("Reservation", "Coscheduling", "ElasticQuota"),
        pre_score=enable_plugins("Reservation", "Coscheduling"),
        score=enable_plugins(
            "LoadAwareScheduling",
            "NodeNUMAResource",
            "DeviceShare",
            "Reservation",
            "Coscheduling",
            LoadAwareScheduling=1,
            NodeNUMAResource=1,
            DeviceShare=1,
            Reservation=5000,
            Coscheduling=1,
        ),
        reserve=enable_plugins(
            "Reservation", "LoadAwareScheduling", "NodeNUMAResource", "DeviceShare", "Coscheduling", "ElasticQuota"
        ),
        permit=enable_plugins("Coscheduling"),
        pre_bind=enable_plugins("NodeNUMAResource", "DeviceShare", "Reservation", "Coscheduling", "DefaultPreBind"),
        bind=_only("Reservation", "DefaultBinder"),
        post_bind=enable_plugins("Coscheduling"),
    )


def reservation_plugins() -> SchedulerPlugins:
    """Return what lets a profile with Kubernetes' own plugins use reservations, and nothing else of Koordinator's."""
    reserves = enable_plugins("Reservation")
    return SchedulerPlugins(
        queue_sort=plugins().queue_sort,  # all profiles must say the same of it
        pre_filter=reserves,
        filter=reserves,
        post_filter=_only("Reservation", "DefaultPreemption"),
        pre_score=reserves,
        score=enable_plugins("Reservation", Reservation=5000),
        reserve=reserves,
        pre_bind=reserves,
        bind=_only("Reservation", "DefaultBinder"),
    )


def configuration() -> KubeSchedulerConfiguration:
    """Return the configuration as a file would have it, before defaults."""
    weights = [{"name": name, "weight": 1} for name in (CPU, MEMORY, BATCH_CPU, BATCH_MEMORY)]
    return KubeSchedulerConfiguration(
        api_version=API_VERSION,
        kind=KIND,
        leader_election=LeaderElectionConfiguration(
            leader_elect=True, resource_lock="leases", resource_name=SCHEDULER, resource_namespace=NAMESPACE
        ),
        profiles=(
            KubeSchedulerProfile(
                scheduler_name=SCHEDULER,
                plugins=plugins(),
                plugin_config=(
                    PluginConfig(
                        name="NodeResourcesFit",
                        args={"scoringStrategy": {"type": LEAST_ALLOCATED, "resources": weights}},
                    ),
                    PluginConfig(
                        name="LoadAwareScheduling",
                        args={
                            "filterExpiredNodeMetrics": False,
                            "nodeMetricExpirationSeconds": 300,
                            "resourceWeights": {CPU: 1, MEMORY: 1},
                            "usageThresholds": {CPU: 65, MEMORY: 95},
                            "estimatedScalingFactors": {CPU: 85, MEMORY: 70},
                        },
                    ),
                    PluginConfig(name="ElasticQuota", args={"quotaGroupNamespace": NAMESPACE}),
                    PluginConfig(name="Coscheduling", args={"awareNetworkTopology": True, "enablePreemption": True}),
                    PluginConfig(
                        name="DeviceShare",
                        args={"gpuShareUnsupportedModels": [{"vendor": "huawei", "model": "Ascend-310P3-300I-DUO"}]},
                    ),
                ),
            ),
        ),
    )
