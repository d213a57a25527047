"""Capabilities are probed correctly on fake machines with a fake kernel."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from koord.host.capability import burst_above_quota, probe_capabilities
from koord.host.cgroup.layout import CgroupLayout
from koord.host.cgroup.tree import CgroupTree
from koord.host.hardware import Capability, CapabilityState
from tests.host.fake_kernel import FakeKernel
from tests.host.fake_machine import FakeMachine


def _rows(machine: FakeMachine, kernel: FakeKernel, *, probe: bool = True) -> dict[str, Capability]:
    rows = probe_capabilities(CgroupTree(kernel, machine.version, machine.layout), probe=probe)
    assert len({row.knob for row in rows}) == len(rows)
    return {row.knob: row for row in rows}


@pytest.mark.parametrize("version", [1, 2])
def test_a_plain_node(tmp_path: Path, version: int) -> None:
    machine = FakeMachine(tmp_path, version, CgroupLayout("systemd"))
    kernel = FakeKernel(machine.paths, version)
    before = machine.snapshot()
    rows = _rows(machine, kernel)
    for knob in ("cpu.shares", "cpu.cfs_quota_us", "cpuset.cpus", "memory.limit_in_bytes", "cpu.idle", "cpu.stat"):
        assert (rows[knob].state, rows[knob].version) == (CapabilityState.SUPPORTED, version), rows[knob]
    assert rows["cpu.bvt_warp_ns"].state is CapabilityState.OFF
    assert rows["memory.min"].state is (CapabilityState.OFF if version == 1 else CapabilityState.SUPPORTED)
    assert rows["kidled"].state is CapabilityState.OFF
    assert machine.snapshot() == before


def test_a_tree_that_we_only_look_at_is_not_written(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, 2)
    kernel = FakeKernel(machine.paths, 2)
    rows = _rows(machine, kernel, probe=False)
    assert kernel.writes == []
    assert "not tried" in rows["cpu.shares"].how


def test_refusals_pressure_and_idle_groups(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, 1, vendor=True)
    machine.put("sys/fs/cgroup/cpu/kubepods/besteffort/cpu.idle", "1\n")
    for knob in ("cpu", "memory", "io"):
        (tmp_path / f"sys/fs/cgroup/cpuacct/kubepods/besteffort/{knob}.pressure").unlink()
    machine.put("sys/fs/cgroup/unified/kubepods/besteffort/cpu.pressure", "some avg10=0 avg60=0 avg300=0 total=0\n")
    kernel = FakeKernel(machine.paths, 1)
    kernel.trouble = lambda path, _: errno.EINVAL if path.endswith("memory.high") else None
    rows = _rows(machine, kernel)
    assert (rows["memory.high"].state, rows["memory.high"].errno) == (CapabilityState.REJECTED, "EINVAL")
    assert rows["cpu.shares"].state is CapabilityState.DEGRADED
    assert (rows["cpu.pressure"].state, rows["io.pressure"].state) == (CapabilityState.DEGRADED, CapabilityState.OFF)
    assert rows["memory.min"].state is CapabilityState.SUPPORTED


def test_burst_above_the_quota_is_tried_in_a_group_of_our_own(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, 1)

    class Probing(FakeKernel):
        """Makes the files of a group that is made, as the kernel does, and takes them away with it."""

        mainline = True

        def make_folder(self, path: str) -> None:
            machine.make("kubepods/koord-probe")

        def remove_folder(self, path: str) -> None:
            machine.remove("kubepods/koord-probe")

        def _burst(self, file: Path, text: str) -> int | None:
            return super()._burst(file, text) if self.mainline else self._plain(file, text)

    kernel = Probing(machine.paths, 1)
    tree = CgroupTree(kernel, 1, machine.layout)
    before = machine.snapshot()
    assert burst_above_quota(tree) is False
    assert _rows(machine, kernel)["cpu.cfs_burst_us"].state is CapabilityState.DEGRADED
    kernel.mainline = False
    assert burst_above_quota(tree) is True
    assert _rows(machine, kernel)["cpu.cfs_burst_us"].state is CapabilityState.SUPPORTED
    assert machine.snapshot() == before


def test_features_that_are_no_files_have_rows(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, 2)
    machine.put("proc/sys/kernel/sched_core", "0\n")
    rows = {row.knob: row for row in probe_capabilities(machine.tree)}
    assert rows["core_sched"].state is CapabilityState.SUPPORTED, "by its switch"
    assert rows["time_slice"].state is CapabilityState.OFF, "threads of another machine have none here"
    assert rows["tc"].state in (CapabilityState.SUPPORTED, CapabilityState.OFF)
    assert (rows["tc"].state is CapabilityState.OFF) == ("install iproute2" in rows["tc"].how)
