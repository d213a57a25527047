"""Disk limits of best-effort work on this machine's own kernel: a loop device, and a writer in a container's group."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.api.koordinator.protocol import BE, BEST_EFFORT
from koord.api.koordinator.slo import BlkIOQOSConfig, BlockConfig, IOConfig, ResourceQOS, ResourceQOSStrategy
from koord.host.cgroup import knob
from koord.host.cgroup.detection import cgroup_version
from koord.host.cgroup.layout import CgroupLayout
from koord.host.cgroup.tree import CgroupTree
from koord.host.filesystem import Host
from koord.host.hardware import BlockDevices
from koord.koordlet.cgroup_writer.effects import WriteCgroup
from koord.koordlet.cgroup_writer.executor import CgroupExecutor
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.strategies.blkio import OWNER, BlkioView, decide_blkio
from koord.telemetry.clock import ManualClock

pytestmark = [pytest.mark.real, pytest.mark.machine]

MB = 1_000_000
LAYOUT = CgroupLayout("cgroupfs", (f"koord-disk-{os.getpid()}",))
TOP = LAYOUT.qos_dir(BEST_EFFORT)
PODS = tuple(LAYOUT.pod_dir(BEST_EFFORT, name) for name in ("x", "y"))
CONTAINERS = tuple(f"{pod}/one" for pod in PODS)
# Writes past the page cache for as long as it is told, and prints the bytes per second.
WRITER = """
import mmap, os, sys, time
sys.stdin.readline()
disk, buffer, count = os.open(sys.argv[1], os.O_WRONLY | os.O_DIRECT), mmap.mmap(-1, 1 << 18), 0
begin = time.monotonic()
while time.monotonic() < begin + 2:
    count += os.pwrite(disk, buffer, count % (32 << 20))
print(count / (time.monotonic() - begin), flush=True)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A loop device and its number."""
    if os.geteuid() != 0:
        pytest.skip("loop devices and cgroups need root")
    file = tmp_path / "disk"
    file.write_bytes(bytes(64 << 20))
    made = subprocess.run(["losetup", "--find", "--show", str(file)], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no loop device can be made here: {made.stderr.strip()}")
    path = made.stdout.strip()
    try:
        number = os.stat(path).st_rdev
        yield path, f"{os.major(number)}:{os.minor(number)}"
    finally:
        subprocess.run(["losetup", "--detach", path], check=False)


@pytest.fixture
def tree() -> Iterator[CgroupTree]:
    host = Host.local()
    found = CgroupTree(host, cgroup_version(host), LAYOUT)
    root = Path(found.group_path("blkio", ""))
    if not os.access(root, os.W_OK):
        pytest.skip(f"{root} is not writable here")
    if found.version == 2 and "io" not in (root / "cgroup.subtree_control").read_text().split():
        pytest.skip("the root of cgroup v2 does not hand down io")
    made: list[Path] = []
    try:
        for group in (LAYOUT.prefix[0], LAYOUT.kubepods, TOP, *PODS, *CONTAINERS):
            folder = Path(found.group_path("blkio", group))
            folder.mkdir()
            made.append(folder)
            if found.version == 2 and group not in CONTAINERS:
                (folder / "cgroup.subtree_control").write_text("+io")
        if not found.is_supported(knob.WRITE_BPS, TOP):
            pytest.skip("this kernel does not limit disks")
        yield found
    finally:
        for folder in reversed(made):
            folder.rmdir()


def view(tree: CgroupTree, disk: tuple[str, str], limit: int) -> BlkioView:
    path, number = disk
    blocks = (BlockConfig(name=path, type="device", io_cfg=IOConfig(write_bps=limit)),)
    pods = tuple(
        PodMeta(
            uid=group,
            group=group,
            kube_qos=BEST_EFFORT,
            labels={"koordinator.sh/qosClass": BE},
            containers=(ContainerMeta(name="one", id="containerd://one", group=f"{group}/one", running=True),),
        )
        for group in PODS
    )
    return BlkioView(
        strategy=ResourceQOSStrategy(be_class=ResourceQOS(blkio_qos=BlkIOQOSConfig(enable=True, blocks=blocks))),
        disks=BlockDevices(disks={path: number}),
        besteffort=TOP,
        pods=pods,
        supported=frozenset(name for name in knob.IO_THROTTLES if tree.is_supported(name, TOP)),
        inherited=tree.version == 2,
    )


def rates(tree: CgroupTree, path: str) -> list[float]:
    """Return the bytes per second of a writer in each container, both at the same time."""
    with contextlib.ExitStack() as stack:
        writers = []
        for group in CONTAINERS:
            command = [sys.executable, "-c", WRITER, path]
            writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(writer.wait)
            stack.callback(writer.kill)
            Path(tree.group_path("blkio", group), "cgroup.procs").write_text(str(writer.pid))
            writers.append(writer)
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("\n")
            writer.stdin.flush()
        return [float(writer.communicate(timeout=60)[0]) for writer in writers]


def test_writers_in_two_containers_stay_within_the_limit_of_the_class(tree: CgroupTree, disk: tuple[str, str]) -> None:
    executor = CgroupExecutor(tree, ManualClock())
    plan = decide_blkio(view(tree, disk, 8 * MB))
    writes = [effect for effect in plan.effects if isinstance(effect, WriteCgroup)]
    results = executor.reconcile((OWNER,), writes)
    assert [result for result in results if not result.is_settled] == []
    found = sum(rates(tree, disk[0]))
    assert 0.85 * 8 * MB < found < 1.1 * 8 * MB, f"{found / MB:.1f} instead of 8 MB/s"
    executor.reconcile((OWNER,), ())
    assert disk[1] not in str(tree.read(knob.WRITE_BPS, CONTAINERS[0])), "what nobody wants any more is taken off"


def test_the_kernel_of_cgroup_v1_does_not_look_at_the_limits_of_groups_above(
    tree: CgroupTree, disk: tuple[str, str]
) -> None:
    """The reason for limits of containers: where this fails, they are not needed any more."""
    if tree.version == 2:
        pytest.skip("this machine has cgroup v2")
    Path(tree.group_path("blkio", TOP), knob.WRITE_BPS).write_text(f"{disk[1]} {MB}")
    assert sum(rates(tree, disk[0])) > 4 * MB
