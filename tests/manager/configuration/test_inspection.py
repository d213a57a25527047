"""What can be said about slo-controller-config without a cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.manager.configuration.inspection import REFUSED_BY_WEBHOOK, inspect_slo_config

Plain = dict[str, Any]
Found = tuple[str, str, str, str]


def found(**documents: Any) -> list[Found]:
    data = {
        key.replace("_", "-"): value if isinstance(value, str) else json.dumps(value)
        for key, value in documents.items()
    }
    return [(f.severity, f.key, f.error.field, f.error.rule) for f in inspect_slo_config(data)]


def entry(name: str = "a", **fields: Any) -> Plain:
    return {"name": name, "nodeSelector": {"matchLabels": {"g": name}}, **fields}


def network(**classes: Plain) -> Plain:
    return {"clusterStrategy": {f"{name}Class": {"networkQOS": shares} for name, shares in classes.items()}}


def test_nothing_is_fine() -> None:
    assert found() == []
    assert found(colocation_config="", resource_qos_config="") == []


@pytest.mark.parametrize(
    ("document", "text", "path", "rule"),
    [
        pytest.param("colocation_config", "{", "", "is not JSON: it ends too early", id="no-json"),
        pytest.param(
            "cpu_burst_config",
            {"clusterStrategy": {"policy": "Auto"}},
            "clusterStrategy.policy",
            "must be one of 'none', 'cpuBurstOnly', 'cfsQuotaBurstOnly', 'auto'",
            id="unknown-word",
        ),
        pytest.param(
            "host_application_config",
            {"nodeConfigs": [entry(applications=[{"name": "x", "qos": "ls"}])]},
            "nodeConfigs[0].applications[0].qos",
            "must be one of 'LSE', 'LSR', 'LS', 'BE', 'SYSTEM'",
            id="unknown-class",
        ),
        pytest.param(
            "resource_threshold_config",
            {"nodeStrategies": [entry(cpuSuppressThresholdPercent=101)]},
            "nodeStrategies[0].cpuSuppressThresholdPercent",
            "must be from 1 to 100",
            id="out-of-range",
        ),
        pytest.param(
            "cpu_normalization_config",
            {"nodeConfigs": [entry(ratioModel={"Xeon 8.1": {"baseRatio": 0.5}})]},
            "nodeConfigs[0].ratioModel[Xeon 8.1].baseRatio",
            "must be from 1.0 to 5.0",
            id="ratio",
        ),
        pytest.param(
            "resource_amplification_config",
            {"resourceAmplificationRatio": {"cpu": 0.9}},
            "resourceAmplificationRatio[cpu]",
            "must be 1 or greater",
            id="amplification",
        ),
        pytest.param(
            "system_config",
            {"clusterStrategy": {"totalNetworkBandwith": "1G"}},
            "clusterStrategy.totalNetworkBandwith",
            "is not a known setting and has no effect: did you mean totalNetworkBandwidth?",
            id="misspelt",
        ),
        pytest.param(
            "colocation_config",
            {"nodeConfigs": [{"name": "a"}]},
            "nodeConfigs[0].nodeSelector",
            "is missing: the entry is for no node at all",
            id="no-selector",
        ),
        pytest.param(
            "colocation_config",
            {"nodeConfigs": [entry("a"), entry("a")]},
            "nodeConfigs",
            "has entries for the same nodes: a, a; the first one wins",
            id="overlap",
        ),
    ],
)
def test_errors(document: str, text: Any, path: str, rule: str) -> None:
    assert found(**{document: text}) == [("error", document.replace("_", "-"), path, rule)]


def test_an_unknown_key_is_told_with_the_one_it_resembles() -> None:
    assert found(cpu_normalisation_config="{}") == [
        ("error", "cpu-normalisation-config", "", "is not a known key: did you mean cpu-normalization-config?")
    ]
    assert found(zzz="")[0][3].startswith("is not a known key; the keys are colocation-config, ")


@pytest.mark.parametrize(
    ("documents", "warning"),
    [
        pytest.param(
            {"resource_threshold_config": {"clusterStrategy": {"memoryEvictThresholdPercent": 70}}},
            (
                "resource-threshold-config",
                "clusterStrategy.memoryEvictThresholdPercent",
                f"stands without memoryEvictLowerPercent; {REFUSED_BY_WEBHOOK}",
            ),
            id="one-of-two-bounds",
        ),
        pytest.param(
            {"colocation_config": {"nodeConfigs": [entry(enable=True)]}},
            (
                "colocation-config",
                "nodeConfigs[0].enable",
                "has no effect on batch and mid resources while enable is false for the cluster",
            ),
            id="on-under-off",
        ),
        pytest.param(
            {"colocation_config": {"enable": True, "nodeConfigs": [{"name": "a", "nodeSelector": {}}]}},
            (
                "colocation-config",
                "nodeConfigs[0].nodeSelector",
                f"is empty: the entry is for every node; {REFUSED_BY_WEBHOOK}",
            ),
            id="every-node",
        ),
        pytest.param(
            {
                "system_config": {
                    "clusterStrategy": {"totalNetworkBandwidth": "10G"},
                    "nodeStrategies": [entry(minFreeKbytesFactor=100)],
                }
            },
            (
                "system-config",
                "nodeStrategies[0].totalNetworkBandwidth",
                "is not stated, so it becomes 0 and not the cluster's 10G: state it here",
            ),
            id="bandwidth-lost",
        ),
        pytest.param(
            {"resource_qos_config": "{}"},
            ("resource-qos-config", "", f"stands without a system-config; {REFUSED_BY_WEBHOOK}"),
            id="qos-alone",
        ),
        pytest.param(
            {"resource_qos_config": network(ls={"ingressRequest": "50M"}), "system_config": "{}"},
            (
                "resource-qos-config",
                "",
                f"states network requests as amounts; {REFUSED_BY_WEBHOOK}, which adds them up as percentages",
            ),
            id="amounts",
        ),
    ],
)
def test_warnings(documents: Plain, warning: tuple[str, str, str]) -> None:
    assert found(**documents) == [("warning", *warning)]


def test_network_shares_that_cannot_work_are_errors() -> None:
    over = network(ls={"ingressRequest": 60}, be={"ingressRequest": 41})
    assert [f[0] for f in found(resource_qos_config=over, system_config="{}")] == ["error"]
    wrong = network(ls={"ingressLimit": 101, "egressLimit": "fast"})
    assert found(resource_qos_config=wrong, system_config="{}") == [
        ("error", "resource-qos-config", "clusterStrategy.lsClass.networkQOS.ingressLimit", "must be from 0 to 100"),
        (
            "error",
            "resource-qos-config",
            "clusterStrategy.lsClass.networkQOS.egressLimit",
            "must be a percentage or a quantity",
        ),
    ]
