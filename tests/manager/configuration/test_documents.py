"""The documents of slo-controller-config: complete strategies from partial text, and what is passed over on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from koord.api.config.slo import defaults, slo_documents
from koord.api.model import to_dict
from koord.manager.configuration import documents
from koord.manager.configuration.documents import ParsedDocument, RejectedDocument


def good(result: ParsedDocument[Any] | RejectedDocument) -> Any:
    assert isinstance(result, ParsedDocument), result
    return result.value


def selected(**fields: Any) -> dict[str, Any]:
    return {"name": "a", "nodeSelector": {"matchLabels": {"g": "a"}}, **fields}


def words(result: ParsedDocument[Any] | RejectedDocument) -> list[tuple[str, str]]:
    assert isinstance(result, ParsedDocument), result
    return [(remark.field, remark.rule) for remark in result.remarks]


EVERY: list[tuple[Callable[[str], Any], str]] = [
    (documents.parse_colocation, "colocation"),
    (documents.parse_threshold, "threshold"),
    (documents.parse_qos, "qos"),
    (documents.parse_cpu_burst, "cpu-burst"),
    (documents.parse_system, "system"),
    (documents.parse_host_applications, "host-application"),
    (documents.parse_cpu_normalization, "cpu-normalization"),
    (documents.parse_resource_amplification, "resource-amplification"),
]


@pytest.mark.parametrize(("parse", "name"), [pytest.param(p, n, id=n) for p, n in EVERY])
def test_no_text_an_empty_object_and_null_all_mean_the_defaults(parse: Callable[[str], Any], name: str) -> None:
    default = good(parse(""))
    assert good(parse("{}")) == default
    assert good(parse("null")) == default
    assert default.nodes == ()


@pytest.mark.parametrize(("parse", "name"), [pytest.param(p, n, id=n) for p, n in EVERY])
@pytest.mark.parametrize("text", ["{", "[1]", '{"a":1,}', "yes"])
def test_what_is_no_object_is_unread(parse: Callable[[str], Any], name: str, text: str) -> None:
    result = parse(text)
    assert isinstance(result, RejectedDocument)
    assert result.is_unreadable


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"clusterStrategy": {}}, id="empty"),
        pytest.param({"clusterStrategy": None}, id="null"),
    ],
)
def test_a_cluster_strategy_that_says_nothing_is_the_default(given: dict[str, Any]) -> None:
    assert good(documents.parse_threshold(json.dumps(given))).cluster == defaults.THRESHOLD


def test_a_cluster_strategy_lies_over_the_defaults_and_a_node_strategy_over_both() -> None:
    text = json.dumps(
        {
            "clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 60},
            "nodeStrategies": [selected(cpuEvictBEUsageThresholdPercent=80)],
        }
    )
    layers = good(documents.parse_threshold(text))
    cluster = {
        "enable": True,
        "cpuSuppressThresholdPercent": 60,
        "cpuSuppressPolicy": "cpuset",
        "memoryEvictThresholdPercent": 70,
        "cpuEvictPolicy": "evictByRealLimit",
    }
    assert to_dict(layers.for_node({})) == cluster
    assert to_dict(layers.for_node({"g": "a"})) == {**cluster, "cpuEvictBEUsageThresholdPercent": 80}


def test_qos_says_exactly_what_was_given() -> None:
    text = '{"clusterStrategy":{"beClass":{"cpuQOS":{"enable":true}}}}'
    assert to_dict(good(documents.parse_qos(text)).cluster) == {"beClass": {"cpuQOS": {"enable": True}}}


@pytest.mark.parametrize(
    ("entry", "bandwidth"),
    [
        pytest.param({}, "600M", id="no-setting-is-the-clusters-strategy"),
        pytest.param({"minFreeKbytesFactor": 100}, "0", id="another-setting-makes-it-zero"),
        pytest.param({"MinFreeKbytesFactor": None}, "0", id="naming-one-is-enough"),
        pytest.param({"totalNetworkBandwidth": "1G"}, "1G", id="stated"),
    ],
)
def test_the_bandwidth_of_a_node_entry(entry: dict[str, Any], bandwidth: str) -> None:
    text = json.dumps({"clusterStrategy": {"totalNetworkBandwidth": "600M"}, "nodeStrategies": [selected(**entry)]})
    assert good(documents.parse_system(text)).for_node({"g": "a"}).total_network_bandwidth == bandwidth


def test_host_applications_of_an_entry_replace_the_list_even_with_none() -> None:
    text = json.dumps({"applications": [{"name": "nginx"}], "nodeConfigs": [selected(applications=[])]})
    layers = good(documents.parse_host_applications(text))
    assert [a.name for a in layers.for_node({})] == ["nginx"]
    assert layers.for_node({"g": "a"}) == ()


def test_an_unusable_cluster_value_spoils_the_document_and_one_of_an_entry_only_the_entry() -> None:
    spoiled = documents.parse_colocation('{"metricAggregateDurationSeconds":0}')
    assert isinstance(spoiled, RejectedDocument)
    assert not spoiled.is_unreadable
    assert spoiled.error.field == "metricAggregateDurationSeconds"
    given = {"enable": True, "nodeConfigs": [selected(degradeTimeMinutes=0, cpuReclaimThresholdPercent=10)]}
    result = documents.parse_colocation(json.dumps(given))
    assert good(result).for_node({"g": "a"}) == good(result).cluster
    assert words(result) == [
        ("nodeConfigs[0].degradeTimeMinutes", "must be 1 or greater; the cluster's strategy is used for these nodes")
    ]


def test_an_entry_with_one_field_inherits_the_others() -> None:
    given = {"enable": False, "cpuReclaimThresholdPercent": 70, "nodeConfigs": [selected(enable=True)]}
    node = good(documents.parse_colocation(json.dumps(given))).for_node({"g": "a"})
    assert (node.enable, node.cpu_reclaim_threshold_percent) == (True, 70)
    assert node.memory_reclaim_threshold_percent == slo_documents.DEFAULT_COLOCATION.memory_reclaim_threshold_percent


def test_a_bad_selector_is_passed_over_and_the_next_entry_still_counts() -> None:
    bad = {"name": "bad", "nodeSelector": {"matchExpressions": [{"key": "g", "operator": "Huh"}]}, "enable": True}
    none = {"name": "none", "enable": True}
    every = {"name": "every", "nodeSelector": {}, "cpuSuppressThresholdPercent": 40}
    result = documents.parse_threshold(json.dumps({"nodeStrategies": [bad, none, every]}))
    assert good(result).for_node({}).cpu_suppress_threshold_percent == 40
    assert [layer.name for layer in good(result).nodes] == ["none", "every"]
    assert words(result) == [
        ("nodeStrategies[0].nodeSelector", '"Huh" is not a valid label selector operator; the entry is passed over')
    ]


def test_what_has_no_effect_or_does_not_fit_is_remarked() -> None:
    given = {"enabled": True, "memoryEvictThresholdPercent": 10, "memoryEvictLowerPercent": 20}
    result = documents.parse_threshold(json.dumps({"clusterStrategy": given}))
    assert good(result).cluster.memory_evict_lower_percent == 20, "used all the same"
    assert words(result) == [
        ("clusterStrategy.enabled", "is not a known setting and has no effect: did you mean enable?"),
        (
            "clusterStrategy.memoryEvictThresholdPercent",
            "must be greater than clusterStrategy.memoryEvictLowerPercent (20)",
        ),
    ]


@pytest.mark.parametrize(
    ("parse", "given", "field", "rule"),
    [
        pytest.param(
            documents.parse_threshold,
            {"clusterStrategy": {"cpuSuppressThresholdPercent": 160}},
            "clusterStrategy.cpuSuppressThresholdPercent",
            "must be from 1 to 100",
            id="above-the-schema",
        ),
        pytest.param(
            documents.parse_threshold,
            {"nodeStrategies": [selected(memoryEvictThresholdPercent=0)]},
            "nodeStrategies[0].memoryEvictThresholdPercent",
            "must be from 1 to 100",
            id="evicts-at-once",
        ),
        pytest.param(
            documents.parse_qos,
            {"clusterStrategy": {"beClass": {"blkioQOS": {"blocks": [{"ioCfg": {"ioWeightPercent": 0}}]}}}},
            "clusterStrategy.beClass.blkioQOS.blocks[0].ioCfg.ioWeightPercent",
            "must be from 1 to 100",
            id="deep-inside",
        ),
        pytest.param(
            documents.parse_cpu_burst,
            {"clusterStrategy": {"policy": "sometimes"}},
            "clusterStrategy.policy",
            "must be one of 'none', 'cpuBurstOnly', 'cfsQuotaBurstOnly', 'auto'",
            id="unknown-policy",
        ),
        pytest.param(
            documents.parse_system,
            {"clusterStrategy": {"totalNetworkBandwidth": "-1M"}},
            "clusterStrategy.totalNetworkBandwidth",
            "must not be negative",
            id="negative-quantity",
        ),
        pytest.param(
            documents.parse_host_applications,
            {"applications": [{"name": "a", "qos": "BEST"}]},
            "applications[0].qos",
            "must be one of 'LSE', 'LSR', 'LS', 'BE', 'SYSTEM'",
            id="unknown-class",
        ),
        pytest.param(
            documents.parse_colocation,
            {"metricMemoryCollectPolicy": "all"},
            "metricMemoryCollectPolicy",
            "must be one of 'usageWithoutPageCache', 'usageWithHotPageCache', 'usageWithPageCache'",
            id="a-policy-that-NodeMetric-refuses",
        ),
    ],
)
def test_a_value_that_no_node_can_use_rejects_the_document(
    parse: Callable[[str], Any], given: dict[str, Any], field: str, rule: str
) -> None:
    result = parse(json.dumps(given))
    assert isinstance(result, RejectedDocument)
    assert not result.is_unreadable
    assert (result.error.field, result.error.rule) == (field, rule)
