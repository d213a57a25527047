"""The configuration that Koordinator's chart installs: its plugins at every point, in their order, with arguments.

It is what a scheduler without a configuration file runs. The manifests of Koordinator's repository differ: no load
thresholds, no network topology, DefaultPreemption for gangs too, and another order at PreFilter, Filter and Reserve.
"""

from __future__ import annotations

from koord.api.config.component import LeaderElectionConfiguration
from koord.api.config.plugin_set import ALL_PLUGINS, PluginConfig, PluginEntry, PluginSet, enable_plugins
from koord.api.config.scheduler.configuration import (
    KIND,
    KubeSchedulerConfiguration,
    KubeSchedulerProfile,
    SchedulerPlugins,
)
from koord.api.config.scheduler.in_tree_args import API_VERSION, LEAST_ALLOCATED
from koord.api.koordinator.protocol import NAMESPACE, SCHEDULER
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY, CPU, MEMORY


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
