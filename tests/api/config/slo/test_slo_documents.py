"""slo-controller-config: documents as users write them, the defaults, and what admission refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.api.config.field_error import FieldError
from koord.api.config.slo import defaults, slo_documents, slo_validation
from koord.api.config.slo.slo_documents import (
    ColocationConfig,
    ColocationStrategy,
    CPUBurstConfig,
    CPUModelRatios,
    CPUNormalizationConfig,
    CPUNormalizationStrategy,
    HostApplicationConfig,
    QOSConfig,
    SystemConfig,
    ThresholdConfig,
    cpu_normalization_ratio,
    validate_admission,
    validate_runtime,
)
from koord.api.koordinator.slo import CPUBurstStrategy, ResourceQOS
from koord.api.model import convert, decode, to_dict

DEFAULT_COLOCATION = {
    "enable": False,
    "metricAggregateDurationSeconds": 300,
    "metricReportIntervalSeconds": 60,
    "metricAggregatePolicy": {"durations": ["5m0s", "10m0s", "30m0s"]},
    "metricMemoryCollectPolicy": "usageWithoutPageCache",
    "cpuReclaimThresholdPercent": 60,
    "cpuCalculatePolicy": "usage",
    "memoryReclaimThresholdPercent": 65,
    "memoryCalculatePolicy": "usage",
    "degradeTimeMinutes": 15,
    "updateTimeThresholdSeconds": 300,
    "resourceDiffThreshold": 0.1,
    "midCPUThresholdPercent": 100,
    "midMemoryThresholdPercent": 100,
    "midUnallocatedPercent": 0,
    "midStaticCPUReservedPercent": 0,
    "midStaticMemoryReservedPercent": 0,
}


def test_colocation_defaults() -> None:
    assert to_dict(slo_documents.DEFAULT_COLOCATION) == DEFAULT_COLOCATION
    assert validate_runtime(slo_documents.DEFAULT_COLOCATION) == []


def test_node_entries_carry_their_strategy_inline() -> None:
    text = json.dumps(
        {
            "enable": True,
            "batchCPUThresholdPercent": 80,
            "nodeConfigs": [
                {"name": "a", "nodeSelector": {"matchLabels": {"x": "y"}}, "cpuReclaimThresholdPercent": 80}
            ],
        }
    )
    config = decode(text.encode(), ColocationConfig)
    assert (config.enable, config.batch_cpu_threshold_percent) == (True, 80)
    (node,) = config.node_configs
    assert (node.name, node.cpu_reclaim_threshold_percent, node.enable) == ("a", 80, None)
    assert node.node_selector is not None
    assert node.node_selector.match_labels == {"x": "y"}


@pytest.mark.parametrize(
    ("field", "value", "admitted", "usable"),
    [
        pytest.param("metricAggregateDurationSeconds", 0, False, False, id="no-window"),
        pytest.param("degradeTimeMinutes", 0, False, False, id="no-degrade-time"),
        pytest.param("cpuReclaimThresholdPercent", 150, True, True, id="reclaim-above-hundred"),
        pytest.param("cpuReclaimThresholdPercent", -1, False, False, id="negative-reclaim"),
        pytest.param("resourceDiffThreshold", 0, False, False, id="no-difference"),
        pytest.param("resourceDiffThreshold", 1.5, False, True, id="great-difference"),
        pytest.param("midCPUThresholdPercent", 101, False, False, id="mid-above-hundred"),
        pytest.param("midStaticCPUReservedPercent", 150, False, True, id="static-above-hundred"),
        pytest.param("batchMemoryThresholdPercent", -1, False, False, id="negative-batch-cap"),
    ],
)
def test_colocation_ranges(field: str, value: float, admitted: bool, usable: bool) -> None:
    at_admission = validate_admission(convert({"nodeConfigs": [{field: value}]}, ColocationConfig))
    assert [e.field for e in at_admission] == ([] if admitted else [f"nodeConfigs[0].{field}"])
    at_runtime = validate_runtime(convert({field: value}, ColocationStrategy))
    assert [e.field for e in at_runtime] == ([] if usable else [field])


def test_an_empty_memory_policy_is_unusable() -> None:
    assert [e.field for e in validate_runtime(ColocationStrategy(metric_memory_collect_policy=""))] == [
        "metricMemoryCollectPolicy"
    ]


def test_threshold_and_burst_defaults() -> None:
    assert to_dict(defaults.THRESHOLD) == {
        "enable": False,
        "cpuSuppressThresholdPercent": 65,
        "cpuSuppressPolicy": "cpuset",
        "memoryEvictThresholdPercent": 70,
        "cpuEvictPolicy": "evictByRealLimit",
    }
    assert to_dict(defaults.CPU_BURST) == {
        "policy": "none",
        "cpuBurstPercent": 1000,
        "cfsQuotaBurstPercent": 300,
        "cfsQuotaBurstPeriodSeconds": -1,
        "sharePoolThresholdPercent": 50,
    }
    assert to_dict(defaults.SYSTEM_STRATEGY) == {"totalNetworkBandwidth": "0"}


# class -> groupIdentity, coreExpeller, wmarkRatio, wmarkScalePermill, wmarkMinAdj, catRangeEndPercent
QOS = {
    "LSR": (2, True, 95, 20, -25, 100),
    "LS": (2, True, 95, 20, -25, 100),
    "BE": (-1, False, 95, 20, 50, 30),
    "SYSTEM": (0, False, 0, 50, 0, 100),
    "LSE": (2, True, 95, 20, -25, 100),
}


@pytest.mark.parametrize("qos", list(QOS))
def test_qos_defaults(qos: str) -> None:
    identity, expeller, ratio, permill, adjust, end = QOS[qos]
    assert to_dict(defaults.resource_qos(qos)) == {
        "cpuQOS": {"enable": False, "groupIdentity": identity, "schedIdle": 0, "coreExpeller": expeller},
        "memoryQOS": {
            "enable": False,
            "minLimitPercent": 0,
            "lowLimitPercent": 0,
            "throttlingPercent": 0,
            "wmarkRatio": ratio,
            "wmarkScalePermill": permill,
            "wmarkMinAdj": adjust,
            "priorityEnable": 0,
            "priority": 0,
            "oomKillGroup": 0,
        },
        "blkioQOS": {"enable": False},
        "resctrlQOS": {
            "enable": False,
            "catRangeStartPercent": 0,
            "catRangeEndPercent": end,
            "mbaPercent": 100,
        },
        "networkQOS": {
            "enable": False,
            "ingressRequest": 0,
            "ingressLimit": 0,
            "egressRequest": 0,
            "egressLimit": 0,
        },
    }


def test_disabled_blocks() -> None:
    assert to_dict(defaults.NO_CPU_QOS) == {"groupIdentity": 0, "schedIdle": 0, "coreExpeller": False}
    assert to_dict(defaults.NO_RESCTRL_QOS) == {
        "catRangeStartPercent": 0,
        "catRangeEndPercent": 100,
        "mbaPercent": 100,
    }
    assert (defaults.NO_MEMORY_QOS.wmark_ratio, defaults.NO_MEMORY_QOS.wmark_scale_permill) == (0, 50)


def test_the_whole_qos_strategy() -> None:
    whole = defaults.qos_strategy()
    assert isinstance(whole.be_class, ResourceQOS)
    assert to_dict(whole)["policies"] == {"cpuPolicy": "groupIdentity", "netQOSPolicy": "tc"}
    assert to_dict(whole)["cgroupRoot"] == {"blkioQOS": {"enable": False}}


def test_defaults_pass_admission() -> None:
    assert slo_validation.validate_qos(QOSConfig(cluster_strategy=defaults.qos_strategy())) == []
    assert slo_validation.validate_threshold(ThresholdConfig(cluster_strategy=defaults.THRESHOLD)) == []
    assert slo_validation.validate_cpu_burst(CPUBurstConfig(cluster_strategy=defaults.CPU_BURST)) == []
    assert slo_validation.validate_system(SystemConfig(cluster_strategy=defaults.SYSTEM_STRATEGY)) == []


THRESHOLDS = [
    pytest.param({"cpuSuppressThresholdPercent": 101}, ["cpuSuppressThresholdPercent"], id="over-hundred"),
    pytest.param(
        {"memoryEvictThresholdPercent": 70, "memoryEvictLowerPercent": 70},
        ["memoryEvictThresholdPercent"],
        id="equal-pair",
    ),
    pytest.param({"memoryEvictThresholdPercent": 70}, [], id="half-a-pair"),
    pytest.param({"memoryAllocatableEvictThresholdPercent": 110}, [], id="allocatable-over-hundred"),
    pytest.param({"cpuEvictTimeWindowSeconds": 0}, ["cpuEvictTimeWindowSeconds"], id="no-window"),
    pytest.param({"allocatableEvictPriorityThreshold": 8000}, ["allocatableEvictPriorityThreshold"], id="prod-band"),
    pytest.param(
        {"cpuEvictBESatisfactionUpperPercent": 50, "cpuEvictBESatisfactionLowerPercent": 60},
        ["cpuEvictBESatisfactionUpperPercent"],
        id="inverted-pair",
    ),
]


@pytest.mark.parametrize(("strategy", "fields"), THRESHOLDS)
def test_threshold_admission(strategy: dict[str, Any], fields: list[str]) -> None:
    cluster = convert({"clusterStrategy": strategy}, ThresholdConfig)
    assert [e.field for e in slo_validation.validate_threshold(cluster)] == [f"clusterStrategy.{f}" for f in fields]
    node = convert({"nodeStrategies": [{"name": "a", **strategy}]}, ThresholdConfig)
    assert [e.field for e in slo_validation.validate_threshold(node)] == [f"nodeStrategies[0].{f}" for f in fields]


@pytest.mark.parametrize(
    ("block", "field", "value", "fine"),
    [
        ("cpuQOS", "groupIdentity", 3, False),
        ("cpuQOS", "schedIdle", 2, False),
        ("memoryQOS", "wmarkScalePermill", 0, False),
        ("memoryQOS", "wmarkMinAdj", 51, False),
        ("memoryQOS", "priority", 12, True),
        ("memoryQOS", "priority", 13, False),
        ("memoryQOS", "pageCacheLimitPercent", 101, False),
        ("resctrlQOS", "mbaPercent", 101, False),
        ("resctrlQOS", "catRangeEndPercent", 30, True),
    ],
)
def test_qos_admission(block: str, field: str, value: int, fine: bool) -> None:
    config = convert({"clusterStrategy": {"beClass": {block: {field: value}}}}, QOSConfig)
    expected = [] if fine else [f"clusterStrategy.beClass.{block}.{field}"]
    assert [e.field for e in slo_validation.validate_qos(config)] == expected


@pytest.mark.parametrize(
    ("field", "value", "fine"),
    [
        ("cpu_burst_percent", 0, False),
        ("cpu_burst_percent", 10000, True),
        ("cfs_quota_burst_percent", 99, False),
        ("cfs_quota_burst_period_seconds", -2, False),
        ("cfs_quota_burst_period_seconds", -1, True),
        ("share_pool_threshold_percent", 101, False),
    ],
)
def test_burst_admission(field: str, value: int, fine: bool) -> None:
    config = CPUBurstConfig(cluster_strategy=CPUBurstStrategy(**{field: value}))  # type: ignore[arg-type]
    assert (slo_validation.validate_cpu_burst(config) == []) is fine


@pytest.mark.parametrize(
    ("field", "value", "fine"),
    [
        ("minFreeKbytesFactor", 0, False),
        ("watermarkScaleFactor", 400, True),
        ("watermarkScaleFactor", 401, False),
        ("memcgReapBackGround", 2, False),
    ],
)
def test_system_admission(field: str, value: int, fine: bool) -> None:
    config = convert({"clusterStrategy": {field: value}}, SystemConfig)
    assert (slo_validation.validate_system(config) == []) is fine


def test_host_applications() -> None:
    config = decode(
        b'{"applications":[{"name":"a","cgroupPath":{"base":"CgroupRoot"}}],'
        b'"nodeConfigs":[{"name":"n","nodeSelector":{},"applications":[]}]}',
        HostApplicationConfig,
    )
    assert config.applications[0].cgroup_path is not None
    assert config.node_configs[0].applications == ()


RATIOS = CPUNormalizationStrategy(
    default_ratio=1.1,
    ratio_model={
        "X": CPUModelRatios(
            base_ratio=1.5,
            hyper_thread_enabled_ratio=1.0,
            turbo_enabled_ratio=1.8,
            hyper_thread_turbo_enabled_ratio=1.2,
        ),
        "Y": CPUModelRatios(base_ratio=9.0),
    },
)


@pytest.mark.parametrize(
    ("model", "hyper_thread", "turbo", "ratio"),
    [
        ("X", False, False, 1.5),
        ("X", True, False, 1.0),
        ("X", False, True, 1.8),
        ("X", True, True, 1.2),
        ("Y", True, True, 1.1),
        ("Z", False, False, 1.1),
        ("Y", False, False, None),
    ],
    ids=["base", "hyper-thread", "turbo", "both", "missing-field", "missing-model", "out-of-range"],
)
def test_cpu_normalization_ratio(model: str, hyper_thread: bool, turbo: bool, ratio: float | None) -> None:
    found = cpu_normalization_ratio(RATIOS, model, hyper_thread=hyper_thread, turbo=turbo)
    assert found == ratio if ratio is not None else isinstance(found, FieldError)


def test_a_cpu_without_any_ratio_is_an_error() -> None:
    found = cpu_normalization_ratio(CPUNormalizationConfig(), "X", hyper_thread=False, turbo=False)
    assert isinstance(found, FieldError)
    assert "X" in found.field
