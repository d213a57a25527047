"""Samples from a fake machine of either cgroup version, and what happens when parts of it fail, jump or vanish."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from koord.api.koordinator.protocol import BEST_EFFORT, GUARANTEED
from koord.api.koordinator.resource_name import BATCH_CPU
from koord.api.koordinator.slo import MEMORY_WITH_PAGE_CACHE, CgroupPath, HostApplicationSpec
from koord.host.cgroup.layout import CgroupLayout
from koord.host.cgroup.usage import FdBudget
from koord.koordlet.collect.collector import CollectSettings, IntervalTimer
from koord.koordlet.collect.collector_set import CollectorSet
from koord.koordlet.series import metric_kind
from koord.telemetry.clock import ManualClock
from tests.koordlet.collect.fake_node import CPUS, FakeNode

GIB = 2**30
LAYOUTS = [
    pytest.param(CgroupLayout("cgroupfs"), id="cgroupfs"),
    pytest.param(CgroupLayout("systemd"), id="systemd"),
    pytest.param(CgroupLayout("systemd", ("kubelet",)), id="kind"),
]


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path, request.param)


class TickingClock(ManualClock):
    """Every look at it takes a millisecond, as work between two reads does."""

    def monotonic(self) -> float:
        self.advance(0.001)
        return super().monotonic()


class TestNode:
    def test_use_is_the_difference_of_two_looks(self, node: FakeNode) -> None:
        node.sample()
        assert node.latest(metric_kind.NODE_CPU) is None, "one look tells no rate"
        assert node.latest(metric_kind.NODE_MEMORY) == 2 * GIB
        node.put_ticks(1.5)
        node.run()
        assert node.latest(metric_kind.NODE_CPU) == pytest.approx(1.5, abs=0.01)
        assert node.latest(metric_kind.NUMA_CPU, "0") == pytest.approx(1.5, abs=0.05)
        assert node.latest(metric_kind.NUMA_MEMORY, "0") == 4 * GIB

    def test_more_than_the_machine_has_is_cut_or_refused(self, node: FakeNode) -> None:
        node.sample()
        node.put_ticks(CPUS + 0.02)
        node.run()
        assert node.latest(metric_kind.NODE_CPU) == CPUS, "ticks are whole"
        node.put_ticks(100 * CPUS)
        node.run()
        assert node.count((metric_kind.NODE_CPU,)) == 1, "no machine does that"

    def test_counters_that_go_back_tell_nothing_and_start_anew(self, node: FakeNode) -> None:
        node.sample()
        node.put_ticks(1.0)
        node.run()
        node.ticks = 0.0
        node.put_ticks(0.5)
        node.run()
        assert node.count((metric_kind.NODE_CPU,)) == 1
        node.put_ticks(0.5)
        node.run()
        assert node.latest(metric_kind.NODE_CPU) == pytest.approx(0.5, abs=0.01)

    def test_a_missing_file_stops_only_its_own_samples(self, node: FakeNode, caplog: pytest.LogCaptureFixture) -> None:
        (node.machine.root / "proc/meminfo").unlink()
        with caplog.at_level(logging.INFO, "koord.koordlet.collect"):
            for _ in range(5):
                node.put_ticks(1.0)
                node.run()
            lines = [record.message for record in caplog.records]
            assert len(lines) == 1, lines
            assert "node-memory" in lines[0]
            assert node.latest(metric_kind.NODE_CPU) == pytest.approx(1.0, abs=0.01)
            assert node.latest(metric_kind.NODE_MEMORY) is None
            assert node.collection.statuses["node-memory"].problem
            assert not node.collection.all_answered
            node.put_memory()
            node.run()
            node.run()
        assert [record.message for record in caplog.records][1:] == ["collector node-memory works again"]
        assert node.collection.all_answered


class TestPods:
    @pytest.mark.parametrize("version", [1, 2], ids=["v1", "v2"])
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_use_of_pods_and_containers(self, tmp_path: Path, version: int, layout: CgroupLayout) -> None:
        node = FakeNode(tmp_path, version, layout)
        pod = node.pod("a")
        box = pod.containers[0]
        node.sample()
        node.use(pod.group, 1.25)
        node.use(box.group, 1.0)
        node.hold(pod.group, GIB, cache=GIB)
        node.hold(box.group, GIB // 2)
        node.throttle(pod.group, 10, 4)
        node.run()
        assert node.latest(metric_kind.POD_CPU, "a") == pytest.approx(1.25)
        assert node.latest(metric_kind.CONTAINER_CPU, box.id) == pytest.approx(1.0)
        assert node.latest(metric_kind.POD_MEMORY, "a") == GIB, "page cache is not the pod's own"
        assert node.latest(metric_kind.CONTAINER_MEMORY, box.id) == GIB // 2
        assert node.latest(metric_kind.POD_THROTTLED, "a") == pytest.approx(0.4)
        assert node.latest(metric_kind.CONTAINER_THROTTLED, box.id) == 0, "no period, nothing throttled"
        assert node.latest(metric_kind.POD_MEMORY_WITH_PAGE_CACHE, "a") is None, "nobody asked for it"

    def test_a_guaranteed_pod_lives_right_below_all_pods(self, node: FakeNode) -> None:
        pod = node.pod("g", GUARANTEED)
        node.sample()
        node.use(pod.group, 2.0)
        node.run()
        assert node.latest(metric_kind.POD_CPU, "g") == pytest.approx(2.0)

    def test_the_page_cache_counts_when_the_policy_says_so(self, node: FakeNode) -> None:
        pod = node.pod("a")
        node.hold(pod.group, GIB, cache=GIB)
        for _ in range(2):
            node.clock.advance(1)
            node.collection.sample(node.clock.time(), node.pods, memory_policy=MEMORY_WITH_PAGE_CACHE)
        assert node.latest(metric_kind.POD_MEMORY_WITH_PAGE_CACHE, "a") == 2 * GIB
        assert node.latest(metric_kind.NODE_MEMORY_WITH_PAGE_CACHE) == 4 * GIB

    def test_a_restarted_container_gives_no_garbage(self, node: FakeNode) -> None:
        pod = node.pod("a")
        node.set_ns(pod.group, 50_000_000_000)
        node.sample()
        node.set_ns(pod.group, 100_000_000)
        node.run()
        assert node.latest(metric_kind.POD_CPU, "a") is None
        node.use(pod.group, 0.5)
        node.run()
        assert node.latest(metric_kind.POD_CPU, "a") == pytest.approx(0.5)

    def test_a_wall_clock_that_jumps_changes_no_rate(self, node: FakeNode) -> None:
        pod = node.pod("a")
        node.sample()
        for jump in (3600.0, -7200.0, 0.4):
            node.use(pod.group, 1.0)
            node.clock.advance(1)
            now_s = node.clock.time() + jump
            node.collection.sample(now_s, node.pods)
            assert node.store.latest((metric_kind.POD_CPU, "a"), now_s) == pytest.approx(1.0)

    def test_a_long_sleep_of_the_machine_tells_no_rate(self, node: FakeNode) -> None:
        pod = node.pod("a")
        node.sample()
        node.use(pod.group, 1.0)
        node.run(3600)
        assert node.latest(metric_kind.POD_CPU, "a") is None
        node.use(pod.group, 1.0)
        node.run()
        assert node.latest(metric_kind.POD_CPU, "a") == pytest.approx(1.0)

    def test_a_group_that_vanishes_is_no_trouble(self, node: FakeNode, caplog: pytest.LogCaptureFixture) -> None:
        gone, stays = node.pod("gone"), node.pod("stays")
        node.sample()
        node.machine.remove(gone.group)
        node.use(stays.group, 0.5)
        with caplog.at_level(logging.INFO, "koord.koordlet.collect"):
            node.run()
        assert caplog.records == []
        assert node.latest(metric_kind.POD_CPU, "gone") is None
        assert node.latest(metric_kind.POD_CPU, "stays") == pytest.approx(0.5)

    def test_a_layout_that_no_pod_is_in_is_told_after_a_while(self, node: FakeNode) -> None:
        for name in ("a", "b"):
            node.machine.remove(node.pod(name).group)
        for second in range(40):
            node.run()
            assert bool(node.collection.statuses["pods"].problem) == (second >= 30), second
        assert "none of 2 running pods" in node.collection.statuses["pods"].problem
        node.pod("c")
        node.run()
        assert not node.collection.statuses["pods"].problem, "one that is there is enough"

    def test_memory_that_vanishes_in_the_middle_leaves_no_half_sample(self, node: FakeNode) -> None:
        pod = node.pod("a")
        node.sample()
        node.file("memory", pod.group, "memory.stat").unlink()
        node.use(pod.group, 1.0)
        node.run()
        assert node.latest(metric_kind.POD_CPU, "a") is None
        assert node.latest(metric_kind.POD_MEMORY, "a") is None

    def test_text_without_sense_is_told_once(self, node: FakeNode, caplog: pytest.LogCaptureFixture) -> None:
        pods = [node.pod(name) for name in ("a", "b")]
        for pod in pods:
            node.file("memory", pod.group, "memory.stat").write_text("what\n")
        with caplog.at_level(logging.INFO, "koord.koordlet.collect"):
            for _ in range(4):
                node.run()
        assert len([record for record in caplog.records if "pods" in record.message]) == 1
        assert "memory.stat" in node.collection.statuses["pods"].problem

    def test_pods_that_are_over_or_have_no_group_are_not_looked_for(self, node: FakeNode) -> None:
        node.pod("done", phase="Succeeded")
        node.run()
        node.run()
        assert not list(node.store.keys(metric_kind.POD_CPU))

    def test_no_pods_at_all_is_fine(self, node: FakeNode) -> None:
        node.sample()
        node.put_ticks(1.0)
        node.run()
        assert node.latest(metric_kind.SYSTEM_CPU) == pytest.approx(1.0, abs=0.01)
        assert node.collection.all_answered

    def test_files_of_pods_that_are_gone_are_closed(self, tmp_path: Path) -> None:
        node = FakeNode(tmp_path, 1)
        for name in ("a", "b"):
            node.pod(name)
        budget = FdBudget(100)
        collection = CollectorSet(node.machine.tree, node.store, node.clock, budget=budget)
        collection.sample(node.clock.time(), node.pods)
        every = budget.open_count
        collection.sample(node.clock.time(), node.pods[:1])
        one = budget.open_count
        assert 0 < one < every
        collection.close()
        assert budget.open_count == 0

    @pytest.mark.parametrize("most", [0, 3, 100])
    def test_a_budget_of_files_changes_no_sample(self, tmp_path: Path, most: int) -> None:
        node = FakeNode(tmp_path, 1)
        pod = node.pod("a")
        budget = FdBudget(most)
        collection = CollectorSet(node.machine.tree, node.store, node.clock, budget=budget)
        for _ in range(3):
            node.use(pod.group, 0.75)
            node.clock.advance(1)
            collection.sample(node.clock.time(), node.pods)
            assert budget.open_count <= most
        assert node.latest(metric_kind.POD_CPU, "a") == pytest.approx(0.75)
        collection.close()

    def test_time_that_passes_inside_a_tick_loses_no_rate(self, tmp_path: Path) -> None:
        node = FakeNode(tmp_path, 1)
        pod = node.pod("a")
        clock = TickingClock()
        collection = CollectorSet(node.machine.tree, node.store, clock, budget=FdBudget(0))
        for _ in range(130):
            node.use(pod.group, 0.5)
            clock.advance(1)
            collection.sample(clock.time(), node.pods)
        found = node.store.window((metric_kind.POD_CPU, "a"), clock.time(), 300)
        assert found.count == 129, "every tick but the first, also those in which old counters are dropped"


class TestSystem:
    def test_it_is_what_pods_and_applications_leave(self, node: FakeNode) -> None:
        pod = node.pod("a")
        application = HostApplicationSpec(name="nginx", priority="koord-prod", qos="LS")
        group = node.machine.make("host-latency-sensitive/nginx")
        node.use(group, 0.0)
        node.hold(group, GIB // 4)
        node.hold(pod.group, GIB)
        outside = (application,)
        node.collection.sample(node.clock.time(), node.pods, outside)
        node.put_ticks(3.0)
        node.use(pod.group, 1.0)
        node.use(group, 0.5)
        node.clock.advance(1)
        node.collection.sample(node.clock.time(), node.pods, outside)
        assert node.latest(metric_kind.APPLICATION_CPU, "nginx") == pytest.approx(0.5)
        assert node.latest(metric_kind.SYSTEM_CPU) == pytest.approx(1.5, abs=0.01)
        assert node.latest(metric_kind.SYSTEM_MEMORY) == 2 * GIB - GIB - GIB // 4
        assert node.latest(metric_kind.NUMA_SYSTEM_CPU, "0") == pytest.approx(1.5, abs=0.05)
        assert node.latest(metric_kind.NUMA_SYSTEM_MEMORY, "0") == 3 * GIB

    def test_it_is_never_below_nothing(self, node: FakeNode) -> None:
        pod = node.pod("a")
        node.hold(pod.group, 7 * GIB)
        node.sample()
        node.put_ticks(0.1)
        node.use(pod.group, 1.0)
        node.run()
        assert node.latest(metric_kind.SYSTEM_CPU) == 0
        assert node.latest(metric_kind.SYSTEM_MEMORY) == 0

    def test_it_is_unknown_while_pods_are(self, node: FakeNode) -> None:
        for _ in range(3):
            node.clock.advance(1)
            node.put_ticks(1.0)
            node.collection.sample(node.clock.time(), None)
        assert node.latest(metric_kind.NODE_CPU) is not None
        assert node.latest(metric_kind.SYSTEM_CPU) is None

    @pytest.mark.parametrize("version", [1, 2], ids=["v1", "v2"])
    def test_memory_by_numa_node_is_without_page_cache(self, tmp_path: Path, version: int) -> None:
        node = FakeNode(tmp_path, version, numa=2)
        pod = node.pod("a")
        node.hold(pod.group, GIB, cache=4 * GIB)
        node.sample()
        node.use(pod.group, 1.0)
        node.put_ticks(2.0)
        node.run()
        assert node.latest(metric_kind.NUMA_MEMORY, "1") == 2 * GIB
        assert node.latest(metric_kind.NUMA_SYSTEM_MEMORY, "1") == 2 * GIB - GIB // 2
        assert node.latest(metric_kind.NUMA_CPU, "1") == pytest.approx(1.0, abs=0.05)

    def test_an_application_may_name_its_own_group(self, node: FakeNode) -> None:
        path = CgroupPath(base="Kubepods", parent_dir="my", relative_path="daemon/")
        application = (HostApplicationSpec(name="d", qos="LS", cgroup_path=path),)
        group = node.machine.make(f"{node.machine.layout.kubepods}/my/daemon")
        node.set_ns(group, 0)
        node.collection.sample(node.clock.time(), (), application)
        node.use(group, 0.25)
        node.clock.advance(1)
        node.collection.sample(node.clock.time(), (), application)
        assert node.latest(metric_kind.APPLICATION_CPU, "d") == pytest.approx(0.25)


class TestBestEffort:
    def limits(self, node: FakeNode, group: str, cpus: str, quota: str = "") -> None:
        if node.version == 1:
            node.file("cpuset", group, "cpuset.cpus").write_text(cpus)
            if quota:
                node.file("cpu", group, "cpu.cfs_quota_us").write_text(quota)
        else:
            node.file("", group, "cpuset.cpus.effective").write_text(cpus)
            if quota:
                node.file("", group, "cpu.max").write_text(f"{quota} 100000")

    def test_the_limit_is_the_tightest_of_cpus_and_quota(self, node: FakeNode) -> None:
        root = node.machine.layout.qos_dir(BEST_EFFORT)
        pod = node.pod("batch", BEST_EFFORT)
        node.run()
        assert node.latest(metric_kind.NODE_BE, metric_kind.BE_REAL_LIMIT) == 4000
        self.limits(node, pod.containers[0].group, "0-2\n")
        node.run()
        assert node.latest(metric_kind.NODE_BE, metric_kind.BE_REAL_LIMIT) == 3000
        self.limits(node, root, "0-3\n", "150000")
        node.run()
        assert node.latest(metric_kind.NODE_BE, metric_kind.BE_REAL_LIMIT) == 1500

    def test_requests_of_living_best_effort_pods(self, node: FakeNode) -> None:
        labels = {"koordinator.sh/qosClass": "BE"}
        node.pod("a", BEST_EFFORT, labels=labels, requests={BATCH_CPU: 1500})
        node.pod("b", BEST_EFFORT, labels=labels, requests={BATCH_CPU: 500})
        node.pod("over", BEST_EFFORT, labels=labels, requests={BATCH_CPU: 9000}, phase="Succeeded")
        node.pod("plain", BEST_EFFORT, requests={BATCH_CPU: 9000})
        node.run()
        assert node.latest(metric_kind.NODE_BE, metric_kind.BE_REQUEST) == 2000

    def test_use_is_in_milli_cores(self, node: FakeNode) -> None:
        root = node.machine.layout.qos_dir(BEST_EFFORT)
        node.set_ns(root, 0)
        node.sample()
        node.use(root, 0.5)
        node.run()
        assert node.latest(metric_kind.NODE_BE, metric_kind.BE_USAGE) == 500

    def test_a_kubelet_without_the_group_keeps_nobody_waiting(self, node: FakeNode) -> None:
        node.machine.remove(node.machine.layout.qos_dir(BEST_EFFORT))
        node.sample()
        node.put_ticks(1)
        node.run()
        assert node.collection.statuses["best-effort"].problem
        assert node.collection.all_answered


def test_a_timer_is_due_at_once_and_then_as_often_as_said() -> None:
    timer = IntervalTimer(10)
    due = [at for at in range(45) if timer.due(at + 0.001 * at)]
    assert due == [0, 10, 20, 30, 40]


def test_the_interval_decides_what_is_too_long() -> None:
    assert CollectSettings(interval_s=2).longest_gap_s == 40
