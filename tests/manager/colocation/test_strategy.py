"""A node's strategy is resolved from the ConfigMap, its annotation and its labels."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.config.slo.slo_documents import ColocationStrategy
from koord.manager.colocation.decision import RESOURCE_PLUGINS, enabled_plugins
from koord.manager.colocation.strategy import LayeredStrategy, NodeStrategyLayer, ResolvedStrategy, resolve_strategy
from koord.values.selector import Selector
from tests.manager.colocation.colocation_builders import colocation

ANNOTATION = "node.koordinator.sh/colocation-strategy"
CPU = "node.koordinator.sh/cpu-reclaim-ratio"
MEMORY = "node.koordinator.sh/memory-reclaim-ratio"


def layers(cluster: ColocationStrategy, **nodes: ColocationStrategy) -> LayeredStrategy[ColocationStrategy]:
    return LayeredStrategy(
        cluster=cluster,
        nodes=tuple(
            NodeStrategyLayer(name=group, selector=Selector.from_label_selector({"g": group}), strategy=strategy)
            for group, strategy in nodes.items()
        ),
    )


LAYERS = layers(colocation(), a=colocation(cpu_reclaim_threshold_percent=40))


def of(labels: dict[str, str], annotation: str | None = None) -> ResolvedStrategy:
    return resolve_strategy(LAYERS, labels, {} if annotation is None else {ANNOTATION: annotation})


@pytest.mark.parametrize(
    ("labels", "annotation", "percent"),
    [
        pytest.param({}, None, 60, id="cluster"),
        pytest.param({"g": "a"}, None, 40, id="matching-entry"),
        pytest.param({"g": "b"}, None, 60, id="no-matching-entry"),
        pytest.param({"g": "a"}, '{"cpuReclaimThresholdPercent":50}', 50, id="annotation-beats-entry"),
        pytest.param({"g": "a"}, '{"CPURECLAIMTHRESHOLDPERCENT":50}', 50, id="annotation-in-any-case"),
        pytest.param({"g": "a"}, '{"cpuReclaimThresholdPercent":null}', 40, id="null-says-nothing"),
        pytest.param({"g": "a"}, '{"cpuReclaimThresholdPercent":"50"}', 40, id="unreadable-annotation"),
        pytest.param({CPU: "0.7"}, '{"cpuReclaimThresholdPercent":50}', 70, id="label-beats-annotation"),
        pytest.param({CPU: "1.5"}, None, 150, id="more-than-there-is"),
        pytest.param({CPU: "0.29"}, None, 28, id="a-binary-fraction"),
        pytest.param({CPU: "0"}, None, 0, id="nothing"),
        pytest.param({CPU: "-0.1"}, None, 60, id="negative-label"),
        pytest.param({CPU: "abc"}, None, 60, id="unreadable-label"),
    ],
)
def test_layers(labels: dict[str, str], annotation: str | None, percent: int) -> None:
    assert of(labels, annotation).strategy.cpu_reclaim_threshold_percent == percent


def test_the_layers_are_named() -> None:
    found = of({"g": "a", MEMORY: "0.5"}, '{"enable":true}')
    assert (found.layer, found.annotated, found.labelled) == ("a", True, ("memory_reclaim_threshold_percent",))
    assert ANNOTATION in of({}, "{").ignored


@pytest.mark.parametrize(
    ("cluster", "entry", "annotation", "enabled"),
    [
        pytest.param(True, None, None, True, id="on"),
        pytest.param(False, True, None, False, id="off-for-the-cluster-is-off-for-all"),
        pytest.param(True, False, None, False, id="off-for-the-entry"),
        pytest.param(True, None, '{"enable":false}', False, id="off-by-annotation"),
        pytest.param(True, False, '{"enable":true}', True, id="on-again-by-annotation"),
    ],
)
def test_switches(cluster: bool, entry: bool | None, annotation: str | None, enabled: bool) -> None:
    every = colocation(enable=cluster)
    entries: dict[str, Any] = {} if entry is None else {"a": colocation(enable=entry)}
    given = {} if annotation is None else {ANNOTATION: annotation}
    assert resolve_strategy(layers(every, **entries), {"g": "a"}, given).enabled is enabled


@pytest.mark.parametrize(
    ("stated", "left"),
    [
        pytest.param(("*",), RESOURCE_PLUGINS, id="all"),
        pytest.param(("*", "-MidResource"), tuple(p for p in RESOURCE_PLUGINS if p != "MidResource"), id="all-but-one"),
        pytest.param(("BatchResource",), ("BatchResource",), id="one"),
        pytest.param(("MidResource", "-MidResource"), ("MidResource",), id="a-name-wins"),
        pytest.param((), (), id="none"),
    ],
)
def test_parts(stated: tuple[str, ...], left: tuple[str, ...]) -> None:
    assert enabled_plugins(stated) == left
