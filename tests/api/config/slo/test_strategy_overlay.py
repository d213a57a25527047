"""Laying a particular strategy over a general one: what shines through and what does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.config.slo.defaults import overlay
from koord.api.config.slo.slo_documents import ColocationStrategy, CPUNormalizationStrategy, NodeThresholdStrategy
from koord.api.koordinator.slo import ResourceQOSStrategy, ResourceThresholdStrategy, SystemStrategy
from koord.api.model import convert, to_dict
from tests.api.model_strategies import model_values


def laid(model: Any, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return to_dict(overlay(convert(old, model), convert(new, model)))


def blocks(*given: dict[str, Any]) -> dict[str, Any]:
    return {"lsClass": {"blkioQOS": {"blocks": list(given)}}}


@pytest.mark.parametrize(
    ("model", "old", "new", "result"),
    [
        pytest.param(
            ResourceThresholdStrategy,
            {"enable": True, "cpuSuppressThresholdPercent": 65},
            {"enable": False, "cpuSuppressThresholdPercent": 0},
            {"enable": False, "cpuSuppressThresholdPercent": 0},
            id="false-and-zero-are-said",
        ),
        pytest.param(
            ResourceThresholdStrategy,
            {"cpuSuppressPolicy": "cfsQuota"},
            {"cpuSuppressPolicy": ""},
            {"cpuSuppressPolicy": "cfsQuota"},
            id="an-empty-word-is-not",
        ),
        pytest.param(
            ResourceQOSStrategy,
            {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}},
            {"beClass": {"cpuQOS": {"groupIdentity": 0}, "memoryQOS": {"wmarkRatio": 90}}},
            {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": 0}, "memoryQOS": {"wmarkRatio": 90}}},
            id="structs-field-by-field",
        ),
        pytest.param(
            ResourceQOSStrategy,
            blocks({"name": "pool", "type": "volumegroup", "ioCfg": {"ioWeightPercent": 60}}, {"name": "b"}),
            blocks({"name": "/dev/sdb", "ioCfg": {"readIOPS": 1}}),
            blocks({"name": "/dev/sdb", "type": "volumegroup", "ioCfg": {"ioWeightPercent": 60, "readIOPS": 1}}),
            id="list-items-by-place",
        ),
        pytest.param(
            ResourceQOSStrategy, blocks({"name": "a"}), blocks(), blocks({"name": "a"}), id="an-empty-list-says-nothing"
        ),
        pytest.param(
            CPUNormalizationStrategy,
            {"ratioModel": {"A": {"baseRatio": 1.1, "turboEnabledRatio": 1.2}, "B": {"baseRatio": 2.0}}},
            {"ratioModel": {"A": {"baseRatio": 1.5}}},
            {"ratioModel": {"A": {"baseRatio": 1.5}, "B": {"baseRatio": 2.0}}},
            id="maps-by-key-with-values-whole",
        ),
        pytest.param(
            ColocationStrategy,
            {"metricAggregatePolicy": {"durations": ["5m0s", "10m0s"]}},
            {"metricAggregatePolicy": {"durations": ["2m0s"]}},
            {"metricAggregatePolicy": {"durations": ["2m0s"]}},
            id="plain-lists-whole",
        ),
        pytest.param(
            SystemStrategy,
            {"minFreeKbytesFactor": 150, "totalNetworkBandwidth": "600M"},
            {"minFreeKbytesFactor": 100},
            {"minFreeKbytesFactor": 100, "totalNetworkBandwidth": "0"},
            id="a-bandwidth-left-out-is-zero",
        ),
    ],
)
def test_vectors(model: Any, old: dict[str, Any], new: dict[str, Any], result: dict[str, Any]) -> None:
    assert laid(model, old, new) == result


def test_a_node_entry_gives_a_plain_strategy() -> None:
    made = overlay(ResourceThresholdStrategy(enable=True), NodeThresholdStrategy(name="a", cpu_suppress_min_percent=5))
    assert type(made) is ResourceThresholdStrategy
    assert made == ResourceThresholdStrategy(enable=True, cpu_suppress_min_percent=5)


_MODELS: list[Any] = [ResourceThresholdStrategy, ResourceQOSStrategy, ColocationStrategy, CPUNormalizationStrategy]


@given(data=st.data())
def test_saying_nothing_changes_nothing_and_saying_it_twice_is_saying_it_once(data: st.DataObject) -> None:
    model: type[msgspec.Struct] = data.draw(st.sampled_from(_MODELS))
    old, new = data.draw(model_values(model)), data.draw(model_values(model))
    assert overlay(old, model()) == old
    assert overlay(model(), new) == new
    once = overlay(old, new)
    assert overlay(once, new) == once
