"""Capabilities are probed correctly on fake machines with a fake kernel."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from koord.host.capability import Capability, State, burst_above_quota, capabilities
from koord.host.cgroup.layout import Layout
from koord.host.cgroup.tree import Tree
from tests.host.kernel import Kernel
from tests.host.tree import Machine


def _rows(machine: Machine, kernel: Kernel, *, probe: bool = True) -> dict[str, Capability]:
    rows = capabilities(Tree(kernel, machine.version, machine.layout), probe=probe)
    assert len({row.knob for row in rows}) == len(rows)
    return {row.knob: row for row in rows}


@pytest.mark.parametrize("version", [1, 2])
def test_a_plain_node(tmp_path: Path, version: int) -> None:
    machine = Machine(tmp_path, version, Layout("systemd"))
    kernel = Kernel(machine.paths, version)
    before = machine.snapshot()
    rows = _rows(machine, kernel)
    for knob in ("cpu.shares", "cpu.cfs_quota_us", "cpuset.cpus", "memory.limit_in_bytes", "cpu.idle", "cpu.stat"):
        assert (rows[knob].state, rows[knob].version) == (State.SUPPORTED, version), rows[knob]
    assert rows["cpu.bvt_warp_ns"].state is State.OFF
    assert rows["memory.min"].state is (State.OFF if version == 1 else State.SUPPORTED)
    assert rows["kidled"].state is State.OFF
    assert machine.snapshot() == before


def test_a_tree_that_we_only_look_at_is_not_written(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    kernel = Kernel(machine.paths, 2)
    rows = _rows(machine, kernel, probe=False)
    assert kernel.writes == []
    assert "not tried" in rows["cpu.shares"].how


def test_refusals_pressure_and_idle_groups(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1, vendor=True)
    machine.put("sys/fs/cgroup/cpu/kubepods/besteffort/cpu.idle", "1\n")
    for knob in ("cpu", "memory", "io"):
        (tmp_path / f"sys/fs/cgroup/cpuacct/kubepods/besteffort/{knob}.pressure").unlink()
    machine.put("sys/fs/cgroup/unified/kubepods/besteffort/cpu.pressure", "some avg10=0 avg60=0 avg300=0 total=0\n")
    kernel = Kernel(machine.paths, 1)
    kernel.trouble = lambda path, _: errno.EINVAL if path.endswith("memory.high") else None
    rows = _rows(machine, kernel)
    assert (rows["memory.high"].state, rows["memory.high"].errno) == (State.REJECTED, "EINVAL")
    assert rows["cpu.shares"].state is State.DEGRADED
    assert (rows["cpu.pressure"].state, rows["io.pressure"].state) == (State.DEGRADED, State.OFF)
    assert rows["memory.min"].state is State.SUPPORTED


def test_burst_above_the_quota_is_tried_in_a_group_of_our_own(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 1)

    class Probing(Kernel):
        """Makes the files of a group that is made, as the kernel does, and takes them away with it."""

        mainline = True

        def make_folder(self, path: str) -> None:
            machine.make("kubepods/koord-probe")

        def remove_folder(self, path: str) -> None:
            machine.remove("kubepods/koord-probe")

        def _burst(self, file: Path, text: str) -> int | None:
            return super()._burst(file, text) if self.mainline else self._plain(file, text)

    kernel = Probing(machine.paths, 1)
    tree = Tree(kernel, 1, machine.layout)
    before = machine.snapshot()
    assert burst_above_quota(tree) is False
    assert _rows(machine, kernel)["cpu.cfs_burst_us"].state is State.DEGRADED
    kernel.mainline = False
    assert burst_above_quota(tree) is True
    assert _rows(machine, kernel)["cpu.cfs_burst_us"].state is State.SUPPORTED
    assert machine.snapshot() == before
