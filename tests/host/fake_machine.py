"""A fake machine in a directory: /proc, /sys and the cgroups of either version, driver and prefix."""

from __future__ import annotations

from pathlib import Path

from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE, GUARANTEED
from koord.host.cgroup.layout import CgroupLayout
from koord.host.cgroup.tree import CgroupTree
from koord.host.filesystem import Host, HostPaths

V1_SUBSYSTEMS = ("cpu", "cpuacct", "cpuset", "memory", "blkio", "net_cls", "perf_event")
TIERS = (GUARANTEED, BURSTABLE, BEST_EFFORT)
_PSI = "some avg10=1.50 avg60=0.75 avg300=0.25 total=1234\nfull avg10=0.50 avg60=0.25 avg300=0.10 total=234\n"
_UNLIMITED_V1 = "9223372036854771712\n"

_V1_FILES = {
    "cpu": {
        "cpu.shares": "1024\n",
        "cpu.cfs_quota_us": "-1\n",
        "cpu.cfs_period_us": "100000\n",
        "cpu.cfs_burst_us": "0\n",
        "cpu.idle": "0\n",
        "cpu.stat": "nr_periods 100\nnr_throttled 7\nthrottled_time 9000\nnr_bursts 0\nburst_time 0\n",
        "tasks": "",
        "cgroup.procs": "",
    },
    "cpuacct": {"cpuacct.usage": "5000000000\n", "cpuacct.stat": "user 300\nsystem 200\n"},
    "cpuset": {"cpuset.cpus": "0-3\n", "cpuset.mems": "0\n"},
    "memory": {
        "memory.limit_in_bytes": _UNLIMITED_V1,
        "memory.memsw.limit_in_bytes": _UNLIMITED_V1,
        "memory.usage_in_bytes": "1048576\n",
        "memory.stat": (
            "cache 1\nrss 2\ntotal_cache 700\ntotal_rss 300\ntotal_inactive_file 400\ntotal_active_file 200\n"
            "total_inactive_anon 100\ntotal_active_anon 50\ntotal_unevictable 5\n"
        ),
        "memory.numa_stat": "total=30 N0=20 N1=10\nfile=20 N0=15 N1=5\n",
    },
    "blkio": {
        "blkio.throttle.read_bps_device": "",
        "blkio.throttle.write_bps_device": "",
        "blkio.throttle.read_iops_device": "",
        "blkio.throttle.write_iops_device": "",
    },
    "net_cls": {"net_cls.classid": "0\n"},
    "perf_event": {},
}
_V1_VENDOR = {
    "cpu": {"cpu.bvt_warp_ns": "0\n"},
    "memory": {
        "memory.min": "0\n",
        "memory.low": "0\n",
        "memory.high": "9223372036854775807\n",
        "memory.wmark_ratio": "0\n",
        "memory.wmark_scale_factor": "50\n",
        "memory.wmark_min_adj": "0\n",
        "memory.priority": "0\n",
        "memory.use_priority_oom": "0\n",
        "memory.oom.group": "0\n",
    },
    "cpuacct": {"cpu.pressure": _PSI, "memory.pressure": _PSI, "io.pressure": _PSI},
    "blkio": {"blkio.cost.weight": "100\n", "blkio.cost.qos": "", "blkio.cost.model": ""},
}
_V2_FILES = {
    "cgroup.controllers": "cpuset cpu io memory\n",
    "cpu.weight": "100\n",
    "cpu.max": "max 100000\n",
    "cpu.max.burst": "0\n",
    "cpu.idle": "0\n",
    "cpu.stat": "usage_usec 5000000\nuser_usec 1\nsystem_usec 1\nnr_periods 100\nnr_throttled 7\nthrottled_usec 9\n",
    "cgroup.procs": "",
    "cgroup.threads": "",
    "cpuset.cpus": "\n",
    "cpuset.cpus.effective": "0-3\n",
    "cpu.pressure": _PSI,
    "memory.pressure": _PSI,
    "io.pressure": _PSI,
    "memory.max": "max\n",
    "memory.current": "1048576\n",
    "memory.stat": (
        "anon 300\nfile 700\ninactive_anon 100\nactive_anon 50\ninactive_file 400\nactive_file 200\nunevictable 5\n"
    ),
    "memory.numa_stat": "anon N0=81920 N1=0\nfile N0=40960 N1=4096\n",
    "memory.min": "0\n",
    "memory.low": "0\n",
    "memory.high": "max\n",
    "memory.oom.group": "0\n",
    "io.max": "",
    "io.weight": "default 100\n",
}


class FakeMachine:
    """Writes files of a machine below `root`; tests read them back through `host` and `tree`."""

    def __init__(
        self,
        root: Path,
        version: int = 1,
        layout: CgroupLayout | None = None,
        *,
        vendor: bool = False,
        only: frozenset[str] = frozenset(),
    ) -> None:
        """`only` names the files to make, for tests that build many machines."""
        self.root = root
        self.version = version
        self.layout = layout or CgroupLayout("cgroupfs")
        self.vendor = vendor
        self._only = only
        self.paths = HostPaths().below_root(str(root))
        self.host = Host(self.paths)
        for group in ("", *dict.fromkeys(map(self.layout.qos_dir, TIERS))):
            self.make(group)
        if version == 1:
            self.put("sys/fs/cgroup/unified/cgroup.controllers", "hugetlb\n")

    @property
    def tree(self) -> CgroupTree:
        return CgroupTree(self.host, self.version, self.layout)

    def put(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def make(self, group: str) -> str:
        """Make a group and its missing parents, with all the files that the kernel would make."""
        for name in _lineage(group):
            if self.version == 2:
                self._fill("", name, _V2_FILES)
                continue
            for subsystem in V1_SUBSYSTEMS:
                self._fill(subsystem, name, _V1_FILES[subsystem])
                if self.vendor:
                    self._fill(subsystem, name, _V1_VENDOR.get(subsystem, {}))
        return group

    def pod(self, qos: str, uid: str, *container_ids: str) -> str:
        group = self.make(self.layout.pod_dir(qos, uid))
        for container_id in container_ids:
            self.make(self.layout.container_dir(group, container_id) or group)
        return group

    def text(self, knob: str, group: str) -> str:
        text = self.tree.read(knob, group)
        assert isinstance(text, str), text
        return text.strip()

    def snapshot(self) -> dict[str, str]:
        """Every file below the cgroup root."""
        base = Path(self.paths.cgroup)
        return {str(file.relative_to(base)): file.read_text() for file in sorted(base.rglob("*")) if file.is_file()}

    def remove(self, group: str) -> None:
        for subsystem in V1_SUBSYSTEMS if self.version == 1 else ("",):
            folder = Path(self.tree.group_path(subsystem, group))
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            if folder.is_dir():
                folder.rmdir()

    def _fill(self, subsystem: str, group: str, files: dict[str, str]) -> None:
        files = {name: text for name, text in files.items() if not self._only or name in self._only}
        if self._only and not files:
            return
        folder = Path(self.tree.group_path(subsystem, group))
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            if not (folder / name).exists():
                (folder / name).write_text(text)


def _lineage(group: str) -> list[str]:
    parts = group.split("/") if group else []
    return ["", *("/".join(parts[: index + 1]) for index in range(len(parts)))]
