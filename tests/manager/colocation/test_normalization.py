"""CPU normalization and amplification ratios are written on a node."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.config.slo.slo_documents import CPUModelRatios, CPUNormalizationStrategy, ResourceAmplificationStrategy
from koord.manager.colocation.normalization import (
    decide_amplification,
    decide_normalization,
    normalization_differs,
    unknown_normalization,
)
from koord.manager.colocation.strategy import LayeredStrategy

INFO = "node.koordinator.sh/cpu-basic-info"
ENABLED = "node.koordinator.sh/cpu-normalization-enabled"
RATIO = "node.koordinator.sh/cpu-normalization-ratio"
MODELS = {
    "X": CPUModelRatios(
        base_ratio=1.5,
        hyper_thread_enabled_ratio=1.0,
        turbo_enabled_ratio=1.8,
        hyper_thread_turbo_enabled_ratio=1.2,
    ),
    "Z": CPUModelRatios(base_ratio=7.0, turbo_enabled_ratio=0.5),
}


def info(model: str, hyper_thread: bool = False, turbo: bool = False) -> dict[str, str]:
    flags = f'"hyperThreadEnabled":{str(hyper_thread).lower()},"turboEnabled":{str(turbo).lower()}'
    return {INFO: f'{{"cpuModel":"{model}",{flags}}}'}


def strategy(enable: bool = True, default: float | None = None) -> LayeredStrategy[CPUNormalizationStrategy]:
    return LayeredStrategy(cluster=CPUNormalizationStrategy(enable=enable, default_ratio=default, ratio_model=MODELS))


@pytest.mark.parametrize(
    ("layers", "labels", "topology", "text"),
    [
        pytest.param(strategy(), {}, info("X"), "1.50", id="base"),
        pytest.param(strategy(), {}, info("X", hyper_thread=True), "1.00", id="hyper-threads"),
        pytest.param(strategy(), {}, info("X", turbo=True), "1.80", id="turbo"),
        pytest.param(strategy(), {}, info("X", True, True), "1.20", id="both"),
        pytest.param(strategy(False), {}, info("X"), "1.00", id="off"),
        pytest.param(strategy(), {ENABLED: "false"}, info("X"), "1.00", id="off-by-label"),
        pytest.param(strategy(False), {ENABLED: "true"}, info("X"), "1.50", id="on-by-label"),
        pytest.param(strategy(), {ENABLED: "maybe"}, info("X"), None, id="unreadable-label"),
        pytest.param(strategy(), {}, info("Q"), None, id="unknown-model"),
        pytest.param(strategy(default=1.3), {}, info("Q"), "1.30", id="default"),
        pytest.param(strategy(), {}, info("Z"), None, id="too-high"),
        pytest.param(strategy(), {}, info("Z", turbo=True), None, id="too-low"),
        pytest.param(strategy(), {}, {}, None, id="no-cpu-named"),
        pytest.param(strategy(), {}, {INFO: "{"}, None, id="unreadable-cpu"),
        pytest.param(strategy(), {}, None, None, id="no-topology"),
    ],
)
def test_normalization(
    layers: LayeredStrategy[CPUNormalizationStrategy],
    labels: dict[str, str],
    topology: dict[str, str] | None,
    text: str | None,
) -> None:
    found = decide_normalization(layers, labels, topology)
    assert found.text == text
    assert bool(found.error) == (text is None)


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        pytest.param(None, "1.00", True, id="first"),
        pytest.param("1.00", "1.00", False, id="same"),
        pytest.param("1.21", "1.20", True, id="a-hundredth-is-more-than-one-in-floats"),
        pytest.param("1.205", "1.20", False, id="closer-than-a-hundredth"),
        pytest.param("abc", "1.00", True, id="unreadable"),
        pytest.param("1.20", None, False, id="not-known"),
    ],
)
def test_when_a_ratio_is_written(old: str | None, new: str | None, differs: bool) -> None:
    assert normalization_differs(old, new) is differs


@pytest.mark.parametrize(
    ("ratios", "normalization", "text"),
    [
        pytest.param(None, "1.22", '{"cpu":1.22}', id="only-normalization"),
        pytest.param({"cpu": 1.1, "memory": 2.1}, None, '{"cpu":1.10,"memory":2.10}', id="only-config"),
        pytest.param({"cpu": 1.5, "memory": 2.5}, "1.20", '{"cpu":1.80,"memory":2.50}', id="both"),
        pytest.param({"ephemeral-storage": 1.8}, "1.00", '{"ephemeral-storage":1.80}', id="other-resource"),
        pytest.param({"cpu": 0.8}, "1.50", '{"cpu":1.20}', id="together-above-one"),
        pytest.param({"cpu": 0.8}, "1.00", None, id="cpu-below-one"),
        pytest.param({"memory": 0.8}, None, None, id="memory-below-one"),
        pytest.param({"memory": 2.0}, "abc", None, id="unreadable-normalization"),
        pytest.param(None, "1.00", None, id="no-effect"),
        pytest.param(None, None, None, id="nothing"),
    ],
)
def test_amplification(ratios: dict[str, float] | None, normalization: str | None, text: str | None) -> None:
    given = ResourceAmplificationStrategy(enable=ratios is not None, resource_amplification_ratio=ratios or {})
    annotations = {} if normalization is None else {RATIO: normalization}
    assert decide_amplification(LayeredStrategy(cluster=given), {}, annotations).text == text


def test_ratios_that_are_switched_off_do_not_count() -> None:
    given = ResourceAmplificationStrategy(enable=False, resource_amplification_ratio={"memory": 2.0})
    assert decide_amplification(LayeredStrategy(cluster=given), {}, {}).text is None


@pytest.mark.parametrize(
    ("annotations", "ratio"),
    [pytest.param({RATIO: "1.20"}, 1.2, id="kept"), pytest.param({}, None, id="none")],
)
def test_settings_that_were_never_readable_change_nothing(annotations: dict[str, Any], ratio: float | None) -> None:
    found = unknown_normalization(annotations)
    assert (found.text, found.ratio) == (None, ratio)
