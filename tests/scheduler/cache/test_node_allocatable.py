"""Allocatable is what a node has for pods without what its annotation keeps for the system."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.api.kubernetes.node import Node
from koord.api.model import convert
from koord.scheduler.cache.node_info import node_allocatable

KEY = "node.koordinator.sh/reservation"


def node(written: Any) -> Node:
    room = {"cpu": "16", "memory": "32Gi", "kubernetes.io/batch-cpu": "8000", "pods": "110"}
    text = written if isinstance(written, str) else json.dumps(written)
    annotations = {} if written is None else {KEY: text}
    return convert({"metadata": {"name": "a", "annotations": annotations}, "status": {"allocatable": room}}, Node)


@pytest.mark.parametrize(
    ("written", "cpu_milli", "memory_gib"),
    [
        pytest.param(None, 16_000, 32, id="nothing-kept"),
        pytest.param({"resources": {"cpu": "2", "memory": "4Gi"}}, 14_000, 28, id="amounts"),
        pytest.param({"reservedCPUs": "0-3"}, 12_000, 32, id="cpus"),
        pytest.param({"reservedCPUs": "0-3", "resources": {"cpu": "9"}}, 12_000, 32, id="cpus-beat-amounts"),
        pytest.param({"reservedCPUs": "0-3", "applyPolicy": "Default"}, 12_000, 32, id="default"),
        pytest.param({"reservedCPUs": "0-3", "applyPolicy": "ReservedCPUsOnly"}, 16_000, 32, id="only-for-binding"),
        pytest.param({"resources": {"cpu": "40"}}, 0, 32, id="never-below-nothing"),
        pytest.param({"resources": {"kubernetes.io/batch-cpu": "1"}}, 16_000, 32, id="what-is-lent-stays"),
        pytest.param("{", 16_000, 32, id="no-json"),
        pytest.param({"reservedCPUs": "3-0"}, 16_000, 32, id="no-cpu-list"),
    ],
)
def test_allocatable(written: Any, cpu_milli: int, memory_gib: int) -> None:
    found = node_allocatable(node(written))
    assert (found["cpu"], found["memory"] >> 30) == (cpu_milli, memory_gib)
    assert found["kubernetes.io/batch-cpu"] == 8000
