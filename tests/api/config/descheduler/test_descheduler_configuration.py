"""The descheduler's configuration: defaults, merging of plugins, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.config.decode import decode_strict
from koord.api.config.descheduler.configuration import (
    DESCHEDULER_PLUGIN_CATALOG,
    DeschedulerConfiguration,
    complete_bind_address,
    defaulted,
    typed_args,
    validate,
)
from koord.api.config.descheduler.plugin_args import MigrationControllerArgs, evict_qps
from koord.api.model import to_dict
from tests.api.model_strategies import model_values

DEFAULTS: dict[str, dict[str, Any]] = {
    "MigrationController": {
        "maxConcurrentReconciles": 1,
        "evictFailedBarePods": False,
        "evictAllBarePods": False,
        "evictLocalStoragePods": False,
        "evictSystemCriticalPods": False,
        "ignorePvcPods": False,
        "maxMigratingPerNode": 2,
        "objectLimiters": {"workload": {"duration": "5m"}},
        "defaultJobMode": "ReservationFirst",
        "defaultJobTTL": "5m",
        "schedulerNames": ["koord-scheduler"],
        "evictQPS": 10.0,
        "evictBurst": 1,
        "evictionPolicy": "Eviction",
        "arbitrationArgs": {"enabled": True, "interval": "500ms"},
    },
    "LowNodeLoad": {
        "paused": False,
        "dryRun": False,
        "numberOfNodes": 0,
        "nodeMetricExpirationSeconds": 180,
        "nodeFit": True,
        "useDeviationThresholds": False,
        "resourceWeights": {"cpu": 1, "memory": 1},
        "anomalyCondition": {"timeout": "1m", "consecutiveAbnormalities": 5, "consecutiveNormalities": 3},
        "detectorCacheTimeout": "5m",
    },
    "FragmentationAware": {
        "paused": False,
        "dryRun": False,
        "nodeFit": True,
        "resources": ["cpu", "memory"],
        "imbalanceThreshold": 0.15,
        "minImprovementThreshold": 0.02,
    },
    "ScaleDownBinPack": {
        "paused": False,
        "strategy": "CalculateOnly",
        "resources": ["cpu", "memory"],
        "resourceWeights": {"cpu": 1.0, "memory": 1.0},
    },
}
LEVELS = [{"name": "gold", "nodeSelector": {}}, {"name": "spot", "nodeSelector": {"matchLabels": {"a": "b"}}}]


@pytest.mark.parametrize("plugin", list(DEFAULTS))
def test_defaults(plugin: str) -> None:
    args = typed_args(plugin, None)
    assert not isinstance(args, list), args
    assert to_dict(args) == DEFAULTS[plugin]


def test_custom_priority_defaults() -> None:
    args = typed_args("CustomPriority", {"evictionOrder": LEVELS})
    assert not isinstance(args, list), args
    made = to_dict(args)
    assert {k: made[k] for k in ("mode", "nodeFit", "autoCordon", "paused", "dryRun")} == {
        "mode": "BestEffort",
        "nodeFit": True,
        "autoCordon": False,
        "paused": False,
        "dryRun": False,
    }


@pytest.mark.parametrize(
    ("plugin", "given", "kept"),
    [
        pytest.param(
            "MigrationController",
            {"arbitrationArgs": {}},
            {"arbitrationArgs": {"interval": "500ms"}},
            id="given-arbitration-is-off",
        ),
        pytest.param("MigrationController", {"evictQPS": "2.5"}, {"evictQPS": "2.5"}, id="rate-as-text"),
        pytest.param(
            "MigrationController",
            {"objectLimiters": {"namespace": {"duration": "1m", "maxMigrating": "50%", "burst": 2}}},
            {"objectLimiters": {"namespace": {"duration": "1m", "maxMigrating": "50%", "burst": 2}}},
            id="own-limiter-replaces",
        ),
        pytest.param(
            "LowNodeLoad",
            {"highThresholds": {"cpu": 65, "nvidia.com/gpu": 80}, "resourceWeights": {"memory": 0, "cpu": 3}},
            {"resourceWeights": {"memory": 1, "cpu": 3, "nvidia.com/gpu": 1}},
            id="weights-for-every-threshold",
        ),
        pytest.param(
            "LowNodeLoad",
            {
                "highThresholds": {"cpu": 80},
                "useDeviationThresholds": True,
                "anomalyCondition": {"consecutiveAbnormalities": 9},
                "nodePools": [{"name": "p", "anomalyCondition": {"consecutiveNormalities": 7}}],
            },
            {
                "nodePools": [
                    {
                        "name": "p",
                        "highThresholds": {"cpu": 80.0},
                        "resourceWeights": {"cpu": 1, "memory": 1},
                        "anomalyCondition": {"consecutiveAbnormalities": 9, "consecutiveNormalities": 7},
                    }
                ]
            },
            id="pools-inherit-all-but-deviation",
        ),
    ],
)
def test_what_is_given_stays(plugin: str, given: dict[str, Any], kept: dict[str, Any]) -> None:
    args = typed_args(plugin, given)
    assert not isinstance(args, list), args
    made = to_dict(args)
    assert {k: made[k] for k in kept} == kept


@pytest.mark.parametrize(
    ("plugin", "given", "field"),
    [
        ("MigrationController", {"maxConcurrentReconciles": 0}, "maxConcurrentReconciles"),
        ("MigrationController", {"maxMigratingPerNode": -1}, "maxMigratingPerNode"),
        ("MigrationController", {"maxMigratingPerWorkload": "half"}, "maxMigratingPerWorkload"),
        ("MigrationController", {"maxUnavailablePerWorkload": -1}, "maxUnavailablePerWorkload"),
        ("MigrationController", {"defaultJobMode": "Later"}, "defaultJobMode"),
        ("MigrationController", {"defaultJobTTL": "-1s"}, "defaultJobTTL"),
        ("MigrationController", {"evictQPS": "fast"}, "evictQPS"),
        ("MigrationController", {"evictQPS": 0}, "evictQPS"),
        ("MigrationController", {"evictBurst": 0}, "evictBurst"),
        ("MigrationController", {"evictionPolicy": "Kill"}, "evictionPolicy"),
        ("MigrationController", {"namespaces": {"include": ["a"], "exclude": ["b"]}}, "namespaces"),
        ("MigrationController", {"skipEvictionGates": ["PVC", "Everything"]}, "skipEvictionGates[1]"),
        ("MigrationController", {"objectLimiters": {"node": {"duration": "1m"}}}, "objectLimiters"),
        ("LowNodeLoad", {"numberOfNodes": -1}, "numberOfNodes"),
        ("LowNodeLoad", {"nodeMetricExpirationSeconds": 0}, "nodeMetricExpirationSeconds"),
        ("LowNodeLoad", {"highThresholds": {"cpu": -1}}, "nodePools[0].highThresholds[cpu]"),
        (
            "LowNodeLoad",
            {"highThresholds": {"cpu": 50}, "lowThresholds": {"cpu": 60}},
            "nodePools[0].lowThresholds[cpu]",
        ),
        (
            "LowNodeLoad",
            {"highThresholds": {"cpu": 50}, "prodHighThresholds": {"cpu": 60}},
            "nodePools[0].ProdHighThresholds[cpu]",
        ),
        (
            "LowNodeLoad",
            {"prodHighThresholds": {"cpu": 50}, "prodLowThresholds": {"cpu": 60}},
            "nodePools[0].prodLowThresholds[cpu]",
        ),
        (
            "LowNodeLoad",
            {"nodePools": [{"highThresholds": {"cpu": 10}, "lowThresholds": {"cpu": 20}}]},
            "nodePools[1].lowThresholds[cpu]",
        ),
        (
            "LowNodeLoad",
            {"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}},
            "nodeSelector.matchExpressions[0].operator",
        ),
        ("LowNodeLoad", {"anomalyCondition": {}}, "nodePools[0].anomalyDetectionThresholds"),
        ("CustomPriority", {"evictionOrder": LEVELS[:1]}, "evictionOrder"),
        ("CustomPriority", {"evictionOrder": [LEVELS[0], LEVELS[0]]}, "evictionOrder[1]"),
        ("CustomPriority", {"evictionOrder": [LEVELS[0], {"name": "x"}]}, "evictionOrder[1].nodeSelector"),
        ("CustomPriority", {"evictionOrder": LEVELS, "mode": "Fast"}, "mode"),
        ("CustomPriority", {"evictionOrder": LEVELS, "podSelectors": [{"selector": {}}]}, "podSelectors[0].name"),
        ("FragmentationAware", {"imbalanceThreshold": -0.1}, "imbalanceThreshold"),
        ("FragmentationAware", {"resources": ["cpu", "cpu"]}, "resources[1]"),
        ("ScaleDownBinPack", {"strategy": "EvictDirectly"}, "maxPodsToEvict"),
        ("ScaleDownBinPack", {"strategy": "Guess"}, "strategy"),
        ("ScaleDownBinPack", {"resourceWeights": {"cpu": 0}}, "resourceWeights[cpu]"),
        ("LowNodeLoad", {"highTresholds": {}}, "highTresholds"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_refusals_name_the_field(plugin: str, given: dict[str, Any], field: str) -> None:
    wrong = typed_args(plugin, given)
    assert isinstance(wrong, list)
    assert [e.field for e in wrong] == [field]


@pytest.mark.parametrize("plugin", list(DESCHEDULER_PLUGIN_CATALOG))
@settings(max_examples=15)
@given(data=st.data())
def test_defaulting_twice_changes_nothing(plugin: str, data: st.DataObject) -> None:
    kind = DESCHEDULER_PLUGIN_CATALOG[plugin]
    once = kind.defaulted(data.draw(model_values(kind.model)))
    assert kind.defaulted(once) == once


@pytest.mark.parametrize(("given", "rate"), [("2.5", 2.5), (3, 3.0), ("fast", 0.0), (None, 0.0)])
def test_rate(given: Any, rate: float) -> None:
    assert evict_qps(MigrationControllerArgs(evict_qps=given)) == rate


def test_an_empty_configuration_is_complete_and_valid() -> None:
    config = defaulted(DeschedulerConfiguration())
    assert validate(config) == []
    (profile,) = config.profiles
    assert profile.name == "koord-descheduler"
    assert profile.plugins is not None
    assert to_dict(profile.plugins) == {
        "deschedule": {},
        "balance": {},
        "evict": {"enabled": [{"name": "MigrationController"}]},
        "filter": {"enabled": [{"name": "MigrationController"}]},
    }
    assert [c.name for c in profile.plugin_config] == ["MigrationController"]
    assert config.healthz_bind_address == config.metrics_bind_address == "0.0.0.0:10251"
    assert config.leader_election.resource_name == "koord-descheduler"
    assert config.enable_contention_profiling is True


def test_enabled_plugins_get_arguments() -> None:
    given = decode_strict(
        {"profiles": [{"plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}}}]}, DeschedulerConfiguration
    )
    assert isinstance(given, DeschedulerConfiguration)
    made = defaulted(given)
    assert [c.name for c in made.profiles[0].plugin_config] == ["LowNodeLoad", "MigrationController"]
    assert validate(made) == []


@pytest.mark.parametrize(
    ("given", "address"),
    [
        (None, "0.0.0.0:10251"),
        (":8080", "0.0.0.0:8080"),
        ("127.0.0.1", "127.0.0.1:10251"),
        ("::1", "[::1]:10251"),
        ("host:9", "host:9"),
    ],
)
def test_bind_address(given: str | None, address: str) -> None:
    assert complete_bind_address(given) == address


@pytest.mark.parametrize(
    ("document", "fields"),
    [
        pytest.param({"profiles": [{"name": "a"}, {"name": "a"}]}, ["profiles[1]"], id="same-name"),
        pytest.param({"profiles": [{"name": "a"}, {}]}, ["profiles[1].name"], id="nameless"),
        pytest.param({"healthzBindAddress": "nowhere"}, ["healthzBindAddress"], id="address"),
        pytest.param({"maxNoOfPodsToEvictTotal": -1}, ["maxNoOfPodsToEvictTotal"], id="negative-limit"),
        pytest.param({"deschedulingInterval": "-1s"}, ["deschedulingInterval"], id="negative-interval"),
        pytest.param(
            {"profiles": [{"plugins": {"evict": {"disabled": [{"name": "*"}]}}}]},
            ["profiles[0].plugins.evict.enabled"],
            id="no-evictor",
        ),
        pytest.param(
            {"profiles": [{"plugins": {"evict": {"enabled": [{"name": "DefaultEvictor"}]}}}]},
            ["profiles[0].plugins.evict.enabled"],
            id="two-evictors",
        ),
        pytest.param(
            {"profiles": [{"pluginConfig": [{"name": "MigrationController", "args": {"evictBurst": 0}}]}]},
            ["profiles[0].pluginConfig[0].args.evictBurst"],
            id="plugin-args",
        ),
    ],
)
def test_configuration_refusals(document: dict[str, Any], fields: list[str]) -> None:
    given = decode_strict(document, DeschedulerConfiguration)
    assert isinstance(given, DeschedulerConfiguration), given
    assert [e.field for e in validate(defaulted(given))] == fields
