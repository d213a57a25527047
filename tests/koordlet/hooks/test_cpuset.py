"""CPUs of containers, and pods without a quota."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.annotations.cpu_codecs import CPUSharedPool
from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE, GUARANTEED
from koord.host.cgroup.knob import CPU_QUOTA, CPUSET, KNOBS
from koord.koordlet.hooks import cpuset
from koord.koordlet.hooks.hook import HookPlan, HookSettings, NodeRules
from tests.koordlet.hooks.hook_builders import BE_POOLS, LS_POOLS, a_container, a_pod, pooled_rules, values

BE_MANAGER = "BECPUManager"


def numa(*nodes: int, **resources: str) -> dict[str, Any]:
    amounts = {name.replace("batch_cpu", "kubernetes.io/batch-cpu"): text for name, text in resources.items()}
    return {"numaNodeResources": [{"node": node, "resources": amounts} for node in nodes]}


def cpus(qos: str, status: Any = None, rules: NodeRules | None = None, kube_qos: str = BURSTABLE) -> str | None:
    plan = cpuset.decide_container(a_container(a_pod(qos, status, kube_qos=kube_qos)), rules or pooled_rules())
    assert plan.problem == ""
    return values(plan).get(CPUSET)


@pytest.mark.parametrize(
    ("qos", "status", "kube_qos", "wanted"),
    [
        pytest.param("LSR", {"cpuset": "0-3"}, GUARANTEED, "0-3", id="own"),
        pytest.param("LSE", {"cpuset": "3,1-2"}, GUARANTEED, "1-3", id="own-in-the-kernels-notation"),
        pytest.param("", {"CPUSet": "2"}, BURSTABLE, "2", id="own-without-a-class-and-in-any-case"),
        pytest.param("LS", {"cpuset": "2"}, BURSTABLE, "2", id="own-ls"),
        pytest.param("LSR", {"cpuset": "2"}, BEST_EFFORT, "2", id="own-beats-the-tier"),
        pytest.param("LS", None, BURSTABLE, "0-15", id="ls-all-pools"),
        pytest.param("LS", numa(0), BURSTABLE, "0-15", id="ls-numa-without-cpu"),
        pytest.param("LS", numa(0, cpu="0"), BURSTABLE, "0-15", id="ls-numa-with-no-cpu"),
        pytest.param("LS", numa(0, memory="1Gi"), BURSTABLE, "0-15", id="ls-numa-with-memory-alone"),
        pytest.param("LS", numa(1, cpu="2"), BURSTABLE, "8-15", id="ls-one-numa-node"),
        pytest.param("LS", numa(1, 0, cpu="2"), BURSTABLE, "0-15", id="ls-both-numa-nodes"),
        pytest.param("LSR", numa(0, cpu="2"), GUARANTEED, "0-7", id="lsr-numa"),
        pytest.param("LSR", None, GUARANTEED, "0-15", id="lsr-without-cpus-follows-the-pools"),
        pytest.param("", None, BURSTABLE, "0-15", id="no-class"),
        pytest.param("", numa(0, cpu="500m"), GUARANTEED, "0-7", id="no-class-numa"),
        pytest.param("SYSTEM", None, BURSTABLE, "0-15", id="system-without-cpus-of-its-own"),
        pytest.param("", None, BEST_EFFORT, None, id="besteffort-belongs-to-suppression"),
        pytest.param("LS", None, BEST_EFFORT, None, id="ls-in-the-besteffort-cgroup"),
        pytest.param("BE", None, BEST_EFFORT, None, id="be"),
        pytest.param("BE", {"cpuset": "2"}, BEST_EFFORT, None, id="be-is-not-bound"),
        pytest.param("BE", numa(0, batch_cpu="1000"), BEST_EFFORT, None, id="be-numa-is-not-bound"),
        pytest.param("BE", None, BURSTABLE, None, id="be-outside-of-the-besteffort-cgroup"),
    ],
)
def test_whose_cpus_a_container_has(qos: str, status: Any, kube_qos: str, wanted: str | None) -> None:
    assert cpus(qos, status, kube_qos=kube_qos) == wanted


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        pytest.param(numa(1, batch_cpu="1000"), "8-14", id="one-numa-node"),
        pytest.param(numa(0, 1, batch_cpu="1000"), "0-6,8-14", id="both"),
        pytest.param({"cpuset": "2"}, "2", id="own"),
        pytest.param(None, None, id="nothing"),
        pytest.param(numa(0), None, id="numa-without-cpu"),
    ],
)
def test_managed_be_pods_have_the_be_pools_of_their_numa_nodes(status: Any, wanted: str | None) -> None:
    assert cpus("BE", status, pooled_rules(BE_MANAGER), BEST_EFFORT) == wanted


@pytest.mark.parametrize(
    ("qos", "rules", "wanted"),
    [
        pytest.param("SYSTEM", pooled_rules(system_cpus="15"), "15", id="system"),
        pytest.param("LS", pooled_rules(system_cpus="15"), "0-15", id="ls-is-no-system-pod"),
        pytest.param("SYSTEM", pooled_rules(system_cpus="15", kubelet_static=True), "15", id="system-static"),
        pytest.param("SYSTEM", pooled_rules(kubelet_static=True), None, id="system-left-to-the-kubelet"),
        pytest.param("", pooled_rules(kubelet_static=True), None, id="no-class-left-to-the-kubelet"),
        pytest.param("LSR", pooled_rules(kubelet_static=True), None, id="lsr-left-to-the-kubelet"),
        pytest.param("LS", pooled_rules(kubelet_static=True), "0-15", id="ls-static"),
        pytest.param("LS", NodeRules(), None, id="pools-not-known"),
        pytest.param("LS", NodeRules(ls_pools=()), None, id="no-pools"),
        pytest.param("LS", NodeRules(ls_pools=(CPUSharedPool(),)), None, id="an-empty-pool-writes-nothing"),
    ],
)
def test_rules_of_the_node(qos: str, rules: NodeRules, wanted: str | None) -> None:
    assert cpus(qos, None, rules) == wanted


def test_a_numa_node_without_a_pool_writes_nothing() -> None:
    assert cpus("LS", numa(7, cpu="2")) is None


@pytest.mark.parametrize("qos", ["LSE", "LSR", ""])
def test_own_cpus_have_no_quota(qos: str) -> None:
    pod = a_pod(qos, {"cpuset": "0-1"})
    assert values(cpuset.decide_pod(pod, pooled_rules())) == {CPU_QUOTA: "-1"}, "only containers are bound to CPUs"
    assert values(cpuset.decide_container(a_container(pod), NodeRules())) == {CPUSET: "0-1", CPU_QUOTA: "-1"}
    sandbox = a_container(pod, "", is_sandbox=True)
    assert values(cpuset.decide_container(sandbox, NodeRules())) == {CPUSET: "0-1", CPU_QUOTA: "-1"}
    kept = NodeRules(settings=HookSettings(unset_cpu_quota=False))
    assert cpuset.decide_pod(pod, kept) == HookPlan()
    assert values(cpuset.decide_container(a_container(pod), kept)) == {CPUSET: "0-1"}


@pytest.mark.parametrize(
    ("qos", "status"),
    [
        pytest.param("LSR", None, id="lsr-on-the-pool"),
        pytest.param("LSR", numa(0, cpu="2"), id="lsr-on-the-pool-of-a-numa-node"),
        pytest.param("LS", {"cpuset": "0-1"}, id="ls"),
        pytest.param("SYSTEM", {"cpuset": "0-1"}, id="system"),
        pytest.param("BE", {"cpuset": "0-1"}, id="be"),
    ],
)
def test_others_keep_their_quota(qos: str, status: Any) -> None:
    rules = pooled_rules(BE_MANAGER)
    assert cpuset.decide_pod(a_pod(qos, status), rules) == HookPlan()
    assert CPU_QUOTA not in values(cpuset.decide_container(a_container(a_pod(qos, status)), rules))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("{", "resource-status", id="no-json"),
        pytest.param('{"cpuset":"a"}', "cpuset", id="no-cpu-list"),
        pytest.param('{"cpuset":"3-1"}', "cpuset", id="backwards"),
        pytest.param('{"cpuset":"0-999999"}', "cpuset", id="too-many"),
        pytest.param('{"numaNodeResources":[{"node":0,"resources":{"cpu":"x"}}]}', "resource-status", id="no-quantity"),
    ],
)
def test_an_unreadable_annotation_sets_nothing(text: str, said: str) -> None:
    pod = a_pod("LSR", text)
    for plan in (cpuset.decide_pod(pod, pooled_rules()), cpuset.decide_container(a_container(pod), pooled_rules())):
        assert said in plan.problem
        assert plan == HookPlan(problem=plan.problem)


def test_a_value_equals_what_the_kernel_shows_for_it() -> None:
    """A list that the kernel shows in other words would be written again in every round."""
    value = cpus("LS", None, NodeRules(ls_pools=LS_POOLS))
    assert value == "0-15"
    for file in (KNOBS[CPUSET].v1, KNOBS[CPUSET].v2):
        assert file is not None
        wanted = file.codec.encode(value)
        shown = file.codec.extract("0-15\n", "")
        assert wanted is not None
        assert shown is not None
        assert file.codec.same_field(wanted, shown)
        joined = file.codec.encode("0-7,8-15")
        assert joined == wanted, "other notations of one set compare equal too"


def test_pools_may_come_in_any_order() -> None:
    assert cpus("LS", None, NodeRules(ls_pools=LS_POOLS[::-1])) == cpus("LS", None, NodeRules(ls_pools=LS_POOLS))
    assert cpuset.shared_cpus(BE_POOLS[::-1]) == cpuset.shared_cpus(BE_POOLS)
