"""koordlet on a real node where Koordinator's own agent was seen to go wrong: each setting, and its removal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from koord.host.cgroup.detection import LayoutNotDetected, open_tree
from koord.host.filesystem import Host
from koord.values.cpuset import CPUSet
from tests.real.real_node import BE_LABELS, BURST, CPUS, QUOTA, SHARES, Site, batch, known, pinned, pool, ticked
from tools import nodeagent, realnode
from tools.nodeagent import PODS, Agent, Json, order, pod, until

pytestmark = [pytest.mark.real, pytest.mark.machine]

LIMIT = "memory.limit_in_bytes"
MI = 2**20
UNLIMITED = "-1"
NODE = "/api/v1/nodes/node1"
RATIO = "node.koordinator.sh/cpu-normalization-ratio"
STATUS = "scheduling.koordinator.sh/resource-status"
EXTENDED = "node.koordinator.sh/extended-resource-spec"
OWN_BURST = "koordinator.sh/cpuBurst"
OOM_SCORE, OOM_SCORES = "koordinator.sh/oom-score-adj", "koordinator.sh/oom-score-adj-spec"
QUICK = ("--kubelet-sync-interval=2s", "--runtime-hooks-reconcile-interval=2s")
GATES = f"{nodeagent.GATES},CPUNormalization=true,OOMScoreAdj=true"
QUIET: Json = {"resourceUsedThresholdWithBE": {"enable": False}, "cpuBurstStrategy": {"policy": "none"}}
HOLDING: Json = {
    **QUIET,
    "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota", "cpuSuppressThresholdPercent": 10},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    reason = realnode.missing()
    if reason:
        pytest.skip(reason)
    with realnode.running() as node:
        tree = open_tree(Host.local())
        assert not isinstance(tree, LayoutNotDetected), tree
        site = Site(node, tree, tmp_path_factory.mktemp("koordlet"))
        nodeagent.install(site.api)
        lent = {"kubernetes.io/batch-cpu": "20k", "kubernetes.io/batch-memory": "20Gi"}  # as the manager would
        site.api.merge(f"{NODE}/status", {"status": {"capacity": lent, "allocatable": lent}})
        yield site


@pytest.fixture(scope="module")
def running(site: Site) -> Iterator[Agent]:
    with nodeagent.running(site.node, site.folder / "agent", *QUICK, gates=GATES) as agent:
        until(lambda: known(agent).get("podsFrom") == "kubelet", "the kubelet tells its pods")
        until(lambda: '"connected":true' in agent.fetch("/apis/v1/hooks").replace(" ", ""), "NRI is connected")
        yield agent


@pytest.fixture
def agent(site: Site, running: Agent) -> Iterator[Agent]:
    """The agent, with a NodeSLO that asks for nothing. All pods of a test go with it, and so does what it ordered."""
    order(site.api, QUIET)
    site.api.merge(NODE, {"metadata": {"annotations": {RATIO: None}}})
    yield running
    site.remove(*[one["metadata"]["name"] for one in site.api.seen(PODS)["items"]])
    assert "Traceback" not in running.log()


def limited(name: str, milli: int = 200, *, qos: str = "LS", more: int = 0, annotations: Json | None = None) -> Json:
    """A Burstable pod; with `more` it has a second container of that limit."""
    labels = {"koordinator.sh/qosClass": qos} if qos else {}
    made = pod(
        name,
        {"requests": {"cpu": "50m"}, "limits": {"cpu": f"{milli}m", "memory": "64Mi"}},
        labels=labels,
        annotations=annotations,
    )
    if more:
        resources = {"requests": {"cpu": "50m"}, "limits": {"cpu": f"{more}m", "memory": "64Mi"}}
        made["spec"]["containers"].append({**made["spec"]["containers"][0], "name": "second", "resources": resources})
    return made


def containers(site: Site, name: str) -> dict[str, str]:
    """The groups of the pod's containers, by name."""
    statuses = site.api.seen(f"{PODS}/{name}")["status"]["containerStatuses"]
    layout = site.tree.layout
    return {one["name"]: f"{site.group(name)}/{layout.container_name(one['containerID'])}" for one in statuses}


