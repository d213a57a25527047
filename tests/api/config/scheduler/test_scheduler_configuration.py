"""The scheduler's configuration: defaults, merging of plugins, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.config.component import PluginEntry, PluginSet, enable_plugins, expand_multi_point, merge_plugin_sets
from koord.api.config.decode import decode_strict
from koord.api.config.scheduler import configuration
from koord.api.config.scheduler.configuration import (
    DEFAULT_MULTI_POINT,
    SCHEDULER_PLUGIN_CATALOG,
    KubeSchedulerConfiguration,
    KubeSchedulerProfile,
    defaulted,
    effective_plugins,
    typed_args,
    validate,
)
from koord.api.config.scheduler.koordinator_args import ElasticQuotaArgs
from koord.api.model import encode, to_dict
from tests.api.model_strategies import model_values

DEFAULTS: dict[str, dict[str, Any]] = {
    "NodeResourcesFit": {
        "scoringStrategy": {
            "type": "LeastAllocated",
            "resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}],
        }
    },
    "NodeResourcesBalancedAllocation": {"resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]},
    "InterPodAffinity": {"hardPodAffinityWeight": 1},
    "PodTopologySpread": {"defaultingType": "System"},
    "DefaultPreemption": {"minCandidateNodesPercentage": 10, "minCandidateNodesAbsolute": 100},
    "NodeAffinity": {},
    "VolumeBinding": {"bindTimeoutSeconds": 600},
    "DynamicResources": {"filterTimeout": "10s"},
    "LoadAwareScheduling": {
        "filterExpiredNodeMetrics": True,
        "enableScheduleWhenNodeMetricsExpired": False,
        "nodeMetricExpirationSeconds": 180,
        "resourceWeights": {"cpu": 1, "memory": 1},
        "usageThresholds": {"cpu": 65, "memory": 95},
        "estimatedScalingFactors": {"cpu": 85, "memory": 70},
    },
    "NodeNUMAResource": {
        "defaultCPUBindPolicy": "FullPCPUs",
        "scoringStrategy": {
            "type": "LeastAllocated",
            "resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}],
        },
        "numaScoringStrategy": {
            "type": "LeastAllocated",
            "resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}],
        },
    },
    "Reservation": {
        "enablePreemption": False,
        "minCandidateNodesPercentage": 10,
        "minCandidateNodesAbsolute": 100,
        "controllerWorkers": 1,
        "gcDurationSeconds": 86400,
        "gcIntervalSeconds": 60,
        "resyncIntervalSeconds": 60,
    },
    "ElasticQuota": {
        "delayEvictTime": "120s",
        "revokePodInterval": "1s",
        "defaultQuotaGroupMax": {"cpu": "1844674407370955161", "memory": "1844674407370955161"},
        "systemQuotaGroupMax": {"cpu": "1844674407370955161", "memory": "1844674407370955161"},
        "quotaGroupNamespace": "koordinator-system",
        "monitorAllQuotas": False,
        "enableCheckParentQuota": False,
        "enableRuntimeQuota": True,
        "enableMinQuotaScale": True,
        "disableDefaultQuotaPreemption": True,
        "enableQueueHint": False,
        "quotaSnapshotUpdateInterval": "120s",
    },
    "Coscheduling": {
        "defaultTimeout": "600s",
        "controllerWorkers": 1,
        "enablePreemption": False,
        "awareNetworkTopology": False,
        "defaultMatchPolicy": "once-satisfied",
    },
    "DeviceShare": {
        "scoringStrategy": {
            "type": "LeastAllocated",
            "resources": [
                {"name": "koordinator.sh/gpu-memory-ratio", "weight": 1},
                {"name": "koordinator.sh/gpu-memory", "weight": 1},
                {"name": "koordinator.sh/rdma", "weight": 1},
                {"name": "koordinator.sh/fpga", "weight": 1},
            ],
        },
        "gpuSharedResourceTemplatesConfig": {
            "configMapNamespace": "koordinator-system",
            "configMapName": "gpu-shared-resource-templates",
            "matchedResources": ["huawei.com/npu-core"],
        },
    },
    "NodeResourcesFitPlus": {},
    "ScarceResourceAvoidance": {},
    "SchedulingHint": {"maxHintNodes": 100},
}


@pytest.mark.parametrize("plugin", list(SCHEDULER_PLUGIN_CATALOG))
def test_defaults(plugin: str) -> None:
    args = typed_args(plugin, None)
    assert not isinstance(args, list), args
    assert to_dict(args) == DEFAULTS[plugin]


@pytest.mark.parametrize("plugin", list(SCHEDULER_PLUGIN_CATALOG))
def test_the_header_may_be_given_and_must_be_right(plugin: str) -> None:
    right = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": f"{plugin}Args"}
    assert not isinstance(typed_args(plugin, right), list)
    wrong = typed_args(plugin, {**right, "kind": "OtherArgs"})
    assert isinstance(wrong, list)
    assert [e.field for e in wrong] == ["kind"]


@pytest.mark.parametrize(
    ("plugin", "given", "kept"),
    [
        pytest.param(
            "LoadAwareScheduling",
            {"usageThresholds": {"cpu": 0}},
            {"usageThresholds": {"cpu": 0}},
            id="explicit-zero-threshold",
        ),
        pytest.param(
            "LoadAwareScheduling", {"dominantResourceWeight": 5}, {"resourceWeights": None}, id="dominant-weight-alone"
        ),
        pytest.param(
            "LoadAwareScheduling",
            {"estimatedScalingFactors": {"cpu": 50}},
            {"estimatedScalingFactors": {"cpu": 50, "memory": 70}},
            id="missing-factor-filled",
        ),
        pytest.param(
            "NodeNUMAResource", {"defaultCPUBindPolicy": ""}, {"defaultCPUBindPolicy": ""}, id="empty-bind-policy"
        ),
        pytest.param(
            "Reservation",
            {"preAllocationConfig": {"enableClusterMode": True}},
            {
                "preAllocationConfig": {
                    "enableClusterMode": True,
                    "clusterLabelKey": "pod.koordinator.sh/is-pre-allocatable",
                    "clusterPriorityAnnotationKey": "pod.koordinator.sh/pre-allocatable-priority",
                }
            },
            id="pre-allocation",
        ),
        pytest.param("ElasticQuota", {"enableRuntimeQuota": False}, {"enableRuntimeQuota": False}, id="explicit-off"),
        pytest.param(
            "NodeResourcesFit",
            {"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "x.com/gpu"}]}},
            {"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "x.com/gpu", "weight": 1}]}},
            id="weight-of-one",
        ),
    ],
)
def test_what_is_given_stays(plugin: str, given: dict[str, Any], kept: dict[str, Any]) -> None:
    args = typed_args(plugin, given)
    assert not isinstance(args, list), args
    made = to_dict(args)
    assert {k: made.get(k) for k in kept} == kept


@pytest.mark.parametrize(
    ("plugin", "given", "field"),
    [
        ("LoadAwareScheduling", {"nodeMetricExpirationSeconds": 0}, "nodeMetricExpirationSeconds"),
        ("LoadAwareScheduling", {"resourceWeights": {"cpu": 0}}, "resourceWeights[cpu]"),
        ("LoadAwareScheduling", {"resourceWeights": {"x.com/gpu": 1}}, "resourceWeights[x.com/gpu]"),
        ("LoadAwareScheduling", {"dominantResourceWeight": 101}, "dominantResourceWeight"),
        ("LoadAwareScheduling", {"usageThresholds": {"cpu": 101}}, "usageThresholds[cpu]"),
        ("LoadAwareScheduling", {"estimatedScalingFactors": {"cpu": 0}}, "estimatedScalingFactors[cpu]"),
        ("LoadAwareScheduling", {"aggregated": {"usageAggregationType": "p42"}}, "aggregated.usageAggregationType"),
        (
            "LoadAwareScheduling",
            {"aggregated": {"usageAggregatedDuration": "-1s"}},
            "aggregated.usageAggregatedDuration",
        ),
        ("NodeNUMAResource", {"defaultCPUBindPolicy": "Tight"}, "defaultCPUBindPolicy"),
        ("NodeNUMAResource", {"numaScoringStrategy": {"type": "Best"}}, "numaScoringStrategy.type"),
        ("Reservation", {"minCandidateNodesPercentage": 101}, "minCandidateNodesPercentage"),
        ("Reservation", {"gcDurationSeconds": -1}, "gcDurationSeconds"),
        ("Reservation", {"ignoredResources": ["cpu"]}, "ignoredResources[0]"),
        ("Reservation", {"ignoredResources": ["kubernetes.io/batch-cpu"]}, "ignoredResources[0]"),
        ("Reservation", {"ignoredResourceGroups": ["a/b"]}, "ignoredResourceGroups[0]"),
        ("Reservation", {"ignoredResourceGroups": ["kubernetes.io"]}, "ignoredResourceGroups[0]"),
        ("ElasticQuota", {"delayEvictTime": "-1s"}, "delayEvictTime"),
        ("ElasticQuota", {"revokePodInterval": "soon"}, "revokePodInterval"),
        ("ElasticQuota", {"defaultQuotaGroupMax": {"cpu": "-1"}}, "defaultQuotaGroupMax[cpu]"),
        ("Coscheduling", {"controllerWorkers": 0}, "controllerWorkers"),
        ("Coscheduling", {"defaultMatchPolicy": "never"}, "defaultMatchPolicy"),
        ("DeviceShare", {"scoringStrategy": {"type": "Random"}}, "scoringStrategy.type"),
        (
            "DeviceShare",
            {"scoringStrategy": {"resources": [{"name": "a", "weight": 101}]}},
            "scoringStrategy.resources[0].weight",
        ),
        ("SchedulingHint", {"maxHintNodes": 0}, "maxHintNodes"),
        ("InterPodAffinity", {"hardPodAffinityWeight": 101}, "hardPodAffinityWeight"),
        ("VolumeBinding", {"bindTimeoutSeconds": -1}, "bindTimeoutSeconds"),
        ("PodTopologySpread", {"defaultingType": "Some"}, "defaultingType"),
        ("DefaultPreemption", {"minCandidateNodesPercentage": -1}, "minCandidateNodesPercentage"),
        (
            "NodeResourcesFit",
            {"scoringStrategy": {"type": "RequestedToCapacityRatio"}},
            "scoringStrategy.requestedToCapacityRatio.shape",
        ),
        ("LoadAwareScheduling", {"usageTreshold": {}}, "usageTreshold"),
        ("Coscheduling", {"controllerWorkers": "many"}, "controllerWorkers"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_refusals_name_the_field(plugin: str, given: dict[str, Any], field: str) -> None:
    wrong = typed_args(plugin, given)
    assert isinstance(wrong, list)
    assert [e.field for e in wrong] == [field]
    assert field in str(wrong[0])


@pytest.mark.parametrize("plugin", list(SCHEDULER_PLUGIN_CATALOG))
@settings(max_examples=15)
@given(data=st.data())
def test_defaulting_twice_changes_nothing(plugin: str, data: st.DataObject) -> None:
    kind = SCHEDULER_PLUGIN_CATALOG[plugin]
    once = kind.defaulted(data.draw(model_values(kind.model)))
    assert kind.defaulted(once) == once


def test_an_empty_configuration_is_complete_and_valid() -> None:
    config = defaulted(KubeSchedulerConfiguration())
    assert validate(config) == []
    assert [p.scheduler_name for p in config.profiles] == ["default-scheduler"]
    assert (config.parallelism, config.pod_initial_backoff_seconds, config.pod_max_backoff_seconds) == (16, 1, 10)
    election = config.leader_election
    assert (election.resource_namespace, election.resource_name) == ("kube-system", "kube-scheduler")
    assert (election.lease_duration, election.renew_deadline, election.retry_period) == ("15s", "10s", "2s")
    assert (config.client_connection.qps, config.client_connection.burst) == (50.0, 100)


def test_the_shipped_configuration_is_valid_and_reads_back() -> None:
    config = configuration.configuration()
    assert decode_strict(to_dict(config), KubeSchedulerConfiguration) == config
    made = defaulted(config)
    assert validate(made) == []
    plugins = made.profiles[0].plugins
    assert plugins is not None
    assert {p.name: p.weight for p in plugins.score.enabled}["Reservation"] == 5000
    assert plugins.multi_point == DEFAULT_MULTI_POINT
    assert [p.name for p in plugins.pre_bind.enabled].count("DefaultPreBind") == 1
    args = {one.name: one.args for one in config.profiles[0].plugin_config}
    assert args["LoadAwareScheduling"]["usageThresholds"] == {"cpu": 65, "memory": 95}
    assert args["Coscheduling"] == {"awareNetworkTopology": True, "enablePreemption": True}
    assert args["DeviceShare"] == {
        "gpuShareUnsupportedModels": [{"vendor": "huawei", "model": "Ascend-310P3-300I-DUO"}]
    }
    assert [p.name for p in plugins.post_filter.enabled] == ["Reservation", "Coscheduling", "ElasticQuota"]


def test_a_profile_with_plugins_gets_the_single_patch_binder() -> None:
    given = decode_strict({"plugins": {"preBind": {"enabled": [{"name": "DeviceShare"}]}}}, KubeSchedulerProfile)
    assert isinstance(given, KubeSchedulerProfile)
    assert [p.name for p in effective_plugins(given).pre_bind.enabled] == ["DeviceShare", "DefaultPreBind"]
    refused = decode_strict({"plugins": {"preBind": {"disabled": [{"name": "*"}]}}}, KubeSchedulerProfile)
    assert isinstance(refused, KubeSchedulerProfile)
    assert effective_plugins(refused).pre_bind.enabled == ()


@pytest.mark.parametrize(
    ("document", "fields"),
    [
        pytest.param({"parallelism": -1}, ["parallelism"], id="parallelism"),
        pytest.param({"percentageOfNodesToScore": 101}, ["percentageOfNodesToScore"], id="percentage"),
        pytest.param(
            {"podInitialBackoffSeconds": 20, "podMaxBackoffSeconds": 10}, ["podMaxBackoffSeconds"], id="backoff"
        ),
        pytest.param(
            {"leaderElection": {"leaseDuration": "5s"}}, ["leaderElection.leaseDuration"], id="lease-too-short"
        ),
        pytest.param(
            {"leaderElection": {"resourceLock": "configmaps"}}, ["leaderElection.resourceLock"], id="resource-lock"
        ),
        pytest.param({"leaderElection": {"leaderElect": False, "leaseDuration": "1s"}}, [], id="election-off"),
        pytest.param(
            {"profiles": [{"schedulerName": "a"}, {"schedulerName": "a"}]},
            ["profiles[1].schedulerName"],
            id="same-name",
        ),
        pytest.param(
            {"profiles": [{"schedulerName": "a"}, {}]}, ["profiles[1].schedulerName"], id="second-without-name"
        ),
        pytest.param(
            {
                "profiles": [
                    {"schedulerName": "a"},
                    {"schedulerName": "b", "plugins": {"queueSort": {"enabled": [{"name": "Coscheduling"}]}}},
                ]
            },
            ["profiles[1].plugins.queueSort"],
            id="two-queues",
        ),
        pytest.param(
            {"profiles": [{"pluginConfig": [{"name": "SchedulingHint", "args": {"maxHintNodes": 0}}]}]},
            ["profiles[0].pluginConfig[0].args.maxHintNodes"],
            id="plugin-args",
        ),
        pytest.param(
            {"profiles": [{"pluginConfig": [{"name": "X"}, {"name": "X"}, {"args": {}}]}]},
            ["profiles[0].pluginConfig[2].name", "profiles[0].pluginConfig[1]"],
            id="plugin-config-twice",
        ),
    ],
)
def test_configuration_refusals(document: dict[str, Any], fields: list[str]) -> None:
    given = decode_strict(document, KubeSchedulerConfiguration)
    assert isinstance(given, KubeSchedulerConfiguration), given
    assert [e.field for e in validate(defaulted(given))] == fields


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"profile": []}, "profile"),
        ({"profiles": [{"pluginz": {}}]}, "profiles[0].pluginz"),
        ({"profiles": [{"plugins": {"score": {"enable": []}}}]}, "profiles[0].plugins.score.enable"),
        ({"leaderElection": {"lease": "1s"}}, "leaderElection.lease"),
    ],
    ids=["top", "profile", "point", "election"],
)
def test_unknown_fields_are_errors(document: dict[str, Any], path: str) -> None:
    wrong = decode_strict(document, KubeSchedulerConfiguration)
    assert isinstance(wrong, list)
    assert [e.field for e in wrong] == [path]


def test_arguments_of_unknown_plugins_are_kept_as_they_are() -> None:
    given = decode_strict(
        {"profiles": [{"pluginConfig": [{"name": "Mine", "args": {"deep": {"x": [1]}}}]}]}, KubeSchedulerConfiguration
    )
    assert isinstance(given, KubeSchedulerConfiguration)
    assert given.profiles[0].plugin_config[0].args == {"deep": {"x": [1]}}


def names(plugins: PluginSet | tuple[PluginEntry, ...]) -> list[str]:
    return [p.name for p in (plugins.enabled if isinstance(plugins, PluginSet) else plugins)]


DEFAULT = enable_plugins("A", "B", "C", B=2)


@pytest.mark.parametrize(
    ("custom", "result"),
    [
        pytest.param(PluginSet(), ["A", "B", "C"], id="nothing"),
        pytest.param(enable_plugins("X", "Y"), ["A", "B", "C", "X", "Y"], id="appended"),
        pytest.param(PluginSet(disabled=(PluginEntry(name="B"),)), ["A", "C"], id="disabled"),
        pytest.param(PluginSet(disabled=(PluginEntry(name="*"),)), [], id="all-disabled"),
        pytest.param(
            PluginSet(enabled=enable_plugins("B", "X").enabled, disabled=(PluginEntry(name="*"),)),
            ["B", "X"],
            id="only-these",
        ),
        pytest.param(
            PluginSet(enabled=enable_plugins("A").enabled, disabled=(PluginEntry(name="A"),)),
            ["B", "C", "A"],
            id="moved-to-the-end",
        ),
    ],
)
def test_merge(custom: PluginSet, result: list[str]) -> None:
    assert names(merge_plugin_sets(DEFAULT, custom)) == result


def test_a_re_enabled_default_keeps_its_place_with_the_new_weight() -> None:
    made = merge_plugin_sets(DEFAULT, enable_plugins("X", "B", B=7))
    assert [(p.name, p.weight) for p in made.enabled] == [("A", None), ("B", 7), ("C", None), ("X", None)]


@pytest.mark.parametrize(
    ("at_point", "result"),
    [
        pytest.param(PluginSet(), ["A", "B", "C"], id="spread"),
        pytest.param(enable_plugins("X", "Y"), ["A", "B", "C", "X", "Y"], id="own-after-spread"),
        pytest.param(enable_plugins("C", "X"), ["C", "A", "B", "X"], id="reordered-first"),
        pytest.param(PluginSet(disabled=(PluginEntry(name="B"),)), ["A", "C"], id="one-off-here"),
        pytest.param(
            PluginSet(enabled=enable_plugins("X").enabled, disabled=(PluginEntry(name="*"),)), ["X"], id="all-off-here"
        ),
    ],
)
def test_expansion(at_point: PluginSet, result: list[str]) -> None:
    assert names(expand_multi_point(DEFAULT, at_point, lambda _: True)) == result


def test_expansion_asks_who_has_the_point() -> None:
    assert names(expand_multi_point(DEFAULT, PluginSet(), lambda name: name == "B")) == ["B"]


def test_quota_arguments_are_bytes_stable() -> None:
    assert encode(ElasticQuotaArgs()) == b"{}"
