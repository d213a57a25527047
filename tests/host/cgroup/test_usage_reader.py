"""The fast usage reader agrees with the plain readers, and returns an error for malformed texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koord.api.koordinator.protocol import BURSTABLE
from koord.host.cgroup import usage
from koord.host.cgroup.usage import CgroupUsageReader, FdBudget, parse_numa_bytes
from koord.host.io_error import IoError
from tests.host.fake_machine import FakeMachine

GARBAGE = [b"", b"\n", b"nonsense", b"nr_periods x\nnr_throttled 1\n", b"total_inactive_anon", b"\xff\xfe"]


@pytest.mark.parametrize("version", [1, 2], ids=["v1", "v2"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(values=st.lists(st.integers(0, 2**62), min_size=10, max_size=10), shuffled=st.randoms(use_true_random=False))
def test_they_equal_the_plain_readers(tmp_path: Path, version: int, values: list[int], shuffled: st.DataObject) -> None:
    machine = FakeMachine(tmp_path, version, only=frozenset({"cpu.stat", "cpuacct.usage", "memory.stat"}))
    group = machine.pod(BURSTABLE, "u")
    above = "total_" if version == 1 else ""
    names = ["inactive_anon", "active_anon", "unevictable", "inactive_file", "active_file"]
    names += ["cache", "rss"] if version == 1 else ["file", "anon"]
    lines = [f"{above}{name} {value}" for name, value in zip(names, values, strict=False)]
    lines += ["inactive_anon_other 5", "pgfault 9", "workingset_inactive_anon 7"]
    shuffled.shuffle(lines)  # type: ignore[attr-defined]
    (Path(machine.tree.group_path("memory", group)) / "memory.stat").write_text("\n".join(lines) + "\n")
    stat = f"nr_periods {values[7]}\nnr_throttled {values[8]}\nthrottled_time 1\nthrottled_usec 1\n"
    (Path(machine.tree.group_path("cpu", group)) / "cpu.stat").write_text(f"usage_usec {values[9]}\n{stat}")
    if version == 1:
        (Path(machine.tree.group_path("cpuacct", group)) / "cpuacct.usage").write_text(f"{values[9]}\n")
    usage_reader = CgroupUsageReader(machine.tree, group, FdBudget(0))
    assert usage_reader.cpu_ns() == usage.cpu_usage_ns(machine.tree, group)
    throttling = usage.throttling(machine.tree, group)
    assert not isinstance(throttling, IoError)
    assert usage_reader.throttling() == (throttling.periods, throttling.throttled)
    memory = usage.memory_stat(machine.tree, group)
    assert not isinstance(memory, IoError)
    assert usage_reader.memory() == (memory.usage, memory.usage_with_page_cache)


@pytest.mark.parametrize("version", [1, 2], ids=["v1", "v2"])
@pytest.mark.parametrize("text", GARBAGE)
def test_texts_without_sense_are_faults(tmp_path: Path, version: int, text: bytes) -> None:
    machine = FakeMachine(tmp_path, version)
    group = machine.pod(BURSTABLE, "u")
    for subsystem, name in (
        ("memory", "memory.stat"),
        ("memory", "memory.numa_stat"),
        ("cpu", "cpu.stat"),
        ("cpuacct", "cpuacct.usage"),
    ):
        if version == 1 or name != "cpuacct.usage":
            (Path(machine.tree.group_path(subsystem, group)) / name).write_bytes(text)
    usage_reader = CgroupUsageReader(machine.tree, group, FdBudget(10))
    for found in (usage_reader.cpu_ns(), usage_reader.throttling(), usage_reader.memory(), usage_reader.numa_bytes()):
        assert isinstance(found, IoError)
        assert not found.vanished
    usage_reader.close()


def test_memory_by_numa_node_of_a_real_kernels_texts() -> None:
    v1 = (
        "total=12 N0=8 N1=4\nfile=8 N0=8 N1=0\nanon=4 N0=0 N1=4\nunevictable=0 N0=0 N1=0\n"
        "hierarchical_total=512 N0=256 N1=256\nhierarchical_file=300 N0=200 N1=100\n"
        "hierarchical_anon=200 N0=50 N1=150\nhierarchical_unevictable=12 N0=6 N1=6\n"
    )
    assert parse_numa_bytes(v1, 1, 4096) == {0: 56 * 4096, 1: 156 * 4096}
    v2 = (
        "anon N0=100 N1=200\nfile N0=9 N1=9\nkernel_stack N0=1 N1=1\ninactive_anon N0=10 N1=20\n"
        "active_anon N0=90 N1=180\ninactive_file N0=5 N1=5\nunevictable N0=1 N1=2\n"
    )
    assert parse_numa_bytes(v2, 2, 4096) == {0: 101, 1: 202}
    assert parse_numa_bytes("anon N0=1\n", 2, 4096) is None


@pytest.mark.parametrize("version", [1, 2], ids=["v1", "v2"])
def test_processes_below_are_those_of_all_groups_that_can_be_read(tmp_path: Path, version: int) -> None:
    machine = FakeMachine(tmp_path, version)
    group = machine.pod(BURSTABLE, "u", "containerd://one")
    groups = [f"{group}/one", f"{group}/one/init.scope", f"{group}/one/init.scope/deep", f"{group}/one/threaded"]
    for number, one in enumerate(groups):
        machine.make(one)
        (Path(machine.tree.group_path("cpu", one)) / "cgroup.procs").write_text(f"{10 + number}\n")
    threaded = Path(machine.tree.group_path("cpu", groups[-1])) / "cgroup.procs"
    threaded.unlink()
    threaded.mkdir()  # neither is readable
    assert usage.processes_below(machine.tree, f"{group}/one") == [10, 11, 12]
    assert isinstance(usage.processes_below(machine.tree, f"{group}/other"), IoError)