def quotas(site: Site, name: str) -> tuple[str, ...]:
    """The quota of the pod, then of its containers in the order of their names."""
    found = containers(site, name)
    return tuple(site.value(QUOTA, group) for group in (site.group(name), *(found[key] for key in sorted(found))))


def annotate(site: Site, path: str, **annotations: str | None) -> None:
    site.api.merge(path, {"metadata": {"annotations": annotations}})


def score(site: Site, name: str) -> str:
    return (Path("/proc") / str(site.process(name)) / "oom_score_adj").read_text().strip()


def batch_text(milli: int, memory: str) -> str:
    own = {"kubernetes.io/batch-cpu": str(milli), "kubernetes.io/batch-memory": memory}
    return json.dumps({"containers": {"main": {"requests": own, "limits": own}}})


class TestNormalization:
    """Each pod has one quota, whatever the policy of bursts is; without the ratio it is that of the spec."""

    @pytest.mark.parametrize("policy", ["none", "cpuBurstOnly", "auto"])
    def test_a_ratio_that_comes_changes_and_goes(self, site: Site, agent: Agent, policy: str) -> None:
        order(site.api, {**QUIET, "cpuBurstStrategy": {"policy": policy, "cpuBurstPercent": 100}})
        site.run(limited("ls"), limited("plain", qos=""), limited("two", 200, more=300), batch("be", 500, priority=""))
        wanted: dict[str | None, tuple[tuple[str, ...], ...]] = {
            "1.2": (("16667", "16667"), ("41667", "16667", "25000"), ("41667", "41667")),
            "2.5": (("8000", "8000"), ("20000", "8000", "12000"), ("20000", "20000")),
            None: (("20000", "20000"), ("50000", "20000", "30000"), ("50000", "50000")),
        }
        for ratio, found in wanted.items():
            annotate(site, NODE, **{RATIO: ratio})
            self.reach(site, found, f"ratio {ratio}")
            ticked(agent, 5)
            self.reach(site, found, f"ratio {ratio}, and they stay", 0)

    def reach(self, site: Site, wanted: tuple[tuple[str, ...], ...], why: str, seconds: float = 30.0) -> None:
        until(lambda: quotas(site, "ls") == quotas(site, "plain") == wanted[0], f"{why}: {wanted[0]}", seconds)
        until(lambda: quotas(site, "two") == wanted[1], f"{why}: {wanted[1]}", seconds)
        until(lambda: quotas(site, "be") == wanted[2], f"{why}: {wanted[2]}", seconds)

    def test_a_ratio_that_is_no_number_changes_nothing(self, site: Site, agent: Agent) -> None:
        annotate(site, NODE, **{RATIO: "1.2"})
        site.run(limited("ls"))
        assert quotas(site, "ls")[1] == "16667", "at the moment the container runs"
        until(lambda: quotas(site, "ls") == ("16667", "16667"), "so does the pod")
        annotate(site, NODE, **{RATIO: "fast"})
        ticked(agent, 5)
        assert quotas(site, "ls") == ("16667", "16667")

    def test_a_resize_in_place_is_of_the_ratio_too(self, site: Site, agent: Agent) -> None:
        annotate(site, NODE, **{RATIO: "1.2"})
        site.run(limited("ls"))
        resize(site, "ls", {"requests": {"cpu": "50m"}, "limits": {"cpu": "400m", "memory": "64Mi"}})
        until(lambda: quotas(site, "ls") == ("33334", "33334"), f"the new limit counts: {quotas(site, 'ls')}")
        ticked(agent, 5)
        assert quotas(site, "ls") == ("33334", "33334")


def resize(site: Site, name: str, resources: Json) -> None:
    found = site.api.seen(f"{PODS}/{name}")
    found["spec"]["containers"][0]["resources"] = resources
    site.api.ask("PUT", f"{PODS}/{name}/resize", found)


