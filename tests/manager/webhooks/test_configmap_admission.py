"""The admission of slo-controller-config: what is refused, in upstream's words, and what is none of its business."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kubernetes.admission import AdmissionRequest, GroupVersionResource
from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDecision, AdmissionDenied
from koord.manager.webhooks.configmap import ConfigMapAdmissionContext, admit_configmap

NAMESPACE, NAME = "koordinator-system", "slo-controller-config"

Plain = dict[str, Any]


def config_map(data: Plain, name: str = NAME) -> Plain:
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in data.items()}
    return {"metadata": {"namespace": NAMESPACE, "name": name}, "data": texts}


def admitted(
    data: Plain,
    old: Plain | None = None,
    *,
    operation: str = "",
    name: str = NAME,
    names_needed: bool = False,
    nodes: dict[str, dict[str, str]] | None = None,
) -> AdmissionDecision:
    request = AdmissionRequest(
        resource=GroupVersionResource(version="v1", resource="configmaps"),
        namespace=NAMESPACE,
        name=name,
        operation=operation or ("CREATE" if old is None else "UPDATE"),
        object=config_map(data, name),
        old_object=None if old is None else config_map(old, name),
    )
    view = ConfigMapAdmissionContext(
        namespace=NAMESPACE, name=NAME, nodes=(nodes or {}).items, require_names=names_needed
    )
    return admit_configmap(request, view)


def refusal(verdict: AdmissionDecision) -> tuple[str, Any]:
    """The reason and the message inside the frame."""
    assert isinstance(verdict, AdmissionDenied), verdict
    assert verdict.code == 400
    assert verdict.message.startswith("___")
    assert verdict.message.endswith("___")
    framed = json.loads(verdict.message.strip("_"))
    return framed["reason"], framed["message"]


def entry(name: str = "a", selector: Plain | None = None, **fields: Any) -> Plain:
    return {"name": name, "nodeSelector": selector or {"matchLabels": {"g": name}}, **fields}


@pytest.mark.parametrize(
    ("data", "old"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({"colocation-config": ""}, None, id="empty"),
        pytest.param({"colocation-config": "{x"}, {"colocation-config": "{x"}, id="unchanged"),
        pytest.param({"host-application-config": "{", "cpu-normalization-config": "{"}, None, id="not-checked"),
        pytest.param({"colocation-config": {"enable": True, "nodeConfigs": [entry(name="")]}}, None, id="no-name"),
        pytest.param({"colocation-config": {"nodeConfigs": [entry("a"), entry("b")]}}, None, id="apart"),
        pytest.param(
            {"resource-qos-config": {"clusterStrategy": {"lsClass": {"cpuQOS": {}}}}, "system-config": "{}"},
            None,
            id="qos-with-system",
        ),
    ],
)
def test_let_in(data: Plain, old: Plain | None) -> None:
    assert admitted(data, old) == AdmissionAllowed()


def test_others_and_deletions_are_none_of_its_business() -> None:
    broken = {"colocation-config": "{"}
    assert admitted(broken, name="another") == AdmissionAllowed()
    assert admitted(broken, operation="DELETE") == AdmissionAllowed()
    assert refusal(admitted(broken))[0] == "ParseConfigFail"


@pytest.mark.parametrize(
    ("key", "title"),
    [
        ("colocation-config", "colocation"),
        ("resource-threshold-config", "resourceThreshold"),
        ("resource-qos-config", "ResourceQOS"),
        ("system-config", "System"),
        ("cpu-burst-config", "CpuBurst"),
    ],
)
def test_unreadable(key: str, title: str) -> None:
    reason, message = refusal(admitted({key: "[1]"}))
    assert reason == "ParseConfigFail"
    where = f"Failed to parse {title} config in configmap {NAMESPACE}/{NAME}, err: "
    assert message == where + "must be an object"


def test_qos_needs_system_config_beside_it() -> None:
    reason, message = refusal(admitted({"resource-qos-config": "{}"}))
    assert reason == "ParseConfigFail"
    assert message == (
        f"Failed to parse System config in configmap {NAMESPACE}/{NAME}, err: unexpected end of JSON input"
    )


BURST = "CPUBurstCfg.ClusterStrategy."
THRESHOLD = "ResourceThresholdCfg.ClusterStrategy."
BE = "ResourceQOSCfg.ClusterStrategy.BEClass."


@pytest.mark.parametrize(
    ("key", "config", "message"),
    [
        pytest.param(
            "cpu-burst-config",
            {"clusterStrategy": {"cpuBurstPercent": 10001}},
            {BURST + "CPUBurstConfig.CPUBurstPercent": "CPUBurstPercent must be 10,000 or less"},
            id="too-much",
        ),
        pytest.param(
            "cpu-burst-config",
            {"clusterStrategy": {"cfsQuotaBurstPeriodSeconds": -2, "sharePoolThresholdPercent": 101}},
            {
                BURST + "CPUBurstConfig.CFSQuotaBurstPeriodSeconds": "CFSQuotaBurstPeriodSeconds must be -1 or greater",
                BURST + "SharePoolThresholdPercent": "SharePoolThresholdPercent must be 100 or less",
            },
            id="all-that-is-wrong",
        ),
        pytest.param(
            "system-config",
            {"nodeStrategies": [entry(minFreeKbytesFactor=0)]},
            {
                "SystemCfg.NodeStrategies[0].SystemStrategy.MinFreeKbytesFactor": (
                    "MinFreeKbytesFactor must be greater than 0"
                )
            },
            id="node-entry",
        ),
        pytest.param(
            "colocation-config",
            {"resourceDiffThreshold": 0},
            {"ColocationCfg.ColocationStrategy.ResourceDiffThreshold": "ResourceDiffThreshold must be greater than 0"},
            id="colocation",
        ),
        pytest.param(
            "colocation-config",
            {"nodeConfigs": [entry(midCPUThresholdPercent=101)]},
            {
                "ColocationCfg.NodeConfigs[0].ColocationStrategy.MidCPUThresholdPercent": (
                    "MidCPUThresholdPercent must be 100 or less"
                )
            },
            id="colocation-node",
        ),
        pytest.param(
            "resource-threshold-config",
            {"clusterStrategy": {"memoryEvictThresholdPercent": 70}},
            {
                THRESHOLD + "MemoryEvictThresholdPercent": (
                    "MemoryEvictThresholdPercent must be greater than MemoryEvictLowerPercent"
                )
            },
            id="one-of-two-bounds",
        ),
        pytest.param(
            "resource-threshold-config",
            {"clusterStrategy": {"cpuEvictThresholdPercent": 50, "cpuEvictLowerPercent": 50}},
            {
                THRESHOLD + "CPUEvictLowerPercent": "CPUEvictLowerPercent must be less than CPUEvictThresholdPercent",
                THRESHOLD + "CPUEvictThresholdPercent": (
                    "CPUEvictThresholdPercent must be greater than CPUEvictLowerPercent"
                ),
            },
            id="equal-bounds",
        ),
        pytest.param(
            "resource-qos-config",
            {
                "clusterStrategy": {
                    "beClass": {"memoryQOS": {"wmarkScalePermill": 1001}, "resctrlQOS": {"mbaPercent": 101}}
                }
            },
            {
                BE + "MemoryQOS.MemoryQOS.WmarkScalePermill": "WmarkScalePermill must be 1,000 or less",
                BE + "ResctrlQOS.ResctrlQOS.MBAPercent": "MBAPercent must be 100 or less",
            },
            id="qos-blocks",
        ),
    ],
)
def test_values_out_of_range(key: str, config: Plain, message: Plain) -> None:
    assert refusal(admitted({"system-config": "{}", key: config})) == ("ConfigParamInvalid", message)


@pytest.mark.parametrize(
    ("key", "config", "message"),
    [
        pytest.param(
            "resource-threshold-config",
            {"clusterStrategy": {"cpuSuppressThresholdPercent": 0}},
            {THRESHOLD + "CPUSuppressThresholdPercent": "CPUSuppressThresholdPercent must be 1 or greater"},
            id="a-level-of-zero",
        ),
        pytest.param(
            "resource-threshold-config",
            {"nodeStrategies": [entry(cpuEvictPolicy="byChance")]},
            {
                "ResourceThresholdCfg.NodeStrategies[0].ResourceThresholdStrategy.CPUEvictPolicy": (
                    "CPUEvictPolicy must be one of 'evictByRealLimit', 'evictByAllocatable'"
                )
            },
            id="unknown-policy",
        ),
        pytest.param(
            "resource-qos-config",
            {"clusterStrategy": {"beClass": {"memoryQOS": {"pageCacheLimitSize": -1}}}},
            {BE + "MemoryQOS.PageCacheLimitSize": "PageCacheLimitSize must be 0 or greater"},
            id="negative-size",
        ),
        pytest.param(
            "colocation-config",
            {"cpuCalculatePolicy": "usageAndRequest"},
            {"ColocationCfg.CPUCalculatePolicy": "CPUCalculatePolicy must be one of 'usage', 'maxUsageRequest'"},
            id="a-policy-that-would-act-as-another",
        ),
        pytest.param(
            "host-application-config",
            {"applications": [{"name": "a", "cgroupPath": {"base": "Root"}}]},
            {
                "HostApplicationCfg.Applications[0].CgroupPath.Base": (
                    "Base must be one of 'CgroupRoot', 'Kubepods', 'KubepodsBurstable', 'KubepodsBesteffort'"
                )
            },
            id="a-document-that-upstream-does-not-look-at",
        ),
        pytest.param(
            "cpu-normalization-config",
            {"enable": True, "defaultRatio": 9},
            {"CPUNormalizationCfg.DefaultRatio": "DefaultRatio must be from 1.0 to 5.0"},
            id="a-ratio",
        ),
    ],
)
def test_what_upstream_lets_pass_and_no_node_can_use(key: str, config: Plain, message: Plain) -> None:
    given = {"system-config": "{}", key: config}
    assert refusal(admitted(given)) == ("ConfigParamInvalid", message)
    assert admitted(given, given) == AdmissionAllowed(), "what is there already may stay"


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        pytest.param(
            None,
            "nodeConfigs NodeSelector must not empty error! configType: colocation-config,nodeConfig name:a",
            id="none",
        ),
        pytest.param(
            {},
            "nodeConfigs NodeSelector must not empty error! configType: colocation-config,nodeConfig name:a",
            id="empty",
        ),
        pytest.param(
            {"matchLabels": {"x": "y"}, "matchExpressions": [{"key": "g", "operator": "Huh", "values": ["1", "2"]}]},
            "failed to parse node selector &LabelSelector{MatchLabels:map[string]string{x: y,},"
            "MatchExpressions:[]LabelSelectorRequirement{LabelSelectorRequirement{Key:g,Operator:Huh,Values:[1 2],},},}"
            ',configType: colocation-config,nodeConfig name:a, err: "Huh" is not a valid label selector operator',
            id="unknown-operator",
        ),
    ],
)
def test_selectors(selector: Plain | None, message: str) -> None:
    given: Plain = {"name": "a"} if selector is None else {"name": "a", "nodeSelector": selector}
    verdict = admitted({"colocation-config": {"nodeConfigs": [given]}})
    assert refusal(verdict) == ("ConfigParamInvalid", message)


def test_signs_are_escaped_as_go_does() -> None:
    bad = {"matchExpressions": [{"key": "g", "operator": "<&>"}]}
    verdict = admitted({"colocation-config": {"nodeConfigs": [entry(selector=bad)]}})
    assert isinstance(verdict, AdmissionDenied)
    assert "\\u0026LabelSelector" in verdict.message
    assert "Operator:\\u003c\\u0026\\u003e" in verdict.message


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [
        pytest.param({"matchLabels": {"g": "1"}}, {"matchLabels": {"g": "2"}}, False, id="apart"),
        pytest.param(
            {"matchLabels": {"g": "1"}},
            {"matchExpressions": [{"key": "g", "operator": "In", "values": ["1", "2"]}]},
            True,
            id="one-value-in-common",
        ),
        pytest.param(
            {"matchLabels": {"g": "1"}}, {"matchLabels": {"h": "1"}}, False, id="only-a-node-with-both-would-show-it"
        ),
        pytest.param(
            {"matchLabels": {"g": "1", "h": "1"}},
            {"matchExpressions": [{"key": "h", "operator": "Exists"}]},
            True,
            id="part",
        ),
    ],
)
def test_overlap(first: Plain, second: Plain, overlap: bool) -> None:
    verdict = admitted({"cpu-burst-config": {"nodeStrategies": [entry("a", first), entry("b", second)]}})
    if not overlap:
        assert verdict == AdmissionAllowed()
        return
    message = {"config": "cpu-burst-config", "strategies": ["a", "b"]}
    assert refusal(verdict) == ("NodeStrategiesOverlap", message)


def test_a_node_under_two_strategies() -> None:
    data = {"colocation-config": {"nodeConfigs": [entry("a"), entry("b", {"matchLabels": {"h": "b"}})]}}
    assert admitted(data, nodes={"n1": {"g": "a"}, "n2": {"h": "b"}}) == AdmissionAllowed()
    verdict = admitted(data, nodes={"n3": {"g": "a", "h": "b"}, "n2": {"g": "a", "h": "b"}})
    message = {"config": "colocation-config", "strategies": ["a", "b"], "exampleNodes": ["n2"]}
    assert refusal(verdict) == ("ExistNodeConfict", message)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        pytest.param(["a", ""], "nodeConfig Name need! configType:cpu-burst-config", id="missing"),
        pytest.param(
            ["a", "a"], "nodeConfig Name confilict, configType:cpu-burst-config,nodeConfig Name:a! ", id="twice"
        ),
    ],
)
def test_names_where_they_are_needed(names: list[str], message: str) -> None:
    entries = [entry(name, {"matchLabels": {"g": str(i)}}) for i, name in enumerate(names)]
    data = {"cpu-burst-config": {"nodeStrategies": entries}}
    assert admitted(data) == AdmissionAllowed()
    assert refusal(admitted(data, names_needed=True)) == ("ConfigParamInvalid", message)


def network(**classes: Plain) -> Plain:
    return {f"{name}Class": {"networkQOS": shares} for name, shares in classes.items()}


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        pytest.param(
            network(ls={"ingressRequest": 60}, be={"ingressRequest": 40, "ingressLimit": 100}), None, id="whole"
        ),
        pytest.param(
            network(ls={"ingressRequest": 101}),
            {"ResourceQOSCfg.ClusterStrategy.LSClass.IngressRequest": "must be percentage value just in 0-100'"},
            id="no-percentage",
        ),
        pytest.param(
            network(ls={"egressRequest": 60}, be={"egressRequest": 41}),
            "ClusterStrategy total net bandwidth percentage already over 100",
            id="over-the-whole",
        ),
        pytest.param(
            network(ls={"egressRequest": 60}, be={"ingressRequest": "5"}),
            "only one type can be used for percentages or quantity in clusterStrategy",
            id="two-kinds",
        ),
        pytest.param(
            network(ls={"egressRequest": "50M"}),
            "ClusterStrategy total net bandwidth percentage already over 100",
            id="amounts-added-as-percentages",
        ),
        pytest.param(
            network(ls={"egressRequest": "50"}, be={"egressRequest": "11"}),
            "total net bandwidth over total network bandwidth in clusterStrategy",
            id="over-the-bandwidth",
        ),
    ],
)
def test_network_shares(strategy: Plain, message: Any) -> None:
    data = {
        "resource-qos-config": {"clusterStrategy": strategy},
        "system-config": {"clusterStrategy": {"totalNetworkBandwidth": "60"}},
    }
    verdict = admitted(data)
    if message is None:
        assert verdict == AdmissionAllowed()
    else:
        assert refusal(verdict) == ("ConfigParamInvalid", message)


def test_network_shares_of_a_node_strategy() -> None:
    over = entry(**network(ls={"egressRequest": 60}, be={"egressRequest": 41}))
    data = {"resource-qos-config": {"nodeStrategies": [over]}, "system-config": "{}"}
    expected = "cfg.NodeStrategies[0] total net bandwidth percentage already over 100"
    assert refusal(admitted(data)) == ("ConfigParamInvalid", expected)


_NAMES = st.sampled_from(
    ["clusterStrategy", "nodeStrategies", "nodeConfigs", "nodeSelector", "matchLabels", "matchExpressions", "key",
     "operator", "values", "beClass", "networkQOS", "ingressRequest", "resctrlQOS", "mbaPercent", "name", "x"]
)  # fmt: skip
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-200, 200) | st.sampled_from(["In", "Exists", "a", "50M", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=14,
)


@given(
    documents=st.lists(
        st.one_of(_JSON.map(lambda d: msgspec.json.encode(d).decode()), st.text(max_size=6)), min_size=5, max_size=5
    )
)
def test_whatever_is_written_there_is_an_answer(documents: list[str]) -> None:
    keys = (
        "colocation-config",
        "resource-threshold-config",
        "resource-qos-config",
        "system-config",
        "cpu-burst-config",
    )
    verdict = admitted(dict(zip(keys, documents, strict=True)), nodes={"n": {"a": "a"}})
    assert isinstance(verdict, AdmissionAllowed) or refusal(verdict)
