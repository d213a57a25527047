"""A value of a NodeSLO that no node can use switches off what it belongs to, whichever field it stands in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from koord.api.config.slo import defaults
from koord.api.config.slo.slo_validation import FIELD_CHOICES, strategy_errors
from koord.api.koordinator.slo import (
    BlkIOQOSConfig,
    BlockConfig,
    CPUBurstStrategy,
    CPUQOSConfig,
    HostApplicationSpec,
    IOConfig,
    MemoryQOSConfig,
    NodeSLOSpec,
    ResctrlQOSConfig,
    ResourceQOS,
    ResourceQOSStrategy,
    ResourceThresholdStrategy,
    SystemStrategy,
)
from koord.koordlet.inputs.effective_slo import effective_slo

BAD_NUMBER, BAD_WORD = -1000, "nonsense"
ANY_NUMBER = {"evict_enabled_priority_threshold"}  # priorities may be negative
GOOD = ResourceThresholdStrategy(
    enable=True,
    cpu_suppress_threshold_percent=60,
    memory_evict_threshold_percent=80,
    memory_allocatable_evict_threshold_percent=120,
    memory_allocatable_evict_lower_percent=100,
    cpu_evict_be_satisfaction_lower_percent=40,
    cpu_evict_be_satisfaction_upper_percent=60,
    cpu_evict_threshold_percent=90,
    cpu_allocatable_evict_threshold_percent=120,
    cpu_allocatable_evict_lower_percent=100,
    evict_enabled_priority_threshold=5999,
    allocatable_evict_priority_threshold=5999,
)
RULES = {
    *("cpu_suppress_threshold_percent", "memory_evict_threshold_percent", "cpu_evict_threshold_percent"),
    *("memory_allocatable_evict_threshold_percent", "cpu_allocatable_evict_threshold_percent"),
    *("cpu_evict_be_satisfaction_upper_percent", "allocatable_evict_priority_threshold"),
}


def spoilt(struct: msgspec.Struct) -> Iterator[tuple[str, msgspec.Struct]]:
    """Yield the struct with each of its numbers and enumerated words made unusable, by the name of the field."""
    for field in msgspec.structs.fields(struct):
        text = str(field.type)
        if field.name in ANY_NUMBER or "dict" in text:
            continue
        if "int" in text and "IntOrString" not in text:
            yield field.name, msgspec.structs.replace(struct, **{field.name: BAD_NUMBER})
        elif field.encode_name in FIELD_CHOICES:
            yield field.name, msgspec.structs.replace(struct, **{field.name: BAD_WORD})


def cases(*structs: msgspec.Struct) -> list[Any]:
    return [
        pytest.param(name, bad, id=f"{type(struct).__name__}.{name}")
        for struct in structs
        for name, bad in spoilt(struct)
    ]


@pytest.mark.parametrize(("name", "bad"), cases(GOOD))
def test_one_rule_of_the_thresholds_is_off_and_the_others_stay(name: str, bad: ResourceThresholdStrategy) -> None:
    spec = NodeSLOSpec(resource_used_threshold_with_be=bad)
    assert len(strategy_errors(spec)) == 1
    found = effective_slo(spec).resource_used_threshold_with_be
    assert found is not None
    off = {rule for rule in RULES if getattr(found, rule) is None}
    assert off, name
    assert len(off) <= 2, "the window belongs to two rules"
    assert all(getattr(found, rule) == getattr(GOOD, rule) for rule in RULES - off)
    assert found.enable is True


@pytest.mark.parametrize(
    ("field", "needed"),
    [
        ("memory_evict_threshold_percent", "memory_evict_threshold_percent"),
        ("cpu_suppress_threshold_percent", "cpu_suppress_threshold_percent"),
        ("cpu_evict_threshold_percent", "cpu_evict_threshold_percent"),
        ("cpu_allocatable_evict_threshold_percent", "cpu_allocatable_evict_threshold_percent"),
        ("memory_allocatable_evict_threshold_percent", "memory_allocatable_evict_threshold_percent"),
    ],
)
@pytest.mark.parametrize("value", [0, -1])
def test_a_threshold_of_nothing_is_off(field: str, needed: str, value: int) -> None:
    bad = msgspec.structs.replace(GOOD, **{field: value})
    found = effective_slo(NodeSLOSpec(resource_used_threshold_with_be=bad)).resource_used_threshold_with_be
    assert getattr(found, needed) is None


@pytest.mark.parametrize(
    ("name", "bad"), cases(CPUBurstStrategy(policy="auto", cpu_burst_percent=500, cfs_quota_burst_period_seconds=-1))
)
def test_bursts_are_off(name: str, bad: CPUBurstStrategy) -> None:
    assert effective_slo(NodeSLOSpec(cpu_burst_strategy=bad)).cpu_burst_strategy == defaults.CPU_BURST


@pytest.mark.parametrize(
    ("name", "bad"),
    cases(CPUQOSConfig(enable=True), MemoryQOSConfig(enable=True), ResctrlQOSConfig(enable=True), IOConfig()),
)
@pytest.mark.parametrize("qos", ["lsr_class", "ls_class", "be_class"])
def test_the_block_of_a_class_is_off_and_the_others_stay(qos: str, name: str, bad: msgspec.Struct) -> None:
    blocks = {CPUQOSConfig: "cpu_qos", MemoryQOSConfig: "memory_qos", ResctrlQOSConfig: "resctrl_qos"}
    block = blocks.get(type(bad), "blkio_qos")
    if isinstance(bad, IOConfig):
        bad = BlkIOQOSConfig(enable=True, blocks=(BlockConfig(name="/dev/vda", type="device", io_cfg=bad),))
    good = ResourceQOS(
        cpu_qos=CPUQOSConfig(enable=True),
        memory_qos=MemoryQOSConfig(enable=True),
        resctrl_qos=ResctrlQOSConfig(enable=True),
        blkio_qos=BlkIOQOSConfig(enable=True),
    )
    wanted = msgspec.structs.replace(ResourceQOSStrategy(), **{qos: msgspec.structs.replace(good, **{block: bad})})
    found = getattr(effective_slo(NodeSLOSpec(resource_qos_strategy=wanted)).resource_qos_strategy, qos)
    enabled = {one: getattr(found, one).enable for one in ("cpu_qos", "memory_qos", "resctrl_qos", "blkio_qos")}
    assert enabled == {**dict.fromkeys(enabled, True), block: False}
    disabled = msgspec.structs.replace(
        ResourceQOSStrategy(), **{qos: msgspec.structs.replace(good, **{block: type(bad)(enable=False)})}
    )
    same = getattr(effective_slo(NodeSLOSpec(resource_qos_strategy=disabled)).resource_qos_strategy, qos)
    if block != "blkio_qos":  # of which a disabled block keeps its list, unread
        assert getattr(found, block) == getattr(same, block)


@pytest.mark.parametrize(("name", "bad"), cases(SystemStrategy(watermark_scale_factor=200)))
def test_a_field_of_the_system_is_left_alone(name: str, bad: SystemStrategy) -> None:
    found = effective_slo(NodeSLOSpec(system_strategy=bad)).system_strategy
    assert found == (
        SystemStrategy() if name == "watermark_scale_factor" else SystemStrategy(watermark_scale_factor=200)
    )


def test_a_host_application_of_no_class_is_left_out() -> None:
    good, bad = HostApplicationSpec(name="a", qos="LS"), HostApplicationSpec(name="b", qos=BAD_WORD)
    assert effective_slo(NodeSLOSpec(host_applications=(bad, good))).host_applications == (good,)


def test_what_is_usable_stays_as_it_is() -> None:
    spec = NodeSLOSpec(resource_used_threshold_with_be=GOOD)
    assert strategy_errors(spec) == []
    found = effective_slo(spec).resource_used_threshold_with_be
    assert found == msgspec.structs.replace(GOOD, cpu_suppress_policy="cpuset", cpu_evict_policy="evictByRealLimit")
