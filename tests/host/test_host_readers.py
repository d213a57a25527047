"""Readers of /proc and /sys parse fake machines, and malformed text is an IoError."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest

from koord.host import hardware_topology, procfs, resctrl
from koord.host.capability import check_kidled
from koord.host.devices import storage, volume_group_of_mapper_name
from koord.host.filesystem import Host, HostPaths
from koord.host.hardware import BlockDevices, MachineCpu, ResctrlLimits
from koord.host.hardware_topology import cpu_model, online_cpus
from koord.host.io_error import IoError
from koord.host.perf import scaled


class Files:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.host = Host(HostPaths().below_root(str(root)))

    def put(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_busy_ticks_leave_out_waiting_and_stolen_time(files: Files) -> None:
    files.put(
        "proc/stat",
        "cpu  10 20 30 400 50 6 7 80 0 0\ncpu0 1 2 3 40 5 1 1 8 0 0\ncpu2 9 18 27 360 45 5 6 72 0 0\nintr 5 5\n",
    )
    found = procfs.cpu_times(files.host)
    assert not isinstance(found, IoError)
    assert (found.total, found.by_cpu) == (73, {0: 8, 2: 65})


@pytest.mark.parametrize("text", ["cpu  1 2 3\n", "cpu  a 2 3 4 5 6 7 8\n", "intr 1\n", ""])
def test_nonsense_in_stat_is_a_fault(files: Files, text: str) -> None:
    files.put("proc/stat", text)
    assert isinstance(procfs.cpu_times(files.host), IoError)


def test_memory(files: Files) -> None:
    files.put("proc/meminfo", "MemTotal:  1000 kB\nMemFree:  200 kB\nMemAvailable:  600 kB\nHugePages_Total:  3\n")
    found = procfs.meminfo(files.host)
    assert not isinstance(found, IoError)
    assert (found.used, found.used_with_page_cache) == (400 * 1024, 800 * 1024)
    files.put("proc/meminfo", "MemTotal:  1000 kB\nMemFree:  200 kB\n")
    assert isinstance(procfs.meminfo(files.host), IoError)


def _cpu(files: Files, cpu: int, siblings: str, package: int, l3: str, node: int) -> None:
    base = f"sys/devices/system/cpu/cpu{cpu}"
    files.put(f"{base}/topology/thread_siblings_list", f"{siblings}\n")
    files.put(f"{base}/topology/physical_package_id", f"{package}\n")
    for index, level in enumerate((1, 1, 2, 3)):
        files.put(f"{base}/cache/index{index}/level", f"{level}\n")
    files.put(f"{base}/cache/index3/shared_cpu_list", f"{l3}\n")


def test_processors_are_numbered_as_lscpu_does(files: Files) -> None:
    files.put("sys/devices/system/cpu/online", "0-5\n")
    files.put("sys/devices/system/node/node0/cpulist", "0,2,4\n")
    files.put("sys/devices/system/node/node1/cpulist", "1,3,5-6\n")
    for cpu in (0, 1, 2, 3):
        _cpu(files, cpu, f"{cpu % 2},{cpu % 2 + 2}", 8 * (cpu % 2), "0,2,4" if cpu % 2 == 0 else "1,3,5", cpu % 2)
    _cpu(files, 4, "4", 0, "0,2,4", 0)
    # cpu5 has no topology folder; cpu6 is offline
    found = online_cpus(files.host)
    assert found == [
        MachineCpu(0, 0, 0, 0, 0),
        MachineCpu(0, 0, 0, 2, 0),
        MachineCpu(0, 0, 2, 4, 0),
        MachineCpu(1, 0, 3, 5, 0),
        MachineCpu(1, 1, 1, 1, 1),
        MachineCpu(1, 1, 1, 3, 1),
    ]


def test_the_model_of_the_processor(files: Files) -> None:
    files.put(
        "proc/cpuinfo", "vendor_id\t: GenuineIntel\nmodel name\t: Xeon\nflags\t: a cat_l3 mba\n\nvendor_id\t: Other\n"
    )
    files.put("sys/devices/system/cpu/smt/active", "1\n")
    files.put("sys/devices/system/cpu/intel_pstate/no_turbo", "0\n")
    files.put("sys/fs/resctrl/info/L3/cbm_mask", "7ff\n")
    found = cpu_model(files.host)
    assert not isinstance(found, IoError)
    assert (found.vendor, found.model, found.hyper_threads, found.turbo) == ("GenuineIntel", "Xeon", True, True)
    assert found.cat_l3_mask == "7ff"
    assert resctrl.check_supported(files.host) is None
    files.put("proc/cpuinfo", "vendor_id\t: X\nflags\t: cat_l3\n")
    assert "no mba" in str(resctrl.check_supported(files.host))


def test_arm_has_resctrl_where_its_kernel_registers_it(files: Files) -> None:
    files.put("proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x48\n\nprocessor\t: 1\n")
    assert isinstance(resctrl.check_supported(files.host), IoError), "no list of file systems"
    files.put("proc/filesystems", "nodev\tsysfs\nnodev\tcgroup2\n\text4\n")
    assert "no MPAM" in str(resctrl.check_supported(files.host))
    files.put("proc/filesystems", "nodev\tsysfs\nnodev\tresctrl\n\text4\n")
    assert resctrl.check_supported(files.host) is None


def test_limits_are_those_that_the_kernel_tells(files: Files) -> None:
    assert resctrl.limits(files.host) == ResctrlLimits(has_bandwidth=False)
    for path, text in (("L3/min_cbm_bits", "2"), ("MB/min_bandwidth", "1"), ("MB/bandwidth_gran", "junk")):
        files.put(f"sys/fs/resctrl/info/{path}", f"{text}\n")
    assert resctrl.limits(files.host) == ResctrlLimits(min_ways=2, min_bandwidth=1, bandwidth_step=10)


def test_numa_memory_counts_page_cache_as_free(files: Files) -> None:
    base = "sys/bus/node/devices"
    text = (
        "Node 0 MemTotal: 1000 kB\nNode 0 MemFree: 100 kB\nNode 0 Active(file): 50 kB\nNode 0 Inactive(file): 25 kB\n"
    )
    files.put(f"{base}/node0/meminfo", text + "Node 0 SReclaimable: 25 kB\n")
    files.put(f"{base}/node1/meminfo", "Node 1 MemTotal: 10 kB\nNode 1 MemFree: 20 kB\n")
    files.put(f"{base}/node0/hugepages/hugepages-2048kB/nr_hugepages", "7\n")
    nodes = hardware_topology.numa_nodes(files.host)
    assert not isinstance(nodes, IoError)
    assert [(node.id, node.total, node.used) for node in nodes] == [(0, 1000 * 1024, 800 * 1024), (1, 10 * 1024, 0)]
    pages = hardware_topology.huge_pages(files.host)
    assert not isinstance(pages, IoError)
    assert [(one.pages_2m, one.pages_1g) for one in pages] == [(7, 0), (0, 0)]


def test_numa_nodes_that_only_start_accesses_do_not_count_and_holes_are_faults(files: Files) -> None:
    for node in (0, 1, 2):
        files.put(f"sys/bus/node/devices/node{node}/meminfo", "")
    files.put("sys/devices/system/node/has_generic_initiator", "2\n")
    assert hardware_topology.numa_ids(files.host) == [0, 1]
    files.put("sys/devices/system/node/has_generic_initiator", "1\n")
    assert isinstance(hardware_topology.numa_ids(files.host), IoError)


def test_resctrl_groups(files: Files) -> None:
    base = "sys/fs/resctrl"
    files.put(f"{base}/schemata", "    L3:0=fff;1=fff\n    MB:0=100;1=100\n")
    files.put(f"{base}/info/L3/cbm_mask", "fff\n")
    for name, count in {"llc_occupancy": 10, "mbm_local_bytes": 20, "mbm_total_bytes": 30}.items():
        files.put(f"{base}/BE/mon_data/mon_L3_01/{name}", f"{count}\n")
    found = resctrl.read_schemata(files.host)
    assert not isinstance(found, IoError)
    assert (found.l3, found.mb) == ({0: 0xFFF, 1: 0xFFF}, {0: 100, 1: 100})
    assert (resctrl.cbm_mask(files.host), resctrl.is_mounted(files.host)) == (0xFFF, True)
    assert resctrl.monitors(files.host, "BE") == [resctrl.CacheMonitor(1, 10, 20, 30)]
    assert resctrl.make_group(files.host, "LS") is None
    assert resctrl.make_group(files.host, "LS") is None
    assert resctrl.groups(files.host) == ["BE", "LS"]
    assert resctrl.remove_group(files.host, "LS") is None
    files.put(f"{base}/info/L3/cbm_mask", "5\n")
    assert isinstance(resctrl.cbm_mask(files.host), IoError)
    files.put(f"{base}/BE/mon_data/mon_L3_01/llc_occupancy", "Unavailable\n")
    assert isinstance(resctrl.monitors(files.host, "BE"), IoError)


def test_mounting_resctrl_where_there_is_no_place_for_it(files: Files) -> None:
    assert isinstance(resctrl.mount(files.host), IoError)
    files.put("sys/fs/resctrl/info/L3/cbm_mask", "fff\n")
    assert resctrl.mount(files.host) is None, "it is mounted already"


def test_cold_memory_tracking(files: Files) -> None:
    assert check_kidled(files.host) is not None
    files.put("sys/kernel/mm/kidled/scan_period_in_seconds", "0\n")
    files.put("sys/kernel/mm/kidled/use_hierarchy", "0\n")
    assert check_kidled(files.host) is None


def test_storage_without_tools(files: Files) -> None:
    files.put("sys/block/vda/dev", "254:0\n")
    files.put("sys/block/vda/vda1/partition", "1\n")
    files.put("sys/block/loop0/dev", "7:0\n")
    files.put("sys/block/dm-0/dev", "253:0\n")
    files.put("sys/block/dm-0/dm/name", "my--vg-data\n")
    files.put("sys/block/dm-0/dm/uuid", "LVM-abc\n")
    files.put("sys/block/dm-0/slaves/vda1/dev", "254:1\n")
    files.put("proc/1/mountinfo", "22 1 253:0 / /var/my\\040data rw shared:1 - ext4 /dev/mapper/my--vg-data rw\n")
    assert storage(files.host) == BlockDevices(
        disks={"/dev/vda": "254:0"},
        partitions={"/dev/vda1": "/dev/vda"},
        volume_groups={"my-vg": "/dev/vda"},
        logical_volumes={"/dev/mapper/my--vg-data": "my-vg"},
        mounts={"/var/my data": "/dev/mapper/my--vg-data"},
    )
    assert volume_group_of_mapper_name("a-b--c") == "a"


def test_counters_are_scaled_by_the_time_they_ran() -> None:
    assert (scaled(100, 10, 5), scaled(100, 0, 0)) == (200.0, 100.0)


def test_nothing_is_made_by_writing(files: Files) -> None:
    io_error = files.host.write(str(files.root / "new"), "1")
    assert io_error is not None
    assert (io_error.errno, io_error.vanished, io_error.code) == (errno.ENOENT, True, "ENOENT")
    assert not (files.root / "new").exists()


def test_state_files(files: Files) -> None:
    path = str(files.root / "deep/state")
    assert files.host.append_file(path, "one\n") is None
    assert files.host.append_file(path, "two\n") is None
    assert files.host.read(path) == "one\ntwo\n"
    assert files.host.replace_file(path, "three\n") is None
    assert files.host.read(path) == "three\n"
    (files.root / "file").write_text("")
    assert isinstance(files.host.append_file(str(files.root / "file/below"), "x"), IoError)


def test_a_line_that_does_not_fit_leaves_no_half(files: Files) -> None:
    path, limits = str(files.root / "state/journal"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        assert files.host.append_file(path, "a" * 79 + "\n") is None
        refused = files.host.append_file(path, "b" * 79 + "\n")
        replaced = files.host.replace_file(path, "c" * 179 + "\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [one is not None and one.code for one in (refused, replaced)] == ["EFBIG", "EFBIG"]
    assert files.host.read(path) == "a" * 79 + "\n"
    assert files.host.list_names(str(files.root / "state")) == ["journal"]
