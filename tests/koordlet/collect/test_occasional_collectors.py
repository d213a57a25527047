"""Collectors that look now and then: pressure, cycles, cold memory, resctrl, disks."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from koord.host.cgroup.layout import CgroupLayout
from koord.host.filesystem import Host
from koord.host.hardware import LOST, GpuCard, GpuHealth, GpuProcessUsage
from koord.host.io_error import IoError, unsupported
from koord.host.perf import Cpi
from koord.koordlet.collect.collector import CollectorStatuses, CollectSettings
from koord.koordlet.collect.gpu import GpuCollector
from koord.koordlet.collect.performance import CpiCollector
from koord.koordlet.series import metric_kind
from tests.koordlet.collect.fake_node import FakeNode

IDLE_HEAD = "# version: 1.0\n# scans: 1\n# slabs: 0\n# period: 5\n# hierarchy: 1\n# buckets: 1,2\n"


def idle_pages(cold: int) -> str:
    """Thirty-one lines, of which the seventh and later buckets of four rows are cold."""
    rows = [f"{name} 1 1 1 1 1 {cold} 0 0" for name in ("cfei", "dfei", "cfui", "dfui")]
    others = [f"row{number} 9 9 9 9 9 9 9 9" for number in range(13)]
    return IDLE_HEAD + "#\n" * 8 + "\n".join([*rows, *others]) + "\n"


class TestPressure:
    @pytest.mark.parametrize("version", [1, 2], ids=["v1", "v2"])
    def test_stalls_of_pods_and_containers_every_ten_seconds(self, tmp_path: Path, version: int) -> None:
        node = FakeNode(tmp_path, version, settings=CollectSettings(psi=True))
        pod = node.pod("a")
        for _ in range(21):
            node.run()
        key = (metric_kind.POD_PSI, "a", "cpu", "10", "some")
        assert node.count(key) == 3
        assert node.store.window(key, node.clock.time(), 60).last == 1.5
        assert node.count((metric_kind.CONTAINER_PSI, pod.containers[0].id, "mem", "10", "full")) == 3
        assert node.store.window((metric_kind.POD_PSI_CPU_FULL_SUPPORTED, "a"), node.clock.time(), 60).last == 1
        assert node.collection.pressure["a", ""]["io"].some.avg300 == 0.25
        node.pods = ()
        for _ in range(10):
            node.run()
        assert not node.collection.pressure, "a pod that is gone is not kept"

    def test_a_kernel_without_it_is_told_once_and_waited_for_by_nobody(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        node = FakeNode(tmp_path, 1, settings=CollectSettings(psi=True))
        for name in ("cpu", "memory", "io"):
            node.file("cpuacct", node.machine.layout.kubepods, f"{name}.pressure").unlink()
        for _ in range(30):
            node.put_ticks(1)
            node.run()
        assert len([line for line in caplog.messages if "pressure" in line]) == 1
        assert node.collection.all_answered


class TestColdMemory:
    def node(self, root: Path, *, kidled: bool) -> FakeNode:
        node = FakeNode(root, 1, settings=CollectSettings(cold_pages=True))
        if kidled:
            for name in ("scan_period_in_seconds", "use_hierarchy"):
                node.machine.put(f"sys/kernel/mm/kidled/{name}", "0\n")
        return node

    def test_hot_memory_is_what_is_left(self, tmp_path: Path) -> None:
        node = self.node(tmp_path, kidled=True)
        pod = node.pod("a")
        node.hold(pod.group, 10_000, cache=5_000)
        node.file("memory", "", "memory.idle_page_stats").write_text(idle_pages(2**28))
        node.file("memory", pod.group, "memory.idle_page_stats").write_text(idle_pages(1_000))
        node.run()
        assert (node.machine.root / "sys/kernel/mm/kidled/scan_period_in_seconds").read_text() == "5"
        assert node.collection.knows_hot_pages
        assert node.latest(metric_kind.POD_MEMORY_COLD_PAGES, "a") == 4_000
        assert node.latest(metric_kind.POD_MEMORY_WITH_HOT_PAGES, "a") == 11_000
        assert node.latest(metric_kind.NODE_MEMORY_COLD_PAGES) == 2**30
        assert node.latest(metric_kind.NODE_MEMORY_WITH_HOT_PAGES) == 3 * 2**30

    def test_more_cold_than_used_is_not_a_huge_number(self, tmp_path: Path) -> None:
        node = self.node(tmp_path, kidled=True)
        pod = node.pod("a")
        node.file("memory", pod.group, "memory.idle_page_stats").write_text(idle_pages(1_000))
        node.run()
        assert node.latest(metric_kind.POD_MEMORY_WITH_HOT_PAGES, "a") == 0

    def test_a_kernel_without_kidled(self, tmp_path: Path) -> None:
        node = self.node(tmp_path, kidled=False)
        node.run()
        assert not node.collection.knows_hot_pages
        assert "kidled" in node.collection.statuses["cold-memory"].problem
        assert node.collection.statuses["cold-memory"].answered


class TestResctrl:
    def test_occupancy_and_bandwidth_of_classes(self, tmp_path: Path) -> None:
        node = FakeNode(tmp_path, 1, settings=CollectSettings(resctrl=True))
        node.machine.put("sys/fs/resctrl/info/L3/cbm_mask", "fff\n")

        def put(total: int) -> None:
            folder = "sys/fs/resctrl/LS/mon_data/mon_L3_00"
            for name, value in (("llc_occupancy", 4096), ("mbm_local_bytes", total // 2), ("mbm_total_bytes", total)):
                node.machine.put(f"{folder}/{name}", f"{value}\n")

        put(0)
        node.run()
        put(10_000_000)
        for _ in range(10):
            node.run()
        now_s = node.clock.time()
        assert node.store.window((metric_kind.CACHE_OCCUPANCY, "LS", "0"), now_s, 60).last == 4096
        assert node.store.window((metric_kind.MEMORY_BANDWIDTH, "LS", "0", "total"), now_s, 60).last == 1_000_000
        assert node.store.window((metric_kind.MEMORY_BANDWIDTH, "LS", "0", "local"), now_s, 60).last == 500_000
        assert set(node.collection.cache_monitors) == {"LS"}

    def test_without_the_file_system(self, tmp_path: Path) -> None:
        node = FakeNode(tmp_path, 1, settings=CollectSettings(resctrl=True))
        node.run()
        assert "not mounted" in node.collection.statuses["resctrl"].problem


class TestStorage:
    def test_disks_are_looked_at_when_switched_on(self, tmp_path: Path) -> None:
        node = FakeNode(tmp_path, 2, settings=CollectSettings(storage=True))
        node.machine.put("sys/block/vda/dev", "254:0\n")
        node.machine.put("proc/1/mountinfo", "22 1 254:0 / / rw - ext4 /dev/vda rw\n")
        node.run()
        found = node.collection.info.storage
        assert found is not None
        assert found.disks == {"/dev/vda": "254:0"}
        assert found.mounts == {"/": "/dev/vda"}

    def test_what_is_known_stays_when_a_look_fails(self, tmp_path: Path) -> None:
        node = FakeNode(tmp_path, 2)
        node.run()
        assert node.collection.info.cpus == 4
        (node.machine.root / "sys/devices/system/cpu/online").unlink()
        node.run(61)
        assert node.collection.info.cpus == 4
        assert node.collection.statuses["node-info"].problem


class FakeCounter:
    def __init__(self, perf: FakePerf) -> None:
        self.perf = perf
        perf.open += 1
        perf.most = max(perf.most, perf.open)

    def read(self) -> Cpi | IoError:
        return Cpi(2_000_000, 1_000_000)

    def close(self) -> None:
        self.perf.open -= 1


class FakePerf:
    def __init__(self) -> None:
        self.open = 0
        self.most = 0
        self.folders: list[str] = []
        self.refusal: IoError | None = None

    def available(self) -> IoError | None:
        return self.refusal

    def open_cpi(self, host: Host, folder: str, cpus: list[int]) -> FakeCounter | IoError:
        self.folders.append(folder)
        return FakeCounter(self)


class TestCycles:
    def build(
        self, root: Path, pods: int, most: int = 4096
    ) -> tuple[FakeNode, FakePerf, CpiCollector, CollectorStatuses]:
        node = FakeNode(root, 1, CgroupLayout("cgroupfs"))
        for number in range(pods):
            node.pod(f"p{number}")
        perf, conditions = FakePerf(), CollectorStatuses(("cycles",))
        tree = node.machine.tree
        return node, perf, CpiCollector(tree, node.store, conditions, 60, 10, most, counting=perf), conditions

    def run(self, node: FakeNode, collector: CpiCollector, seconds: int) -> None:
        for _ in range(seconds):
            node.clock.advance(1)
            collector.sample(node.clock.monotonic(), node.clock.time(), node.pods, range(4))

    def test_they_are_counted_for_a_window_each_minute(self, tmp_path: Path) -> None:
        node, perf, collector, conditions = self.build(tmp_path, 2)
        self.run(node, collector, 5)
        assert perf.open == 2
        assert "perf_event" in perf.folders[0]
        self.run(node, collector, 7)
        assert perf.open == 0
        identity = node.pods[0].containers[0].id
        assert (
            node.store.window((metric_kind.CONTAINER_CPI, identity, "cycle"), node.clock.time(), 60).last == 2_000_000
        )
        self.run(node, collector, 48)
        assert len(perf.folders) == 2
        self.run(node, collector, 2)
        assert len(perf.folders) == 4
        assert not conditions.current["cycles"].problem
        collector.close()
        assert perf.open == 0

    def test_more_containers_than_descriptors_take_turns(self, tmp_path: Path) -> None:
        node, perf, collector, _ = self.build(tmp_path, 5, most=2 * 4 * 2)
        self.run(node, collector, 200)
        assert perf.most == 2
        assert len(set(perf.folders)) == 5, "everyone had a turn"

    def test_a_machine_without_counters_keeps_nobody_waiting(self, tmp_path: Path) -> None:
        node, perf, collector, conditions = self.build(tmp_path, 1)
        perf.refusal = unsupported("perf_event_open", "no counters here")
        self.run(node, collector, 130)
        assert conditions.all_answered
        assert "no counters" in conditions.current["cycles"].problem
        assert not perf.folders


class FakeCards:
    def __init__(self) -> None:
        self.found: list[GpuProcessUsage] | IoError = []
        self.failing = GpuHealth()
        self.unidentified = 0
        self.opening = threading.Event()
        self.opening.set()
        self.listed = threading.Semaphore(0)
        self.closed = False

    def driver(self) -> str:
        return "550"

    def cards(self) -> list[GpuCard] | IoError:
        self.listed.release()
        self.opening.wait()
        return [GpuCard(uuid="GPU-0", minor=0, total_bytes=2**30, address="0000:3b:00.0", model="A100")]

    def uses(self, card: GpuCard) -> list[GpuProcessUsage] | IoError:
        return self.found

    def health(self) -> dict[str, GpuHealth]:
        return {"GPU-0": self.failing}

    def close(self) -> None:
        self.closed = True


class TestGpu:
    WHICH = ("0", "GPU-0")

    def test_use_by_node_pod_and_container(self, tmp_path: Path) -> None:
        node = FakeNode(tmp_path, 1)
        pod, other = node.pod("a"), node.pod("b")
        box = pod.containers[0]
        node.file("cpu", box.group, "cgroup.procs").write_text("41\n7\n")
        node.file("cpu", other.containers[0].group, "cgroup.procs").write_text("8\n")
        cards, conditions = FakeCards(), CollectorStatuses(("gpu",))
        cards.found = [GpuProcessUsage(41, 30, 1000), GpuProcessUsage(99, 20, 500)]
        collector = GpuCollector(node.machine.tree, node.store, conditions, cards)
        collector.sample(node.clock.monotonic(), node.clock.time(), node.pods)
        assert node.latest(metric_kind.NODE_GPU_CORE, *self.WHICH) == 50
        assert node.latest(metric_kind.NODE_GPU_MEMORY, *self.WHICH) == 1500
        assert node.latest(metric_kind.POD_GPU_CORE, "a", *self.WHICH) == 30
        assert node.latest(metric_kind.CONTAINER_GPU_MEMORY, box.id, *self.WHICH) == 1000
        assert node.latest(metric_kind.POD_GPU_CORE, "b", *self.WHICH) is None
        assert collector.cards[0].uuid == "GPU-0"
        assert conditions.all_answered
        collector.close()
        assert cards.closed

    def test_a_card_that_does_not_answer_is_told(self, tmp_path: Path) -> None:
        node = FakeNode(tmp_path, 1)
        cards, conditions = FakeCards(), CollectorStatuses(("gpu",))
        cards.found = unsupported("nvml", "lost")
        GpuCollector(node.machine.tree, node.store, conditions, cards).sample(0, node.clock.time(), ())
        assert "lost" in conditions.current["gpu"].problem

    def test_a_lost_card_is_not_asked_and_stays_listed(self, tmp_path: Path) -> None:
        node = FakeNode(tmp_path, 1)
        cards, conditions = FakeCards(), CollectorStatuses(("gpu",))
        cards.found, cards.failing = unsupported("nvml", "lost"), LOST
        collector = GpuCollector(node.machine.tree, node.store, conditions, cards)
        collector.sample(0, node.clock.time(), ())
        assert not conditions.current["gpu"].problem
        assert [card.uuid for card in collector.cards] == ["GPU-0"]
        assert collector.health == {"GPU-0": LOST}

    def test_a_lost_card_is_looked_for_without_keeping_anybody_waiting(self, tmp_path: Path) -> None:
        node = FakeNode(tmp_path, 1)
        cards, conditions = FakeCards(), CollectorStatuses(("gpu",))
        collector = GpuCollector(node.machine.tree, node.store, conditions, cards)
        cards.failing = LOST
        collector.sample(0, node.clock.time(), ())
        cards.opening.clear()
        collector.sample(60, node.clock.time(), ())
        for _ in range(2):
            assert cards.listed.acquire(timeout=20), "a thread lists them the second time"
        collector.sample(61, node.clock.time(), ())
        assert collector.health == {"GPU-0": LOST}
        cards.failing = GpuHealth()
        cards.opening.set()
        deadline = time.monotonic() + 20
        while node.latest(metric_kind.NODE_GPU_CORE, *self.WHICH) is None:
            assert time.monotonic() < deadline
            collector.sample(62, node.clock.time(), ())
        assert collector.health == {"GPU-0": GpuHealth()}
        collector.close()

    def test_a_machine_without_cards_keeps_nobody_waiting(self, tmp_path: Path) -> None:
        node = FakeNode(tmp_path, 1, settings=CollectSettings(gpu=True))
        node.run()
        if node.collection.gpus:
            pytest.skip("this machine has cards")
        assert node.collection.statuses["gpu"].answered
