"""Reading as Go programs read: which spellings count, which values are refused and in which words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.config.decode import UnknownName, decode_lenient, unknown_names
from koord.api.config.field_error import FieldError
from koord.api.config.slo.slo_documents import (
    ColocationConfig,
    CPUBurstConfig,
    HostApplicationConfig,
    QOSConfig,
    SystemConfig,
    ThresholdConfig,
)
from koord.api.model import to_dict


@pytest.mark.parametrize(
    ("model", "text", "plain"),
    [
        pytest.param(ThresholdConfig, "{}", {}, id="empty"),
        pytest.param(ThresholdConfig, "null", {}, id="null-is-empty"),
        pytest.param(ThresholdConfig, '{"clusterStrategy":null}', {}, id="null-is-absent"),
        pytest.param(
            ThresholdConfig,
            '{"ClusterStrategy":{"ENABLE":true,"CPUEvictTimeWindowSeconds":45,"foo":1},"extra":{}}',
            {"clusterStrategy": {"enable": True, "cpuEvictTimeWindowSeconds": 45}},
            id="any-case-and-unknown-names",
        ),
        pytest.param(
            SystemConfig,
            '{"clusterStrategy":{"totalNetworkBandwidth":"1000M"}}',
            {"clusterStrategy": {"totalNetworkBandwidth": "1G"}},
            id="quantity-as-printed",
        ),
        pytest.param(
            SystemConfig,
            '{"clusterStrategy":{"totalNetworkBandwidth":600}}',
            {"clusterStrategy": {"totalNetworkBandwidth": "600"}},
            id="quantity-from-a-number",
        ),
        pytest.param(
            ColocationConfig,
            '{"metricAggregatePolicy":{"durations":["90s"]},"resourceDiffThreshold":1}',
            {"metricAggregatePolicy": {"durations": ["1m30s"]}, "resourceDiffThreshold": 1.0},
            id="duration-as-printed-and-whole-number-as-float",
        ),
        pytest.param(
            ColocationConfig,
            '{"nodeConfigs":[{"nodeSelector":{"matchExpressions":[{"key":"a"}]}}]}',
            {"nodeConfigs": [{"nodeSelector": {"matchExpressions": [{"key": "a", "operator": ""}]}}]},
            id="missing-text-is-empty",
        ),
        pytest.param(
            HostApplicationConfig,
            '{"applications":[null,{"name":"a"}]}',
            {"applications": [{}, {"name": "a"}]},
            id="null-item-is-a-blank-one",
        ),
    ],
)
def test_what_is_read(model: Any, text: str, plain: dict[str, Any]) -> None:
    config = decode_lenient(text, model)
    assert not isinstance(config, FieldError), config
    assert to_dict(config) == plain


@pytest.mark.parametrize(
    ("model", "text", "field", "rule"),
    [
        pytest.param(ThresholdConfig, "", "", "is not JSON: it ends too early", id="nothing"),
        pytest.param(ThresholdConfig, "{", "", "is not JSON: it ends too early", id="cut-off"),
        pytest.param(
            ThresholdConfig,
            '{"clusterStrategy":\n {"enable": true,}}',
            "",
            "is not JSON: trailing comma in object at line 2, column 18",
            id="trailing-comma",
        ),
        pytest.param(ThresholdConfig, "[]", "", "must be an object", id="list"),
        pytest.param(
            ThresholdConfig,
            '{"clusterStrategy":{"enable":1}}',
            "clusterStrategy.enable",
            "must be true or false",
            id="number-for-switch",
        ),
        pytest.param(
            ThresholdConfig,
            '{"clusterStrategy":{"cpuSuppressThresholdPercent":65.0}}',
            "clusterStrategy.cpuSuppressThresholdPercent",
            "must be a whole number",
            id="fraction-for-integer",
        ),
        pytest.param(
            ThresholdConfig,
            '{"nodeStrategies":[{"cpuSuppressThresholdPercent":"65"}]}',
            "nodeStrategies[0].cpuSuppressThresholdPercent",
            "must be a whole number",
            id="text-for-integer",
        ),
        pytest.param(
            CPUBurstConfig,
            '{"clusterStrategy":{"cpuBurstPercent":9223372036854775808}}',
            "clusterStrategy.cpuBurstPercent",
            "must be from -9223372036854775808 to 9223372036854775807",
            id="beyond-int64",
        ),
        pytest.param(
            CPUBurstConfig,
            '{"clusterStrategy":{"policy":7}}',
            "clusterStrategy.policy",
            "must be a string",
            id="number",
        ),
        pytest.param(HostApplicationConfig, '{"applications":{}}', "applications", "must be a list", id="map-for-list"),
        pytest.param(
            QOSConfig,
            '{"clusterStrategy":{"lsClass":{"networkQOS":{"ingressLimit":1.5}}}}',
            "clusterStrategy.lsClass.networkQOS.ingressLimit",
            "must be a whole number",
            id="fraction-for-a-share",
        ),
        pytest.param(
            SystemConfig,
            '{"clusterStrategy":{"totalNetworkBandwidth":"fast"}}',
            "clusterStrategy.totalNetworkBandwidth",
            "must be a quantity, such as 500M or 1Gi",
            id="no-quantity",
        ),
        pytest.param(
            ColocationConfig,
            '{"metricAggregatePolicy":{"durations":["5m","soon"]}}',
            "metricAggregatePolicy.durations[1]",
            "must be a duration, such as 5m or 1h30m",
            id="no-duration",
        ),
    ],
)
def test_what_is_refused(model: Any, text: str, field: str, rule: str) -> None:
    flaw = decode_lenient(text, model)
    assert isinstance(flaw, FieldError)
    assert (flaw.field, flaw.rule) == (field, rule)


def test_names_that_have_no_effect_are_told_with_the_one_they_resemble() -> None:
    document = {
        "clusterStrategy": {"enabled": True, "cpuSupressPolicy": "cpuset", "CpuSuppressPolicy": "cpuset"},
        "zzz": 1,
        "nodeStrategies": [{"nodeSelector": {"matchLabels": {"anything": "goes"}}}, {"nam": "x"}],
    }
    assert unknown_names(document, ThresholdConfig) == [
        UnknownName("clusterStrategy.enabled", "enable"),
        UnknownName("clusterStrategy.cpuSupressPolicy", "cpuSuppressPolicy"),
        UnknownName("zzz"),
        UnknownName("nodeStrategies[1].nam", "name"),
    ]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["clusterStrategy", "nodeStrategies", "nodeSelector", "matchLabels", "enable", "beClass", "cpuQOS", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(document=_JSON)
def test_any_json_is_read_or_refused_and_never_raises(document: Any) -> None:
    text = msgspec.json.encode(document).decode()
    for model in (QOSConfig, ThresholdConfig, SystemConfig, ColocationConfig):
        config = decode_lenient(text, model)
        if not isinstance(config, FieldError):
            assert decode_lenient(msgspec.json.encode(config).decode(), model) == config, (
                "reading is settled after one round"
            )