class TestCpusOfTheirOwn:
    """CPU 1 is for one pod alone: who has it, who leaves it, and what remains of that."""

    @pytest.mark.parametrize("policy", ["none", "auto"])
    def test_an_unlabelled_pod_has_no_quota_and_bursts_leave_it_so(self, site: Site, agent: Agent, policy: str) -> None:
        order(site.api, {**QUIET, "cpuBurstStrategy": {"policy": policy, "cpuBurstPercent": 100}})
        site.run(limited("own", 100, qos="", annotations={STATUS: '{"cpuset":"1"}'}))
        assert quotas(site, "own")[1] == UNLIMITED, "at the moment the container runs"
        until(lambda: quotas(site, "own") == (UNLIMITED, UNLIMITED), "so does the pod")
        ticked(agent, 5)
        assert quotas(site, "own") == (UNLIMITED, UNLIMITED)
        assert site.value(CPUS, site.container("own")) == "1"
        annotate(site, f"{PODS}/own", **{STATUS: None})
        until(lambda: quotas(site, "own") == ("10000", "10000"), "its limit counts again")
        until(lambda: site.value(CPUS, site.container("own")) == site.cpus, "it runs where the others do")

    def test_a_resize_in_place_brings_no_quota_back(self, site: Site, agent: Agent) -> None:
        site.run(limited("own", 100, qos="LSR", annotations={STATUS: '{"cpuset":"1"}'}))
        resize(site, "own", {"requests": {"cpu": "80m"}, "limits": {"cpu": "200m", "memory": "64Mi"}})
        until(lambda: site.value(SHARES, site.container("own")) == "81", "the kubelet resized it")
        until(lambda: quotas(site, "own") == (UNLIMITED, UNLIMITED), "and it still has no quota")
        ticked(agent, 5)
        assert (quotas(site, "own"), site.value(CPUS, site.container("own"))) == ((UNLIMITED, UNLIMITED), "1")

    def test_unreadable_text_leaves_a_pod_as_it_is(self, site: Site, agent: Agent) -> None:
        site.run(pinned("own", 1))
        until(lambda: quotas(site, "own") == (UNLIMITED, UNLIMITED), "it has no quota")
        annotate(site, f"{PODS}/own", **{STATUS: '{"cpuset":'})
        ticked(agent, 6)
        assert (quotas(site, "own"), site.value(CPUS, site.container("own"))) == ((UNLIMITED, UNLIMITED), "1")

    def test_an_lsr_pod_without_any_runs_where_the_others_do(self, site: Site, agent: Agent) -> None:
        site.run(pinned("own", 1), limited("unbound", qos="LSR"))
        rest = str(CPUSet.parse(site.cpus) - CPUSet.of([1]))
        until(lambda: site.value(CPUS, site.container("unbound")) == rest, "it leaves the CPU of the other")
        assert quotas(site, "unbound") == ("20000", "20000")

    def test_a_best_effort_pod_is_not_bound_and_takes_no_cpu_from_others(self, site: Site, agent: Agent) -> None:
        told = {STATUS: '{"cpuset":"1"}', EXTENDED: batch_text(500, "64Mi")}
        site.run(pod("be", labels=BE_LABELS, annotations=told), limited("ls"))
        assert quotas(site, "be")[1] == "50000", "never without its batch quota"
        ticked(agent, 6)
        assert quotas(site, "be") == ("50000", "50000")
        assert {site.value(CPUS, site.container(name)) for name in ("be", "ls")} == {site.cpus}
        assert pool(site.topology()["metadata"]["annotations"], "cpu-shared-pools") == site.cpus

    def test_an_empty_pool_leaves_the_others_where_they_are(self, site: Site, agent: Agent) -> None:
        site.run(limited("ls"))
        own = pinned("own", 0)
        own["metadata"]["annotations"][STATUS] = json.dumps({"cpuset": site.cpus})
        site.run(own)
        ticked(agent, 6)
        assert site.value(CPUS, site.container("ls")) == site.cpus
        assert site.value(CPUS, site.container("own")) == site.cpus

    def test_cpus_of_an_lse_pod_are_not_for_best_effort_work_though_nothing_is_suppressed(
        self, site: Site, agent: Agent
    ) -> None:
        site.run(batch("be", priority=""))
        exclusive = pinned("own", 1)
        exclusive["metadata"]["labels"] = {"koordinator.sh/qosClass": "LSE"}
        site.run(exclusive)
        rest = str(CPUSet.parse(site.cpus) - CPUSet.of([1]))
        groups = (site.top, site.group("be"), site.container("be"))
        until(lambda: {site.value(CPUS, one) for one in groups} == {rest}, "the whole tree leaves it")
        site.remove("own")
        until(lambda: {site.value(CPUS, one) for one in groups} == {site.cpus}, "and gets it back")


