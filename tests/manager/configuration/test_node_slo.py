"""A node's NodeSLO combines defaults, layers, the bandwidth annotation, and stored values of unreadable documents."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.config.slo import defaults
from koord.api.config.slo.slo_documents import InterferenceStrategy
from koord.api.koordinator.slo import Extensions, HostApplicationSpec, NodeSLOSpec, ResourceQOSStrategy
from koord.api.model import convert, to_dict
from koord.manager.colocation.strategy import LayeredStrategy, NodeStrategyLayer
from koord.manager.configuration.node_slo import NodeSloSection, NodeSloSettings, decide_node_slo
from koord.values.selector import NOTHING, Selector

BANDWIDTH = "node.koordinator.sh/network-bandwidth"
DEFAULT_SPEC = {
    "resourceUsedThresholdWithBE": {
        "enable": False,
        "cpuSuppressThresholdPercent": 65,
        "cpuSuppressPolicy": "cpuset",
        "memoryEvictThresholdPercent": 70,
        "cpuEvictPolicy": "evictByRealLimit",
    },
    "resourceQOSStrategy": {},
    "cpuBurstStrategy": {
        "policy": "none",
        "cpuBurstPercent": 1000,
        "cfsQuotaBurstPercent": 300,
        "cfsQuotaBurstPeriodSeconds": -1,
        "sharePoolThresholdPercent": 50,
    },
    "systemStrategy": {"totalNetworkBandwidth": "0"},
}


def settings(**sections: Any) -> NodeSloSettings:
    plain: dict[str, Any] = {
        "threshold": NodeSloSection(LayeredStrategy(cluster=defaults.THRESHOLD)),
        "qos": NodeSloSection(LayeredStrategy(cluster=ResourceQOSStrategy())),
        "cpu_burst": NodeSloSection(LayeredStrategy(cluster=defaults.CPU_BURST)),
        "system": NodeSloSection(LayeredStrategy(cluster=defaults.SYSTEM_STRATEGY)),
        "host_applications": NodeSloSection(LayeredStrategy(cluster=())),
        "interference": NodeSloSection(LayeredStrategy(cluster=InterferenceStrategy())),
    }
    return NodeSloSettings(**{**plain, **sections})


def test_without_settings_the_defaults_are_written() -> None:
    decision = decide_node_slo(settings(), {}, {}, None)
    assert to_dict(decision.spec) == DEFAULT_SPEC
    assert set(decision.sources.values()) == {"cluster"}


def test_the_first_layer_that_matches_wins_alone() -> None:
    strict = convert({"enable": True, "cpuSuppressThresholdPercent": 40}, type(defaults.THRESHOLD))
    lax = convert({"enable": True, "memoryEvictThresholdPercent": 99}, type(defaults.THRESHOLD))
    layers = LayeredStrategy(
        cluster=defaults.THRESHOLD,
        nodes=(
            NodeStrategyLayer(name="nobody", selector=NOTHING, strategy=lax),
            NodeStrategyLayer(name="strict", selector=Selector.from_label_selector({"g": "a"}), strategy=strict),
            NodeStrategyLayer(name="", selector=Selector.from_label_selector({}), strategy=lax),
        ),
    )
    given = settings(threshold=NodeSloSection(layers))
    first = decide_node_slo(given, {"g": "a"}, {}, None)
    assert first.spec.resource_used_threshold_with_be == strict
    assert first.sources["resourceUsedThresholdWithBE"] == "strict"
    rest = decide_node_slo(given, {}, {}, None)
    assert rest.spec.resource_used_threshold_with_be == lax
    assert rest.sources["resourceUsedThresholdWithBE"] == "(unnamed)"


@pytest.mark.parametrize(
    ("annotation", "bandwidth", "source"),
    [
        pytest.param(None, "600M", "cluster", id="none"),
        pytest.param("10M", "10M", "cluster", id="good"),
        pytest.param("1000M", "1G", "cluster", id="as-printed"),
        pytest.param("wrong-format", None, BANDWIDTH, id="unreadable-takes-the-strategy-away"),
        pytest.param("-5M", None, BANDWIDTH, id="negative-too"),
    ],
)
def test_bandwidth_annotation(annotation: str | None, bandwidth: str | None, source: str) -> None:
    system = convert({"totalNetworkBandwidth": "600M", "minFreeKbytesFactor": 120}, type(defaults.SYSTEM_STRATEGY))
    given = settings(system=NodeSloSection(LayeredStrategy(cluster=system)))
    decision = decide_node_slo(given, {}, {} if annotation is None else {BANDWIDTH: annotation}, None)
    made = decision.spec.system_strategy
    assert (None if made is None else made.total_network_bandwidth) == bandwidth
    assert decision.sources["systemStrategy"] == source
    assert (decision.flaw is None) == (bandwidth is not None)


def test_a_network_block_is_written_as_the_schema_would_fill_it() -> None:
    qos = convert({"lsClass": {"networkQOS": {"enable": True, "ingressRequest": "7M"}}}, ResourceQOSStrategy)
    spec = decide_node_slo(settings(qos=NodeSloSection(LayeredStrategy(cluster=qos))), {}, {}, None).spec
    assert to_dict(spec)["resourceQOSStrategy"]["lsClass"]["networkQOS"] == {
        "enable": True,
        "ingressRequest": "7M",
        "ingressLimit": 100,
        "egressRequest": 0,
        "egressLimit": 100,
    }


def test_a_document_that_was_never_readable_leaves_a_node_as_it_is() -> None:
    stored = convert(
        {
            "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressThresholdPercent": 30},
            "hostApplications": [{"name": "nginx"}],
            "extensions": {"Object": {"theirs": 1}},
        },
        NodeSLOSpec,
    )
    unread = settings(
        threshold=NodeSloSection(LayeredStrategy(cluster=defaults.THRESHOLD), is_readable=False),
        host_applications=NodeSloSection(
            LayeredStrategy[tuple[HostApplicationSpec, ...]](cluster=()), is_readable=False
        ),
        system=NodeSloSection(LayeredStrategy(cluster=defaults.SYSTEM_STRATEGY), is_readable=False),
    )
    kept = decide_node_slo(unread, {}, {}, stored)
    assert kept.spec.resource_used_threshold_with_be == stored.resource_used_threshold_with_be
    assert kept.spec.host_applications == stored.host_applications
    assert kept.spec.extensions == stored.extensions
    assert kept.sources["resourceUsedThresholdWithBE"] == "stored"
    assert kept.spec.system_strategy == defaults.SYSTEM_STRATEGY, "there was nothing to keep"
    fresh = decide_node_slo(unread, {}, {}, None)
    assert to_dict(fresh.spec) == DEFAULT_SPEC


def test_interference_is_an_extension_beside_those_of_others() -> None:
    evict = InterferenceStrategy(action="evict")
    layers = LayeredStrategy(
        cluster=InterferenceStrategy(action="throttle", throttle_percent=20),
        nodes=(
            NodeStrategyLayer(name="strict", selector=Selector.from_label_selector({"tier": "strict"}), strategy=evict),
        ),
    )
    stated = settings(interference=NodeSloSection(layers))
    others = NodeSLOSpec(extensions=Extensions(object={"acme": {"a": 1}}))
    decision = decide_node_slo(stated, {}, {}, others)
    assert to_dict(decision.spec)["extensions"] == {
        "Object": {"acme": {"a": 1}, "interference": {"action": "throttle", "throttlePercent": 20}}
    }
    assert decision.sources["extensions.interference"] == "cluster"
    strict = decide_node_slo(stated, {"tier": "strict"}, {}, None)
    assert to_dict(strict.spec)["extensions"] == {"Object": {"interference": {"action": "evict"}}}
    assert strict.sources["extensions.interference"] == "strict"
    again = decide_node_slo(settings(), {}, {}, decision.spec)
    assert to_dict(again.spec)["extensions"] == {"Object": {"acme": {"a": 1}}}, "what others wrote stays"
    alone = decide_node_slo(settings(), {}, {}, strict.spec)
    assert to_dict(alone.spec).get("extensions") in (None, {}, {"Object": None})
    unread = settings(interference=NodeSloSection(layers, is_readable=False))
    assert decide_node_slo(unread, {}, {}, strict.spec).spec.extensions == strict.spec.extensions
