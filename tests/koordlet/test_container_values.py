"""What is told of a container's values: who decided them, what the kernel holds, and why a value is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from koord.api.koordinator.protocol import A_DEVICE_ALLOCATED, A_OOM_SCORE_ADJ, BEST_EFFORT, BURSTABLE
from koord.host.cgroup.knob import CPU_IDLE, CPU_QUOTA, CPU_SHARES, MEMORY_LIMIT, CgroupFile
from koord.koordlet.agent_status import CgroupStatus
from koord.koordlet.container_values import containers_status
from koord.koordlet.hooks.hook import NodeRules
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.strategies.runtime_hooks import HookedPod, RuntimeHooksView, decide_runtime_hooks
from tests.koordlet.cgroup_writer.executor_fixture import TOP, ExecutorFixture, write

BATCH = {"kubernetes.io/batch-cpu": 1500, "kubernetes.io/batch-memory": 3 * 2**30}
GATES = frozenset({"BatchResource", "OOMScoreAdj"})


def a_pod(qos: str = "BE", kube_qos: str = BEST_EFFORT, amounts: Mapping[str, int] = BATCH, **rest: Any) -> PodMeta:
    group = f"{TOP}/podx"
    main = ContainerMeta(
        name="main", id="containerd://one", group=f"{group}/one", running=True, requests=amounts, limits=amounts
    )
    labels = {"koordinator.sh/qosClass": qos}
    return PodMeta(
        uid="x",
        name="work",
        group=group,
        kube_qos=kube_qos,
        labels=labels,
        requests=amounts,
        limits=amounts,
        containers=(main,),
        **rest,
    )


def decided(pod: PodMeta, gates: frozenset[str] = GATES) -> dict[str, HookedPod]:
    plan = decide_runtime_hooks(RuntimeHooksView(rules=NodeRules(gates=gates), pods=(pod,)))
    return dict(plan.state.pods)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> ExecutorFixture:
    made = ExecutorFixture(tmp_path, request.param)
    made.machine.pod(BEST_EFFORT, "x", "containerd://one")
    return made


def main_container(
    world: ExecutorFixture, pod: PodMeta, hooked: dict[str, HookedPod], *, safe_mode: bool = False
) -> CgroupStatus:
    found = containers_status([pod], world.tree, world.executor, hooked, safe_mode=safe_mode).containers
    assert [(one.level, one.container) for one in found] == [("pod", ""), ("container", "main")]
    return found[1]


def test_written_values_tell_hook_numbers_time_and_file(world: ExecutorFixture) -> None:
    pod = a_pod()
    hooked = decided(pod)
    world.do(*hooked["x"].effects)
    values = {one.knob: one for one in main_container(world, pod, hooked).values}
    assert set(values) == {CPU_SHARES, CPU_QUOTA, MEMORY_LIMIT}
    quota = values[CPU_QUOTA]
    assert (quota.wanted, quota.kernel, quota.decided_by) == ("150000", "150000", "BatchResource")
    assert quota.why == "kubernetes.io/batch-cpu limit 1500"
    assert quota.written_at
    assert quota.path == world.tree.path(CgroupFile(CPU_QUOTA, pod.containers[0].group))
    assert not any(one.differs or one.problem for one in values.values())


def test_digits_that_a_weight_loses_are_no_difference(tmp_path: Path) -> None:
    world = ExecutorFixture(tmp_path, 2)
    world.machine.pod(BEST_EFFORT, "x", "containerd://one")
    pod = a_pod()
    hooked = decided(pod)
    world.do(*hooked["x"].effects)
    (shares,) = (one for one in main_container(world, pod, hooked).values if one.knob == CPU_SHARES)
    assert shares.wanted == "1536"
    assert shares.kernel != "1536"
    assert not shares.differs
    assert shares.path.endswith("/cpu.weight")


def test_what_somebody_else_wrote_differs(world: ExecutorFixture) -> None:
    pod = a_pod()
    hooked = decided(pod)
    world.do(*hooked["x"].effects)
    path = world.tree.path(CgroupFile(CPU_QUOTA, pod.containers[0].group))
    assert path is not None
    assert world.kernel.write(path, "70000") is None
    values = {one.knob: one for one in main_container(world, pod, hooked).values}
    assert (values[CPU_QUOTA].wanted, values[CPU_QUOTA].kernel, values[CPU_QUOTA].differs) == ("150000", "70000", True)
    assert not values[MEMORY_LIMIT].differs


def test_values_of_strategies_are_told_beside_those_of_hooks(world: ExecutorFixture) -> None:
    pod = a_pod()
    world.do(write(CPU_IDLE, pod.group, "1", "GroupIdentity"))
    found = containers_status([pod], world.tree, world.executor, {}, safe_mode=False).containers
    assert [(one.knob, one.wanted, one.decided_by, one.why) for one in found[0].values] == [
        (CPU_IDLE, "1", "GroupIdentity", "1 + 1")
    ]


def test_a_value_that_is_not_written_says_why(world: ExecutorFixture) -> None:
    pod = a_pod()
    hooked = decided(pod)
    for safe_mode, why in ((False, "not written yet"), (True, "safe mode: nothing is written")):
        values = main_container(world, pod, hooked, safe_mode=safe_mode).values
        assert {one.problem for one in values} == {why}
        assert not any(one.written_at for one in values)


def test_shares_wait_while_the_group_is_idle(world: ExecutorFixture) -> None:
    pod = a_pod()
    hooked = decided(pod)
    container = pod.containers[0]
    world.do(write(CPU_IDLE, container.group, "1", "GroupIdentity"))
    world.do(*hooked["x"].effects)
    problems = {one.knob: one.problem for one in main_container(world, pod, hooked).values if one.problem}
    assert problems == {CPU_SHARES: "the group is idle (cpu.idle 1), which has no shares"}


def test_a_file_of_another_owner_is_said_to_be_his(world: ExecutorFixture) -> None:
    pod = a_pod("LS", BURSTABLE, {"cpu": 1000})
    gates = frozenset({"CPUNormalization", "CPUBurst"})
    plan = decide_runtime_hooks(RuntimeHooksView(rules=NodeRules(gates=gates, normalization_ratio=1.25), pods=(pod,)))
    (pod_status, _) = containers_status([pod], world.tree, world.executor, plan.state.pods, safe_mode=False).containers
    assert [(one.knob, one.wanted, one.decided_by, one.problem) for one in pod_status.values] == [
        (CPU_QUOTA, "80000", "CPUNormalization", "the file belongs to CPUBurst")
    ]


def test_what_is_no_cgroup_value_is_told_too(world: ExecutorFixture) -> None:
    pod = a_pod(annotations={A_OOM_SCORE_ADJ: "-500"})
    assert main_container(world, pod, decided(pod)).others == {"oom_score_adj": "-500"}


DEVICES = {
    "gpu": [{"minor": 1, "resources": {"koordinator.sh/gpu-core": "50"}}],
    "rdma": [{"minor": 0, "id": "0000:3b:00.0", "extension": {"vfs": [{"busID": "0000:3b:00.2"}]}}],
}
INJECTION = frozenset({"GPUEnvInject", "RDMADeviceInject"})


def test_what_a_container_got_when_it_was_made_is_told(world: ExecutorFixture) -> None:
    pod = a_pod("LS", BURSTABLE, {"cpu": 1000}, annotations={A_DEVICE_ALLOCATED: json.dumps(DEVICES)})
    assert main_container(world, pod, decided(pod, INJECTION)).others == {
        "env NVIDIA_VISIBLE_DEVICES": "1",
        "devices": "/dev/infiniband/rdma_cm",
        "verbs devices of": "0000:3b:00.2",
    }
    assert main_container(world, pod, decided(pod)).others == {}, "both gates are off"


def test_why_a_container_got_no_card_is_told(world: ExecutorFixture) -> None:
    pod = a_pod("LS", BURSTABLE, {"cpu": 1000}, annotations={A_DEVICE_ALLOCATED: "{"})
    found = main_container(world, pod, decided(pod, INJECTION))
    assert [one.partition(":")[0] for one in found.problems] == ["gpu env inject", "rdma device inject"]


def test_a_problem_of_a_hook_is_told(world: ExecutorFixture) -> None:
    pod = a_pod(annotations={A_OOM_SCORE_ADJ: "many"})
    (problem,) = main_container(world, pod, decided(pod)).problems
    assert problem.startswith("OOMScoreAdj: ")
