"""Shares of cache and bandwidth of classes and of single pods, on each vendor's machine, under the kernel's own rules.

The rules are those that the kernel documents for schemata: a mask is a run of at least `min_cbm_bits` ones within
`cbm_mask`, and a bandwidth lies between `min_bandwidth` and the vendor's largest value.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.koordinator.protocol import A_RESCTRL
from koord.api.koordinator.slo import NodeSLOSpec, ResctrlQOSConfig, ResourceQOS, ResourceQOSStrategy
from koord.host.hardware import ResctrlLimits
from koord.koordlet.cgroup_writer.effects import WriteSchemata
from koord.koordlet.control_loop import HostMachine
from koord.koordlet.hooks import resctrl_pod
from koord.koordlet.hooks.hook import NodeRules
from koord.koordlet.hooks.resctrl_pod import AMD, HYGON, INTEL
from koord.koordlet.inputs.effective_slo import effective_slo
from koord.koordlet.inputs.machine import L3Cache
from koord.koordlet.strategies.resctrl import ResctrlView, decide_resctrl
from tests.koordlet.cgroup_writer.executor_fixture import ExecutorFixture
from tests.koordlet.hooks.hook_builders import a_pod


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    cache: L3Cache
    most_bandwidth: int

    def refusal(self, resource: str, values: dict[int, str]) -> str:
        """Return why the kernel refuses a line; "" when it takes it."""
        if sorted(values) != sorted(self.cache.ids):
            return f"caches {sorted(values)}"
        for text in values.values():
            limits = self.cache.limits
            if resource == "MB":
                if not limits.has_bandwidth or not limits.min_bandwidth <= int(text) <= self.most_bandwidth:
                    return f"bandwidth {text}"
                continue
            mask = int(text, 16)
            ones = mask >> ((mask & -mask).bit_length() - 1) if mask else 0
            if mask <= 0 or mask & ~self.cache.mask:
                return f"mask {text} is out of range"
            if ones & (ones + 1):
                return f"mask {text} is not one run"
            if ones.bit_length() < limits.min_ways:
                return f"mask {text} has too few bits"
        return ""


def machine(vendor: str, mask: int, most: int = 100, ids: tuple[int, ...] = (0, 1), **limits: int | bool) -> Machine:
    cache = L3Cache(mask=mask, ids=ids, vendor=vendor, limits=ResctrlLimits(**limits))  # type: ignore[arg-type]
    return Machine(cache=cache, most_bandwidth=most)


MACHINES = {
    "intel": machine(INTEL, 0x7FF),
    "intel-two-bits": machine(INTEL, 0xFFFFF, min_ways=2),
    "amd": machine(AMD, 0xFFFF, 2048, ids=tuple(range(12)), min_bandwidth=1, bandwidth_step=1),
    "hygon": machine(HYGON, 0xFFFF, 2048, ids=(0, 1, 2, 3), min_bandwidth=1, bandwidth_step=1),
    "arm": machine("0x48", 0xFFFF, ids=(1, 3), min_bandwidth=2, bandwidth_step=2),
    "arm-coarse": machine("0x41", 0xFFF, ids=(0,), min_bandwidth=5, bandwidth_step=5),
    "arm-cache-only": machine("0x41", 0xFF, ids=(0,), has_bandwidth=False),
}
by_machine = pytest.mark.parametrize("name", list(MACHINES))
SHARES = st.tuples(st.integers(0, 99), st.integers(1, 100), st.integers(1, 100)).filter(lambda one: one[0] < one[1])


def class_lines(one: Machine, start: int, end: int, percent: int) -> dict[str, dict[int, str]]:
    wanted = ResctrlQOSConfig(
        enable=True, cat_range_start_percent=start, cat_range_end_percent=end, mba_percent=percent
    )
    spec = NodeSLOSpec(resource_qos_strategy=ResourceQOSStrategy(be_class=ResourceQOS(resctrl_qos=wanted)))
    view = ResctrlView(
        strategy=effective_slo(spec).resource_qos_strategy,
        cache_mask=one.cache.mask,
        vendor=one.cache.vendor,
        limits=one.cache.limits,
        caches=one.cache.ids,
    )
    plan = decide_resctrl(view)
    return {
        effect.resource: dict(effect.by_cache)
        for effect in plan.effects
        if isinstance(effect, WriteSchemata) and effect.group == "BE"
    }


def pod_lines(one: Machine, start: int, end: int, percent: int) -> dict[str, dict[int, str]]:
    asked = {"llc": {"schemata": {"range": [start, end]}}, "mb": {"schemata": {"percent": percent}}}
    pod = a_pod("LS", annotations={A_RESCTRL: json.dumps(asked)})
    return {
        line.resource: dict(line.by_cache) for line in resctrl_pod.decide_pod(pod, NodeRules(cache=one.cache)).schemata
    }


@by_machine
@given(share=SHARES)
def test_the_kernel_takes_every_share_and_both_levels_agree(name: str, share: tuple[int, int, int]) -> None:
    one = MACHINES[name]
    found = class_lines(one, *share)
    assert {
        resource: one.refusal(resource, values) for resource, values in found.items() if one.refusal(resource, values)
    } == {}
    assert pod_lines(one, *share) == found
    assert ("MB" in found) == one.cache.limits.has_bandwidth


@by_machine
@given(share=SHARES, more=st.integers(0, 50))
def test_more_is_never_less(name: str, share: tuple[int, int, int], more: int) -> None:
    one, (start, end, percent) = MACHINES[name], share
    less = class_lines(one, start, end, percent)
    greater = class_lines(one, start, min(end + more, 100), min(percent + more, 100))
    for resource, values in less.items():
        for cache, value in values.items():
            other = greater[resource][cache]
            if resource == "MB":
                assert int(value) <= int(other)
            elif one.cache.limits.min_ways == 1:
                assert int(value, 16) & ~int(other, 16) == 0


@pytest.mark.parametrize(
    ("name", "percent", "value"),
    [
        ("intel", 45, "50"),
        ("intel", 1, "10"),
        ("amd", 45, "72"),
        ("amd", 100, "2048"),
        ("hygon", 45, "72"),
        ("hygon", 100, "2048"),
        ("arm", 45, "46"),
        ("arm", 1, "2"),
        ("arm-coarse", 41, "45"),
        ("arm-coarse", 100, "100"),
    ],
)
def test_bandwidth_is_in_the_units_of_the_vendor(name: str, percent: int, value: str) -> None:
    one = MACHINES[name]
    assert class_lines(one, 0, 100, percent)["MB"] == dict.fromkeys(one.cache.ids, value)


@pytest.mark.parametrize(
    ("name", "share", "mask"),
    [
        ("intel", (0, 30), "f"),
        ("intel", (10, 50), "3c"),
        ("intel-two-bits", (0, 5), "3"),
        ("intel-two-bits", (95, 100), "c0000"),
        ("hygon", (0, 30), "1f"),
        ("arm", (50, 100), "ff00"),
        ("arm-cache-only", (0, 1), "1"),
    ],
)
def test_ways_are_rounded_up_and_wide_enough(name: str, share: tuple[int, int], mask: str) -> None:
    one = MACHINES[name]
    assert class_lines(one, *share, 100)["L3"] == dict.fromkeys(one.cache.ids, mask)


@pytest.mark.parametrize(
    ("cpuinfo", "info", "vendor", "limits"),
    [
        pytest.param(
            "vendor_id\t: HygonGenuine\nflags\t: cat_l3 mba\n",
            {"MB/min_bandwidth": "1", "MB/bandwidth_gran": "1", "L3/min_cbm_bits": "1"},
            HYGON,
            ResctrlLimits(min_bandwidth=1, bandwidth_step=1),
            id="hygon",
        ),
        pytest.param(
            "Features\t: fp\nCPU implementer\t: 0x48\n",
            {"MB/min_bandwidth": "2", "MB/bandwidth_gran": "2"},
            "0x48",
            ResctrlLimits(min_bandwidth=2, bandwidth_step=2),
            id="arm",
        ),
    ],
)
def test_the_machine_is_read_from_the_kernels_own_files(
    tmp_path: Path, cpuinfo: str, info: dict[str, str], vendor: str, limits: ResctrlLimits
) -> None:
    world = ExecutorFixture(tmp_path)
    put = world.machine.put
    put("proc/cpuinfo", cpuinfo)
    put("proc/filesystems", "nodev\tresctrl\n")
    put("sys/fs/resctrl/info/L3/cbm_mask", "ffff\n")
    put("sys/fs/resctrl/schemata", "    MB:1=100;3=100\n    L3:1=ffff;3=ffff\n")
    for path, text in info.items():
        put(f"sys/fs/resctrl/info/{path}", f"{text}\n")
    found = HostMachine(world.tree, world.executor, may_write=False, resctrl=True, disks=False).shape.cache
    assert (found.vendor, found.mask, found.ids, found.limits) == (vendor, 0xFFFF, (1, 3), limits)
