"""koordlet on a real node: kubelet, containerd, runc and the kernel's own cgroups, with nothing simulated."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from koord.api.annotations.pod_codecs import A_INTERFERENCE as NOTE
from koord.host.cgroup.detection import LayoutNotDetected, open_tree
from koord.host.filesystem import Host
from koord.koordlet.control_loop import JOURNAL_FILE
from koord.koordlet.hooks.registry import HOOKS
from koord.koordlet.reporters.builders.node_conditions import PREFIX
from koord.values.cpuset import CPUSet
from tests.real.real_node import (
    BURST,
    CPUS,
    IDLE,
    QUOTA,
    SHARES,
    Site,
    batch,
    evictions,
    known,
    milli,
    pinned,
    pool,
    strategies,
    ticked,
    ticks,
    told_events,
    web,
)
from tools import nodeagent, realnode
from tools.nodeagent import NODE_SLO, Agent, Json, order, pod, until

pytestmark = [pytest.mark.real, pytest.mark.machine]

HOG = "while :; do :; done"
QUICK = (
    *("--runtime-hooks-reconcile-interval=1s", "--kubelet-sync-interval=2s"),
    *("--memory-evict-cool-time-seconds=1", "--cpu-evict-cool-time-seconds=1"),
)
WATCHING: Json = {"extensions": {"Object": {"interference": {"sampleSeconds": 1}}}}
BURSTING: Json = {"cpuBurstStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 1000}}
# So low that any machine is above it: best-effort work gets the least there is, or little more.
HOLDING: Json = {
    "resourceUsedThresholdWithBE": {
        "enable": True,
        "cpuSuppressPolicy": "cfsQuota",
        "cpuSuppressThresholdPercent": 10,
        "memoryEvictThresholdPercent": 100,
    }
}
BEHIND: Json = {"resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}}}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    reason = realnode.missing()
    if reason:
        pytest.skip(reason)
    with realnode.running() as node:
        tree = open_tree(Host.local())
        assert not isinstance(tree, LayoutNotDetected), tree
        site = Site(node, tree, tmp_path_factory.mktemp("koordlet"))
        nodeagent.install(site.api, report_s=1, durations=("20s", "5m"))
        lent = {"kubernetes.io/batch-cpu": "20k", "kubernetes.io/batch-memory": "20Gi"}  # as the manager would
        site.api.merge("/api/v1/nodes/node1/status", {"status": {"capacity": lent, "allocatable": lent}})
        for value in (5000, 5100, 5500, 5900):
            body = {"metadata": {"name": f"batch-{value}"}, "value": value}
            site.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
        yield site


class TestOneLife:
    """One agent from an empty node on; every test finds what the ones before it left."""

    @pytest.fixture(scope="class")
    @classmethod
    def agent(cls, site: Site) -> Iterator[Agent]:
        with nodeagent.running(site.node, site.folder / "one", *QUICK) as agent:
            until(lambda: known(agent).get("podsFrom") == "kubelet", "the kubelet tells its pods")
            yield agent

    def test_what_this_kernel_can_do(self, site: Site, agent: Agent) -> None:
        command = [sys.executable, "-m", "koord", "node", "capabilities", "-o", "json"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert said.returncode == 0, said.stderr
        states = {row["knob"]: row["state"] for row in json.loads(said.stdout)}
        assert states[QUOTA] == states[SHARES] == states[CPUS] == "supported"
        told = {row["knob"]: row["state"] for row in json.loads(agent.fetch("/apis/v1/capabilities"))["capabilities"]}
        assert told == states
        until(lambda: any(one["type"].startswith(PREFIX) for one in site.conditions()), "the Node tells it, too")

    def test_the_topology_of_an_empty_node(self, site: Site, agent: Agent) -> None:
        until(site.topology, "the topology is told")
        found = site.topology()
        uid = site.api.seen("/api/v1/nodes/node1")["metadata"]["uid"]
        owner = found["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "node1", uid)
        assert found["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Koordinator"
        told = found["metadata"]["annotations"]
        assert json.loads(told["kubelet.koordinator.sh/cpu-manager-policy"])["policy"] == "none"
        assert told["node.koordinator.sh/reservation"] == told["node.koordinator.sh/system-qos-resource"] == "{}"
        assert told["node.koordinator.sh/pod-cpu-allocs"] == "null"
        assert pool(told, "cpu-shared-pools") == pool(told, "be-cpu-shared-pools") == site.cpus
        detail = json.loads(told["node.koordinator.sh/cpu-topology"])["detail"]
        assert str(CPUSet.of(one["id"] for one in detail)) == site.cpus
        assert found["topologyPolicies"] == ["None"]
        amounts = {one["name"]: one["capacity"] for one in found["zones"][0]["resources"]}
        assert found["zones"][0]["name"] == "node-0"
        assert amounts["memory"].endswith("Ki")

    def test_an_empty_node_is_reported(self, site: Site, agent: Agent) -> None:
        until(site.reported, "the node is reported", 50)
        found = site.reported()
        assert not found.get("podsMetric")
        used = found["nodeMetric"]["nodeUsage"]["resources"]
        assert milli(used["cpu"]) > 0
        assert found["nodeMetric"]["systemUsage"]["resources"]["cpu"] == used["cpu"]
        assert found["prodReclaimableMetric"]["resource"] is not None

    def test_only_hooks_act_without_a_node_slo(self, site: Site, agent: Agent) -> None:
        site.run(web("web"), pinned("pinned", 1), batch("batch"), pod("plain"))
        rest = str(CPUSet.parse(site.cpus) - CPUSet.of([1]))
        until(lambda: site.value(CPUS, site.container("web")) == rest, "the pinned pod has its CPU for itself")
        until(lambda: known(agent)["pods"] == 4, "four pods are known")

        def rests() -> bool:
            """Whether nothing changes over some ticks. A pod's containers may be known a while after the pod itself."""
            before = site.values()
            ticked(agent)
            return site.values() == before

        until(rests, "the hooks have written all they have to")
        written = [json.loads(line) for line in (site.folder / "one/state" / JOURNAL_FILE).read_text().splitlines()]
        owners = {one["owner"] for one in written if "owner" in one}
        assert owners
        assert owners <= {hook.name for hook in HOOKS}
        assert site.value(QUOTA, site.group("web")) == "20000"
        assert "waits for a NodeSLO" in agent.log()

    def test_a_pinned_pod_leaves_the_pool_of_the_others(self, site: Site, agent: Agent) -> None:
        rest = str(CPUSet.parse(site.cpus) - CPUSet.of([1]))
        until(lambda: pool(site.topology()["metadata"]["annotations"], "cpu-shared-pools") == rest, "the pool is less")
        assert pool(site.topology()["metadata"]["annotations"], "be-cpu-shared-pools") == site.cpus

    def test_bursts_are_as_large_as_this_kernel_takes(self, site: Site, agent: Agent) -> None:
        order(site.api, BURSTING)
        groups = (site.group("web"), site.container("web"))
        until(lambda: [site.value(BURST, one) for one in groups] == ["20000", "20000"], "the burst is the quota")
        ticked(agent, 3)
        assert [site.value(QUOTA, one) for one in groups] == ["20000", "20000"]
        assert site.value(BURST, site.container("pinned")) == "0"
        assert agent.log().count("a burst above the quota") == 1
        assert "invalid argument" not in agent.log().lower()
        doing = next(one for one in strategies(agent) if one["strategy"] == "CPUBurst")
        assert doing["refused"] == []

    def test_a_hog_is_held_and_let_go(self, site: Site, agent: Agent) -> None:
        site.run(batch("hog", command=HOG))
        order(site.api, {**BURSTING, **HOLDING})
        most = len(CPUSet.parse(site.cpus)) * 10_000
        until(lambda: 2_000 <= int(site.value(QUOTA, site.top)) <= most, "best-effort work is held")
        start = site.throttled(site.top)
        until(lambda: site.throttled(site.top) > start + 5, "the hog feels it")
        assert site.value(QUOTA, site.group("web")) == "20000"
        assert "koordlet_be_suppress_cpu_cores" in agent.fetch("/metrics")
        order(site.api, {**BURSTING, "resourceUsedThresholdWithBE": {"enable": False}})
        until(lambda: site.value(QUOTA, site.top) == "-1", "best-effort work is let go")

    def test_best_effort_runs_behind_others_and_comes_back(self, site: Site, agent: Agent) -> None:
        hog = site.group("hog")
        if not site.value(IDLE, hog):
            pytest.skip("this kernel has no cpu.idle")
        weight = site.value(SHARES, hog)
        assert weight == "512", "of its batch amounts"
        order(site.api, {**BURSTING, **BEHIND})
        until(lambda: site.value(IDLE, hog) == "1", "best-effort work is idle")
        assert site.value(IDLE, site.top) == "0", "the kubelet writes the shares of that group"
        order(site.api, BURSTING)
        until(lambda: site.value(IDLE, hog) == "0", "it is not any more")
        until(lambda: site.value(SHARES, hog) == weight, "its weight is what it was")
        site.remove("hog")

    def test_memory_that_is_short_costs_the_least_important_pod(self, site: Site, agent: Agent) -> None:
        kept = {"selector": {"matchLabels": {"app": "kept"}}, "minAvailable": 1}
        budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "kept"}, "spec": kept}
        site.api.create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
        site.run(batch("kept", priority="batch-5000", labels={"app": "kept"}), batch("given-up", priority="batch-5100"))
        until(lambda: known(agent)["pods"] == 6, "six pods are known")
        short = {"enable": True, "memoryEvictThresholdPercent": 2, "memoryEvictLowerPercent": 1}
        order(site.api, {**BURSTING, "resourceUsedThresholdWithBE": short})
        until(lambda: site.pod("given-up") is None, "the one without a budget goes")
        order(site.api, BURSTING)
        assert site.pod("kept") is not None
        assert site.pod("web") is not None
        tried = {one["name"]: one for one in evictions(agent)}
        assert tried["kept"]["outcome"] == "refused"
        assert "disruption budget" in tried["kept"]["detail"]
        assert tried["given-up"]["outcome"] == "evicted"
        assert tried["given-up"]["reason"] == "trigger by koordlet feature BEMemoryEvict, kill pod: given-up"
        assert "of" in tried["given-up"]["measured"]
        wanted = {("given-up", "evictPodSuccess"), ("kept", "evictPodFail")}
        until(lambda: wanted <= told_events(site), "events tell it")
        site.remove("kept", "batch")

    def test_cpu_that_is_short_costs_batch_work(self, site: Site, agent: Agent) -> None:
        site.run(
            batch("less", 3000, command=HOG, priority="batch-5000"),
            batch("more", 1000, command=HOG, priority="batch-5900"),
        )
        starving = {
            **HOLDING["resourceUsedThresholdWithBE"],
            "cpuEvictBESatisfactionLowerPercent": 20,
            "cpuEvictBESatisfactionUpperPercent": 20,
            "cpuEvictBEUsageThresholdPercent": 1,
            "cpuEvictTimeWindowSeconds": 2,
        }
        order(site.api, {**BURSTING, "resourceUsedThresholdWithBE": starving})
        until(lambda: site.pod("less") is None, "the less important one goes")
        order(site.api, BURSTING)
        first = next(one for one in evictions(agent) if one["name"] in ("less", "more"))
        assert (first["name"], first["outcome"]) == ("less", "evicted")
        assert first["reason"] == "trigger by koordlet feature BECPUEvict, kill pod: less"
        assert "asked for" in first["measured"]
        until(lambda: site.value(QUOTA, site.top) == "-1", "best-effort work is let go")
        site.remove("more")

    def test_a_node_slo_that_is_deleted_holds_nobody(self, site: Site, agent: Agent) -> None:
        order(site.api, {**BURSTING, **HOLDING})
        until(lambda: site.value(QUOTA, site.top) != "-1", "best-effort work is held")
        site.api.delete(NODE_SLO)
        until(lambda: site.value(QUOTA, site.top) == "-1", "best-effort work is let go")
        until(lambda: site.value(BURST, site.container("web")) == "0", "so are bursts")

    def test_every_pod_is_reported(self, site: Site, agent: Agent) -> None:
        names = {"web", "pinned", "plain"}
        until(lambda: names <= {one["name"] for one in site.reported().get("podsMetric", ())}, "all pods", 60)
        found = site.reported()
        rows = {one["name"]: one for one in found["podsMetric"]}
        assert (rows["pinned"]["priority"], rows["pinned"]["qos"]) == ("koord-prod", "LSR")
        assert (rows["web"]["priority"], rows["web"]["qos"]) == ("koord-prod", "LS")
        assert rows["plain"]["namespace"] == "default"
        for row in rows.values():
            assert {"cpu", "memory"} <= row["podUsage"]["resources"].keys()
        node = found["nodeMetric"]
        used, system = node["nodeUsage"]["resources"], node["systemUsage"]["resources"]
        assert 0 < milli(system["cpu"]) <= milli(used["cpu"])
        windows = {one["duration"]: one["usage"] for one in node["aggregatedNodeUsages"]}
        assert set(windows["20s"]) == {"avg", "p50", "p90", "p95", "p99"}
        assert milli(windows["20s"]["p50"]["resources"]["cpu"]) <= milli(windows["20s"]["p99"]["resources"]["cpu"])
        assert found["prodReclaimableMetric"]["resource"] is not None

    def test_no_fault_was_logged(self, agent: Agent) -> None:
        log = agent.log()
        assert "Traceback" not in log
        assert not [line for line in log.splitlines() if line.startswith("E")]
        assert agent.stop() == 0


