"""Tiers of cpu and memory, and combinations of device names."""

from __future__ import annotations

import pytest

from koord.api.koordinator.resource_name import (
    DEPRECATED_BATCH,
    DEPRECATED_DEVICES,
    GPU_COMBINATIONS,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    NPU_CORE,
    NPU_CPU,
    NPU_DVPP,
    tier_resource_name,
)


@pytest.mark.parametrize(
    ("priority", "name", "translated"),
    [
        ("koord-prod", "cpu", "cpu"),
        ("", "nvidia.com/gpu", "nvidia.com/gpu"),
        ("koord-batch", "cpu", "kubernetes.io/batch-cpu"),
        ("koord-batch", "memory", "kubernetes.io/batch-memory"),
        ("koord-batch", "ephemeral-storage", None),
        ("koord-mid", "cpu", "kubernetes.io/mid-cpu"),
        ("koord-mid", "memory", "kubernetes.io/mid-memory"),
        ("koord-free", "cpu", None),
    ],
)
def test_tiers(priority: str, name: str, translated: str | None) -> None:
    assert tier_resource_name(priority, name) == translated


def test_deprecated_names_keep_their_last_part() -> None:
    for old, new in {**DEPRECATED_BATCH, **DEPRECATED_DEVICES}.items():
        assert old != new
        assert old.partition("/")[2] == new.partition("/")[2]


@pytest.mark.parametrize(
    ("names", "legal"),
    [
        pytest.param({GPU_CORE, GPU_MEMORY_RATIO}, True, id="core-and-ratio"),
        pytest.param({GPU_CORE}, False, id="core-alone"),
        pytest.param({GPU_MEMORY, GPU_MEMORY_RATIO}, False, id="both-memories"),
        pytest.param({GPU_SHARED}, False, id="shared-alone"),
        pytest.param({GPU_SHARED, NPU_CORE, NPU_CPU, NPU_DVPP, GPU_MEMORY}, True, id="npu-with-dvpp"),
    ],
)
def test_gpu_combinations(names: set[str], legal: bool) -> None:
    assert (frozenset(names) in GPU_COMBINATIONS) is legal
    assert len(GPU_COMBINATIONS) == 15
