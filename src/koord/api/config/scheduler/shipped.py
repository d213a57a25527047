"""This module is the profile that Koordinator ships: its plugins at every point, in their order, with their
arguments.
"""

from __future__ import annotations

from koord.api.config.component import LeaderElection
from koord.api.config.plugin_set import ALL, Plugin, PluginConfig, PluginSet, enabled
from koord.api.config.scheduler.args import API_VERSION, LEAST_ALLOCATED
from koord.api.config.scheduler.configuration import KIND, KubeSchedulerConfiguration, Plugins, Profile
from koord.api.protocol import NAMESPACE, SCHEDULER
from koord.api.resource_name import BATCH_CPU, BATCH_MEMORY, CPU, MEMORY


def _only(*names: str) -> PluginSet:
    return PluginSet(enabled=enabled(*names).enabled, disabled=(Plugin(name=ALL),))


def plugins() -> Plugins:
    return Plugins(
        pre_enqueue=enabled("Coscheduling"),
        queue_sort=_only("PrioritySort"),
        pre_filter=enabled(
            "SchedulingHint", "Reservation", "NodeNUMAResource", "DeviceShare", "Coscheduling", "ElasticQuota"
        ),
        filter=enabled("LoadAwareScheduling", "NodeNUMAResource", "DeviceShare", "Reservation"),
        post_filter=_only("Reservation", "Coscheduling", "ElasticQuota", "DefaultPreemption"),
        pre_score=enabled("Reservation", "Coscheduling"),
        score=enabled(
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
        reserve=enabled(
            "LoadAwareScheduling", "NodeNUMAResource", "DeviceShare", "Reservation", "Coscheduling", "ElasticQuota"
        ),
        permit=enabled("Coscheduling"),
        pre_bind=enabled("NodeNUMAResource", "DeviceShare", "Reservation", "Coscheduling", "DefaultPreBind"),
        bind=_only("Reservation", "DefaultBinder"),
        post_bind=enabled("Coscheduling"),
    )


def configuration() -> KubeSchedulerConfiguration:
    """Return the configuration as a file would have it, before defaults."""
    weights = [{"name": name, "weight": 1} for name in (CPU, MEMORY, BATCH_CPU, BATCH_MEMORY)]
    return KubeSchedulerConfiguration(
        api_version=API_VERSION,
        kind=KIND,
        leader_election=LeaderElection(
            leader_elect=True, resource_lock="leases", resource_name=SCHEDULER, resource_namespace=NAMESPACE
        ),
        profiles=(
            Profile(
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
                            "usageThresholds": {CPU: 0, MEMORY: 0},
                            "estimatedScalingFactors": {CPU: 85, MEMORY: 70},
                        },
                    ),
                    PluginConfig(name="ElasticQuota", args={"quotaGroupNamespace": NAMESPACE}),
                ),
            ),
        ),
    )
