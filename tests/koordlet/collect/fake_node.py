"""A fake node that runs: a machine in a directory whose counters move with a clock, and pods with groups in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from koord.api.koordinator.protocol import BURSTABLE
from koord.host.cgroup.layout import CgroupLayout
from koord.host.cgroup.usage import FdBudget
from koord.koordlet.collect.collector import CollectSettings
from koord.koordlet.collect.collector_set import CollectorSet
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SeriesKey, SeriesStore
from koord.telemetry.clock import ManualClock
from tests.host.fake_machine import FakeMachine

CPUS = 4
FILES = frozenset(
    {
        "cpu.stat",
        "cpuacct.usage",
        "memory.stat",
        "memory.numa_stat",
        "memory.usage_in_bytes",
        "memory.current",
        "cpuset.cpus",
        "cpuset.cpus.effective",
        "cpu.cfs_quota_us",
        "cpu.cfs_period_us",
        "cpu.max",
        "cpu.pressure",
        "memory.pressure",
        "io.pressure",
        "cgroup.controllers",
    }
)


class FakeNode:
    """Memory is in bytes; `run` moves the clock and then takes a sample."""

    def __init__(
        self,
        root: Path,
        version: int,
        layout: CgroupLayout | None = None,
        settings: CollectSettings | None = None,
        numa: int = 1,
    ) -> None:
        self.machine = FakeMachine(root, version, layout, vendor=True, only=FILES)
        self.version = version
        self.clock = ManualClock()
        self.store = SeriesStore(metric_kind.retention_s())
        self.pods: tuple[PodMeta, ...] = ()
        self.ticks = 0.0
        self.used_ns: dict[str, int] = {}
        self.throttled: dict[str, tuple[int, int]] = {}
        for node in range(numa):
            own = f"{node * CPUS // numa}-{(node + 1) * CPUS // numa - 1}"
            self.machine.put(f"sys/devices/system/node/node{node}/cpulist", f"{own}\n")
            self.machine.put(
                f"sys/bus/node/devices/node{node}/meminfo",
                f"Node {node} MemTotal: {8 * 2**20 // numa} kB\nNode {node} MemFree: {4 * 2**20 // numa} kB\n",
            )
        self.machine.put("sys/devices/system/cpu/online", f"0-{CPUS - 1}\n")
        self.machine.put("proc/cpuinfo", "processor : 0\nvendor_id : Maker\nmodel name : Model\nflags : a\n")
        self.put_memory()
        self.put_ticks(0.0)
        self.collection = CollectorSet(
            self.machine.tree, self.store, self.clock, settings or CollectSettings(), budget=FdBudget(0)
        )

    # -- the world

    def put_memory(self, available_gib: float = 6.0) -> None:
        self.machine.put(
            "proc/meminfo",
            f"MemTotal: {8 * 2**20} kB\nMemFree: {4 * 2**20} kB\nMemAvailable: {int(available_gib * 2**20)} kB\n",
        )

    def put_ticks(self, cores: float) -> None:
        """Add a second of so many busy cores, spread over all of them."""
        self.ticks += cores * 100
        each = self.ticks / CPUS
        lines = [f"cpu  {int(self.ticks)} 0 0 500 0 0 0 0 0 0"]
        lines += [f"cpu{number} {int(each)} 0 0 500 0 0 0 0 0 0" for number in range(CPUS)]
        self.machine.put("proc/stat", "\n".join([*lines, "intr 1"]) + "\n")

    def pod(
        self, name: str, qos: str = BURSTABLE, *, requests: Mapping[str, int] | None = None, **changes: Any
    ) -> PodMeta:
        identity = f"containerd://{name}-box"
        group = self.machine.pod(qos, name, identity)
        box = self.machine.layout.container_dir(group, identity) or ""
        for one in (group, box):
            self.use(one, 0.0)
            self.hold(one, 0)
            self.throttle(one, 0, 0)
        container = ContainerMeta(name="box", id=identity, group=box, running=True, requests=requests or {})
        view = PodMeta(uid=name, name=name, group=group, kube_qos=qos, containers=(container,), **changes)
        self.pods = (*self.pods, view)
        return view

    def use(self, group: str, cores: float, seconds: float = 1.0) -> None:
        self.used_ns[group] = self.used_ns.get(group, 0) + int(cores * seconds * 1e9)
        self.set_ns(group, self.used_ns[group])

    def set_ns(self, group: str, total: int) -> None:
        self.used_ns[group] = total
        if self.version == 1:
            self._put("cpuacct", group, "cpuacct.usage", f"{total}\n")
        else:
            self.throttle(group, *self.throttled.get(group, (0, 0)))

    def throttle(self, group: str, periods: int, throttled: int) -> None:
        self.throttled[group] = (periods, throttled)
        usage = f"usage_usec {self.used_ns.get(group, 0) // 1000}\n" if self.version == 2 else ""
        time = "throttled_usec" if self.version == 2 else "throttled_time"
        text = f"{usage}nr_periods {periods}\nnr_throttled {throttled}\n{time} 5\n"
        self._put("cpu", group, "cpu.stat", text)

    def hold(self, group: str, anonymous: int, cache: int = 0) -> None:
        above = "total_" if self.version == 1 else ""
        names = {
            "inactive_anon": anonymous,
            "active_anon": 0,
            "unevictable": 0,
            "inactive_file": cache,
            "active_file": 0,
        }
        names |= {"cache": cache, "rss": anonymous} if self.version == 1 else {"file": cache, "anon": anonymous}
        lines = [f"{above}{name} {value}" for name, value in names.items()]
        self._put("memory", group, "memory.stat", "\n".join(["cache 1", *lines]) + "\n")
        half = anonymous // 2
        if self.version == 1:
            pages = half // 4096
            numa = f"total=0 N0=0 N1=0\nhierarchical_anon={2 * pages} N0={pages} N1={pages}\n"
            numa += "hierarchical_unevictable=0 N0=0 N1=0\n"
        else:
            numa = f"anon N0={half} N1={half}\ninactive_anon N0={half} N1={half}\n"
            numa += "active_anon N0=0 N1=0\nunevictable N0=0 N1=0\n"
        self._put("memory", group, "memory.numa_stat", numa)

    def file(self, subsystem: str, group: str, name: str) -> Path:
        return Path(self.machine.tree.group_path(subsystem, group)) / name

    def _put(self, subsystem: str, group: str, name: str, text: str) -> None:
        file = self.file(subsystem, group, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    # -- looking

    def sample(self) -> None:
        self.collection.sample(self.clock.time(), self.pods)

    def run(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        self.sample()

    def latest(self, *key: str) -> float | None:
        return self.store.latest(key, self.clock.time())

    def count(self, key: SeriesKey) -> int:
        return self.store.window(key, self.clock.time(), 1800).count
