"""Every value that koordlet writes on cgroup v2, in groups named by either driver: what the kernel holds afterwards."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from koord.api.koordinator.protocol import BURSTABLE, GUARANTEED
from koord.values.cpuset import CPUSet
from tests.guest.inside import guest_node
from tests.guest.inside.guest_node import CPUS, GuestNode, GuestPod
from tests.guest.inside.pod_groups import CGROUPS
from tools.nodeagent import PODS, Agent, Json

pytestmark = pytest.mark.real

MI = 2**20
GATES = "BECPUEvict=true,BEMemoryEvict=true,CgroupReconcile=true,BlkIOReconcile=true,PSICollector=true,OOMScoreAdj=true"
DISK = "/dev/vda"
# Koordinator's table: weight = 1 + (shares - 2) * 9999 // 262142, of 500m, 250m and 1 CPU.
BATCH_WEIGHT, WEB_WEIGHT, PINNED_WEIGHT = "20", "10", "39"
BURSTING: Json = {"cpuBurstStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 1000}}
# So low that any node is above it.
HELD: Json = {"enable": True, "cpuSuppressThresholdPercent": 10, "memoryEvictThresholdPercent": 100}
MEMORY: Json = {"enable": True, "minLimitPercent": 50, "lowLimitPercent": 100, "throttlingPercent": 50}
LIMITS: Json = {"readIOPS": 100, "writeIOPS": 200, "readBPS": MI, "writeBPS": 2 * MI, "ioWeightPercent": 60}


def blkio(config: Json) -> Json:
    return {"blkioQOS": {"enable": True, "blocks": [{"name": DISK, "type": "device", "ioCfg": config}]}}


class Site:
    """A node with one pod of each class, and the agent that runs now."""

    def __init__(self, node: GuestNode) -> None:
        self.node = node
        self.groups = node.groups
        amounts = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"}
        batch: Json = {"requests": amounts, "limits": amounts}
        told = {"node.koordinator.sh/extended-resource-spec": json.dumps({"containers": {"main": batch}})}
        self.batch = node.run_pod("batch", "BE", batch, annotations=told)
        web = {"requests": {"cpu": "250m", "memory": "32Mi"}, "limits": {"cpu": "500m", "memory": "64Mi"}}
        self.web = node.run_pod("web", "LS", web)
        own = {"cpu": "1", "memory": "64Mi"}
        self.pinned = node.run_pod("pinned", "LSR", {"requests": own, "limits": own})
        self._as_the_kubelet_does(self.batch, "1", "max 100000", "max")
        self._as_the_kubelet_does(self.web, WEB_WEIGHT, "50000 100000", str(64 * MI))
        self._as_the_kubelet_does(self.pinned, PINNED_WEIGHT, "100000 100000", str(64 * MI))
        self.before = self.groups.snapshot()
        self._stack = contextlib.ExitStack()
        self._agent: Agent | None = None

    @property
    def agent(self) -> Agent:
        if self._agent is None:
            self._agent = self._stack.enter_context(self.node.agent(GATES))
        return self._agent

    def kill_agent(self) -> None:
        self.agent.kill()
        self.stop_agent()

    def stop_agent(self) -> None:
        self._agent = None
        self._stack.close()

    def wait(self, pod: GuestPod, file: str, value: str) -> None:
        """Wait until the file has the value in the groups of the pod and of its container."""
        wanted = [value, value]
        self.node.wait(lambda: self.both(pod, file) == wanted, f"{pod.name}: {file} is {value}", self.agent)

    def both(self, pod: GuestPod, file: str) -> list[str]:
        return [self.groups.read(group, file) for group in (pod.group, pod.box)]

    def _as_the_kubelet_does(self, pod: GuestPod, weight: str, quota: str, memory: str) -> None:
        for group in (pod.group, pod.box):
            for file, text in (("cpu.weight", weight), ("cpu.max", quota), ("memory.max", memory)):
                self.groups.write(group, file, text)


class Values:
    """The tests of one driver, in their order: each finds what the ones before it left."""

    driver: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def site(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
        with guest_node.running(cls.driver, tmp_path_factory.mktemp("node")) as node:
            site = Site(node)
            try:
                yield site
            finally:
                site.stop_agent()

    def test_layout_and_version_are_found(self, site: Site) -> None:
        wanted = (site.groups.layout.kubepods, 2)

        def found() -> tuple[str, int]:
            state = json.loads(site.agent.fetch("/apis/v1/state") or "{}")
            return state.get("cgroups", ""), state.get("cgroupVersion") or 0

        site.node.wait(lambda: found() == wanted, f"{wanted} is found", site.agent)
        rows = json.loads(site.agent.fetch("/apis/v1/capabilities"))["capabilities"]
        states = {row["knob"]: row["state"] for row in rows}
        assert states["cpu.cfs_burst_us"] == "degraded", "mainline takes no burst above the quota"
        needed = ("cpu.idle", "memory.min", "memory.high", "blkio.throttle.read_bps_device")
        assert {name: states[name] for name in needed} == dict.fromkeys(needed, "supported")

    def test_batch_amounts(self, site: Site) -> None:
        site.wait(site.batch, "cpu.weight", BATCH_WEIGHT)
        site.wait(site.batch, "cpu.max", "50000 100000")
        site.wait(site.batch, "memory.max", str(64 * MI))
        assert site.both(site.web, "cpu.weight") == [WEB_WEIGHT, WEB_WEIGHT]

    def test_cpus_of_a_pinned_pod_and_of_the_others(self, site: Site) -> None:
        status = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": "1"})}
        site.node.annotate("pinned", status)
        site.node.wait(lambda: site.groups.read(site.pinned.box, "cpuset.cpus") == "1", "it is bound", site.agent)
        site.wait(site.pinned, "cpu.max", "max 100000")
        site.node.wait(
            lambda: site.groups.read(site.web.box, "cpuset.cpus") == "0,2-3", "LS has the other CPUs", site.agent
        )
        assert os.sched_getaffinity(site.pinned.pid) == {1}
        assert os.sched_getaffinity(site.web.pid) == {0, 2, 3}
        assert [site.groups.read(pod.group, "cpuset.cpus") for pod in (site.pinned, site.web)] == ["", ""]
        assert site.groups.read(site.batch.box, "cpuset.cpus") == "", "no NodeSLO was seen yet"

    def test_bursts_are_as_large_as_the_quota(self, site: Site) -> None:
        site.node.order(BURSTING)
        site.wait(site.web, "cpu.max.burst", "50000")
        assert site.both(site.web, "cpu.max") == ["50000 100000", "50000 100000"]
        assert site.both(site.pinned, "cpu.max.burst") == ["0", "0"]

    def test_best_effort_is_held_by_cpus(self, site: Site) -> None:
        held = {**BURSTING, "resourceUsedThresholdWithBE": {**HELD, "cpuSuppressPolicy": "cpuset"}}
        site.node.order(held)
        chosen = (site.groups.best_effort, site.batch.group, site.batch.box)

        def cpus() -> list[int]:
            return [len(CPUSet.parse(site.groups.read(group, "cpuset.cpus") or "0-3")) for group in chosen]

        site.node.wait(lambda: cpus() == [2, 2, 2], "two CPUs are left", site.agent)
        assert len(os.sched_getaffinity(site.batch.pid)) == 2
        assert os.sched_getaffinity(site.web.pid) == {0, 2, 3}
        assert site.groups.read(site.groups.best_effort, "cpu.max") == "max 100000"

    def test_best_effort_is_held_by_quota(self, site: Site) -> None:
        held = {**BURSTING, "resourceUsedThresholdWithBE": {**HELD, "cpuSuppressPolicy": "cfsQuota"}}
        site.node.order(held)

        def quota() -> str:
            return site.groups.read(site.groups.best_effort, "cpu.max").split()[0]

        site.node.wait(lambda: quota() != "max" and 2_000 <= int(quota()) <= CPUS * 10_000, "a quota", site.agent)
        site.node.wait(lambda: len(os.sched_getaffinity(site.batch.pid)) == CPUS, "CPUs are given back", site.agent)
        site.wait(site.batch, "cpu.max", "max 100000")  # the quota of all stands for theirs

    def test_a_killed_agent_leaves_values_and_the_next_lets_go(self, site: Site) -> None:
        site.kill_agent()
        assert site.groups.read(site.groups.best_effort, "cpu.max").split()[0] != "max"
        assert site.both(site.web, "cpu.max.burst") == ["50000", "50000"]
        site.node.order({**BURSTING, "resourceUsedThresholdWithBE": {"enable": False}})
        site.node.wait(
            lambda: site.groups.read(site.groups.best_effort, "cpu.max") == "max 100000", "it lets go", site.agent
        )
        site.wait(site.batch, "cpu.max", "50000 100000")
        assert site.both(site.web, "cpu.max.burst") == ["50000", "50000"]
        assert os.sched_getaffinity(site.web.pid) == {0, 2, 3}

    def test_memory_is_protected_and_throttled(self, site: Site) -> None:
        site.node.order({"resourceQOSStrategy": {"lsClass": {"memoryQOS": MEMORY}}})
        site.wait(site.web, "memory.min", str(16 * MI))
        site.wait(site.web, "memory.low", str(32 * MI))
        high = str(48 * MI)
        site.node.wait(lambda: site.groups.read(site.web.box, "memory.high") == high, "memory.high", site.agent)
        assert site.groups.read(site.web.group, "memory.high") == "max"
        above = [site.groups.layout.qos_dir(kube_qos) for kube_qos in (BURSTABLE, GUARANTEED)]
        assert [site.groups.read(group, "memory.min") for group in above] == [str(16 * MI)] * 2
        assert [site.groups.read(group, "memory.low") for group in above] == [str(32 * MI)] * 2
        site.node.order({})
        site.wait(site.web, "memory.min", "0")
        assert [site.groups.read(group, "memory.low") for group in above] == ["0", "0"]
        assert site.groups.read(site.web.box, "memory.high") == "max"

    def test_disks_are_limited(self, site: Site) -> None:
        number = Path(f"/sys/block/{Path(DISK).name}/dev").read_text().strip()
        root = blkio({"readLatency": 4000})
        site.node.order({"resourceQOSStrategy": {"beClass": blkio(LIMITS), "cgroupRoot": root}})
        limits = f"{number} rbps={MI} wbps={2 * MI} riops=100 wiops=200"
        top = site.groups.best_effort
        site.node.wait(lambda: site.groups.read(top, "io.max") == limits, "limits", site.agent)
        site.node.wait(lambda: f"{number} 60" in site.groups.read(top, "io.weight"), "its weight", site.agent)
        wanted = f"{number} enable=1 ctrl=user rpct=95.00 rlat=4000 wpct=95.00 wlat=3000"
        site.node.wait(lambda: wanted in site.groups.read("", "io.cost.qos"), "latencies", site.agent)
        site.node.order({})
        site.node.wait(lambda: site.groups.read(top, "io.max") == "", "no limits", site.agent)
        site.node.wait(lambda: "enable=1" not in site.groups.read("", "io.cost.qos"), "no latencies", site.agent)

    def test_oom_scores(self, site: Site) -> None:
        score = Path(f"/proc/{site.web.pid}/oom_score_adj")
        before = score.read_text()
        site.node.annotate("web", {"koordinator.sh/oom-score-adj": "-500"})
        site.node.wait(lambda: score.read_text() == "-500\n", "below zero, which needs CAP_SYS_RESOURCE", site.agent)
        site.node.annotate("web", {"koordinator.sh/oom-score-adj": None})
        site.node.wait(lambda: score.read_text() == before, "it is put back", site.agent)

    def test_pressure_is_read(self, site: Site) -> None:
        hog = site.groups.run(site.batch.box, ("sh", "-c", "while :; do :; done"))
        pressure = CGROUPS / site.batch.box / "cpu.pressure"

        def kernel() -> float:
            return float(pressure.read_text().split()[1].partition("=")[2])

        def told() -> float:
            rows = [row for row in site.agent.fetch("/metrics").splitlines() if row.startswith("koordlet_pod_psi{")]
            mine = [row for row in rows if all(word in row for word in ('"batch"', '"cpu"', '"avg10"', '"some"'))]
            return float(mine[0].rpartition(" ")[2]) if mine else 0.0

        site.node.wait(lambda: kernel() > 1.0, "a group above its quota waits", site.agent)
        site.node.wait(lambda: told() > 1.0, "koordlet tells it", site.agent)
        hog.kill()

    def test_memory_that_is_short_costs_batch_work(self, site: Site) -> None:
        short = {"enable": True, "memoryEvictThresholdPercent": 2, "memoryEvictLowerPercent": 1}
        site.node.order({"resourceUsedThresholdWithBE": short})

        def is_leaving() -> bool:
            found = site.node.api.get(f"{PODS}/batch")
            return found is None or "deletionTimestamp" in found["metadata"]

        site.node.wait(is_leaving, "the batch pod is evicted", site.agent)
        site.node.order({})
        said = json.loads(site.agent.fetch("/apis/v1/evictions"))["evictions"]
        assert {(one["name"], one["outcome"]) for one in said} == {("batch", "evicted")}

    def test_no_fault_was_logged(self, site: Site) -> None:
        log = site.agent.log()
        assert "Traceback" not in log, log[-3000:]
        assert "invalid argument" not in log.lower(), log[-3000:]

    def test_restore_puts_all_back(self, site: Site) -> None:
        site.node.order(BURSTING)
        site.wait(site.web, "cpu.max.burst", "50000")
        site.stop_agent()
        assert site.groups.snapshot() != site.before
        done = site.node.restore()
        assert done.returncode == 0, done
        after = site.groups.snapshot()
        changed = {name: text for name, text in after.items() if text != site.before[name]}
        # The kernel refuses no CPUs to groups with processes once they had some: all CPUs mean the same.
        assert set(changed.values()) <= {f"0-{CPUS - 1}\n"}, changed
        assert all(name.endswith("/cpuset.cpus") for name in changed), changed
        assert len(os.sched_getaffinity(site.pinned.pid)) == CPUS


class TestCgroupfs(Values):
    driver = "cgroupfs"


class TestSystemd(Values):
    driver = "systemd"
