"""The numbers in docs/concepts come out of the decisions themselves."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from koord.api.config.slo.defaults import CPU_BURST
from koord.api.koordinator.protocol import LS
from koord.api.koordinator.resource_name import CPU
from koord.api.koordinator.slo import MemoryQOS
from koord.host.cgroup import knob
from koord.host.hardware import MachineCpu
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.strategies.cpu_burst import BurstState, CpuBurstView, SharePool, SharePoolState, decide_cpu_burst
from koord.koordlet.strategies.cpu_suppress import BeGroup, CpuSuppressView, decide_cpu_suppress
from koord.koordlet.strategies.memory_qos import memory_high_bytes
from koord.values.cpuset import CPUSet
from tests.koordlet.strategies.builders import pod, writes

DOCS = Path(__file__).parents[2] / "docs" / "concepts"


def rows(page: str) -> list[list[str]]:
    lines = (DOCS / page).read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


@pytest.mark.parametrize(
    "row", [row for row in rows("cpu-suppress.md") if row[0].endswith("m")], ids=lambda row: row[0]
)
def test_suppression(row: list[str]) -> None:
    node, services, batch = (int(cell.rstrip("m")) for cell in row[:3])
    seen = CpuSuppressView(
        enabled=True,
        capacity_milli=4_000,
        allocatable_milli=4_000,
        node_used_milli=node,
        pods=(pod("ls", LS), pod("be", "BE")),
        pod_used_milli={"ls": services, "be": batch},
        processors=tuple(MachineCpu(cpu=cpu, core=cpu) for cpu in range(4)),
        groups=(BeGroup(path="be", depth=0),),
        quota_us=-1,
        cpuset=CPUSet.parse("0-3"),
    )
    quota = decide_cpu_suppress(msgspec.structs.replace(seen, policy="cfsQuota"))
    assert writes(quota, knob.CPU_QUOTA) == [("be", _first_number(row[5]))]
    cpus = decide_cpu_suppress(msgspec.structs.replace(seen, policy="cpuset"))
    assert len(CPUSet.parse(writes(cpus, knob.CPUSET)[-1][1])) == int(_first_number(row[6]))


def test_burst_second_by_second() -> None:
    limits = {CPU: 1_000}
    box = ContainerMeta(name="c", id="containerd://c", group="p/c", running=True, requests=limits, limits=limits)
    ls: PodMeta = msgspec.structs.replace(pod("ls", LS, limits=limits, containers=(box,)), group="p")
    quota = 100_000
    bursts: dict[str, BurstState] = {}
    story = [row for row in rows("cpu-burst.md") if row[0].isdecimal()]
    assert len(story) == 5
    for _, shared, throttled, expected in story:
        state: SharePoolState = "overload" if shared == "overload" else "idle"
        plan = decide_cpu_burst(
            CpuBurstView(
                strategy=msgspec.structs.replace(CPU_BURST, policy="auto"),
                pool=SharePool(state=state, why=""),
                now_s=0.0,
                pods=(ls,),
                quota_us={"p": quota, "p/c": quota},
                throttled={"containerd://c": 0.5 if throttled == "yes" else 0.0},
                bursts=bursts,
            )
        )
        bursts = plan.state
        quota = int(dict(writes(plan, knob.CPU_QUOTA)).get("p/c", str(quota)))
        assert quota == int(expected)


def test_memory_is_slowed_down_from_there_on() -> None:
    documented = next(row[1] for row in rows("memory-qos.md") if "memory.high" in row[0])
    found = memory_high_bytes(MemoryQOS(throttling_percent=80), 2**30, 2 * 2**30, 16 * 2**30, 4096)
    assert found == int(documented)


def _first_number(cell: str) -> str:
    found = re.search(r"-?\d+", cell)
    assert found is not None
    return found[0]