class TestBatch:
    def test_the_spec_counts_and_not_a_smaller_annotation(self, site: Site, agent: Agent) -> None:
        made = batch("be", 1000, priority="")
        made["metadata"]["annotations"][EXTENDED] = batch_text(500, "32Mi")
        site.run(made)
        wanted = ("1024", "100000", str(64 * MI))
        groups = (site.group("be"), site.container("be"))
        until(lambda: [values(site, one) for one in groups] == [wanted] * 2, "both have the amounts of the spec")
        assert "EINVAL" not in agent.log()

    def test_every_pod_of_many_keeps_its_shares(self, site: Site, agent: Agent) -> None:
        names = [f"be-{i}" for i in range(12)]
        site.run(*[batch(name, 500, priority="") for name in names])
        assert {site.value(SHARES, site.container(name)) for name in names} == {"512"}, "when they run"
        ticked(agent, 6)  # three periods; the kubelet has written its own 2 by then
        wanted = ("512", "50000", str(64 * MI))
        groups = [group for name in names for group in (site.group(name), site.container(name))]
        assert {one: values(site, one) for one in groups} == dict.fromkeys(groups, wanted)

    def test_suppression_by_quota_holds_all_together_and_lets_go(self, site: Site, agent: Agent) -> None:
        site.run(batch("be", 500, priority=""))
        until(lambda: quotas(site, "be") == ("50000", "50000"), "it has its own quota")
        ticked(agent, 3)
        before = agent.log()
        order(site.api, HOLDING)
        until(lambda: quotas(site, "be") == (UNLIMITED, UNLIMITED), "its own quota is off")
        until(lambda: site.value(QUOTA, site.top) != UNLIMITED, "that of all is on")
        order(site.api, QUIET)
        until(lambda: site.value(QUOTA, site.top) == UNLIMITED, "that of all is off")
        until(lambda: quotas(site, "be") == ("50000", "50000"), "its own is back")
        assert "cannot be" not in agent.log().removeprefix(before), "no write was refused"


def values(site: Site, group: str) -> tuple[str, str, str]:
    return site.value(SHARES, group), site.value(QUOTA, group), site.value(LIMIT, group)


def test_a_pods_own_burst_counts_though_the_node_has_none_and_goes_with_its_annotation(
    site: Site, agent: Agent
) -> None:
    site.run(limited("ls", annotations={OWN_BURST: '{"policy":"cpuBurstOnly","cpuBurstPercent":1000}'}), limited("no"))
    groups = (site.group("ls"), site.container("ls"))
    until(lambda: [site.value(BURST, one) for one in groups] == ["20000", "20000"], "as much as this kernel takes")
    assert site.value(BURST, site.container("no")) == "0"
    annotate(site, f"{PODS}/ls", **{OWN_BURST: '{"policy":"cpuBurstOnly","cpuBurstPercent":50}'})
    until(lambda: [site.value(BURST, one) for one in groups] == ["10000", "10000"], "half of it")
    annotate(site, f"{PODS}/ls", **{OWN_BURST: None})
    until(lambda: [site.value(BURST, one) for one in groups] == ["0", "0"], "nothing")
    assert quotas(site, "ls") == ("20000", "20000")


def test_oom_scores_at_the_start_after_a_change_and_without_the_annotation(site: Site, agent: Agent) -> None:
    site.run(
        limited("plain"),
        limited("scored", annotations={OOM_SCORE: "600"}),
        limited("spared", annotations={OOM_SCORE: "600", OOM_SCORES: '{"main":2000}'}),
        limited("broken", annotations={OOM_SCORE: "600", OOM_SCORES: "{"}),
    )
    usual = score(site, "plain")
    assert score(site, "scored") == "600", "at the moment the container runs"
    ticked(agent, 5)
    assert (score(site, "spared"), score(site, "broken")) == (usual, usual), "what cannot be used is passed over"
    annotate(site, f"{PODS}/scored", **{OOM_SCORES: '{"main":700}'})
    until(lambda: score(site, "scored") == "700", "the container's own wins")
    annotate(site, f"{PODS}/scored", **{OOM_SCORES: None, OOM_SCORE: None})
    until(lambda: score(site, "scored") == usual, "the kubelet's again")