class TestManyLives:
    """Agents that come and go over the same pods."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def pods(cls, site: Site) -> None:
        assert nodeagent.restore(site.node, site.folder / "one").returncode == 0  # by their specs, as if it never ran
        site.run(batch("batch"), *(() if site.pod("web") else (web("web"),)))

    def test_safe_mode_writes_nothing(self, site: Site) -> None:
        order(site.api, {**BURSTING, **HOLDING, **BEHIND})
        before = site.values()
        with nodeagent.running(site.node, site.folder / "safe", "--safe-mode", *QUICK) as agent:
            until(lambda: "strategy CPUBurst only tells" in agent.log(), "strategies run")
            ticked(agent)
            assert site.values() == before
            doing = {one["strategy"]: one for one in strategies(agent)}
            assert doing["CPUBurst"]["effects"] > 0
            assert doing["CPUBurst"]["written"] == 0
        assert not list((site.folder / "safe" / "state").glob("*"))

    def test_killed_anywhere_values_converge_and_all_can_be_undone(self, site: Site) -> None:
        folder, chance = site.folder / "killed", random.Random()
        seed = chance.randrange(2**32)
        chance.seed(seed)
        site.api.delete(NODE_SLO)
        before = site.values()
        wishes = [{**BURSTING, **HOLDING, **BEHIND}, BURSTING, {**HOLDING, **BEHIND}, {**BURSTING, **HOLDING}]
        for wish in wishes:
            order(site.api, wish)
            with nodeagent.running(site.node, folder, *QUICK) as agent:
                time.sleep(chance.uniform(0.2, 2.5))
                agent.kill()
        with nodeagent.running(site.node, folder, *QUICK) as agent:
            web_group = site.container("web")
            until(lambda: site.value(BURST, web_group) == "20000", f"bursts are there (seed {seed})")
            until(lambda: site.value(QUOTA, site.top) != "-1", f"best-effort work is held (seed {seed})")
            until(lambda: "1" not in {site.value(IDLE, one) for one in site.groups()}, f"nobody is idle (seed {seed})")
            assert "Traceback" not in agent.log()
        said = nodeagent.restore(site.node, folder)
        assert said.returncode == 0, said.stderr
        assert site.values() == before, f"seed {seed}"


class TestTrouble:
    """A kubelet that is away, a pod that is disturbed: the agent goes on and tells."""

    @pytest.fixture(scope="class")
    @classmethod
    def agent(cls, site: Site) -> Iterator[Agent]:
        order(site.api, {**BURSTING, **WATCHING})
        limits = {"requests": {"cpu": "50m"}, "limits": {"cpu": "50m"}}
        site.run(pod("shaky", limits, command="trap 'while :; do :; done' USR1; while :; do sleep 0.2; done"))
        looking = ("--tell-interference", "--psi-collector-interval=1s")
        gates = f"{nodeagent.GATES},PSICollector=true"
        with nodeagent.running(site.node, site.folder / "trouble", *QUICK, *looking, gates=gates) as agent:
            until(lambda: known(agent).get("podsFrom") == "kubelet", "the kubelet tells its pods")
            yield agent

    def test_a_kubelet_that_is_away_and_comes_back(self, site: Site, agent: Agent) -> None:
        site.node.stop("kubelet")
        until(lambda: known(agent)["podsFrom"] == "apiserver", "the API server does instead")
        order(site.api, {**BURSTING, **HOLDING, **WATCHING})
        until(lambda: site.value(QUOTA, site.top) != "-1", "the agent goes on")
        site.node.start("kubelet")
        until(lambda: known(agent)["podsFrom"] == "kubelet", "the kubelet tells its pods again")
        assert known(agent)["podsProblem"] == ""
        assert agent.log().count("does not tell its pods") == 1

    def test_a_pod_that_waits_for_cpu_is_told(self, site: Site, agent: Agent) -> None:
        if known(agent)["collectors"].get("pressure") != "works":
            pytest.skip(f"no pressure of groups on this kernel: {known(agent)['collectors'].get('pressure')}")
        until(lambda: ticks(agent) > 15, "what is normal is known")
        site.signal("shaky", signal.SIGUSR1)
        until(lambda: NOTE in site.annotations("shaky"), "its annotation tells it")
        told = json.loads(site.annotations("shaky")[NOTE])
        assert told["cpu-psi"]["now"] > told["cpu-psi"]["baseline"]
        until(lambda: ("shaky", "InterferenceDetected") in told_events(site), "an event tells it")
        assert any(one.startswith("default/shaky: cpu-psi") for one in known(agent)["disturbedPods"])

    def test_nothing_is_left_behind(self, site: Site, agent: Agent) -> None:
        log = agent.log()
        assert "Traceback" not in log
        assert agent.stop() == 0
        assert nodeagent.restore(site.node, site.folder / "trouble").returncode == 0
        assert site.value(QUOTA, site.top) == "-1"
