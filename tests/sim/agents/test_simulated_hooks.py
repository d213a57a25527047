"""Simulated nodes run the same hooks as real ones: containers have their values from the first step on."""

from __future__ import annotations

import msgspec

from koord.api.koordinator.protocol import A_DEVICE_ALLOCATED, A_RESOURCE_STATUS, L_QOS_CLASS
from koord.host.cgroup import knob
from koord.host.hardware import MachineCpu
from koord.koordlet.feature_gates import default_gates
from koord.koordlet.inputs.node_inputs import NodeInputs, NodeProperties
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.sim.agents.node_agent import SimulatedAgent, SimulatedAgentSettings
from koord.sim.machine.simulated_machine import ContainerDemand, SimulatedHardware
from tests.sim.machine.machine_builders import GIB, batch, container, service

CPUS = 4
NODE = NodeProperties(
    name="n", capacity={"cpu": 4000, "memory": 16 * GIB}, allocatable={"cpu": 4000, "memory": 16 * GIB}
)


def agent(gates: frozenset[str] | None = None) -> SimulatedAgent:
    hardware = SimulatedHardware(
        processors=tuple(MachineCpu(cpu=cpu, core=cpu) for cpu in range(CPUS)), memory_bytes=16 * GIB
    )
    settings = SimulatedAgentSettings(gates=default_gates() if gates is None else gates)
    return SimulatedAgent("n", hardware, ContainerDemand(100, GIB), settings)


def pinned(uid: str, cpuset: str) -> PodMeta:
    return msgspec.structs.replace(
        service(uid, 1000),
        labels={L_QOS_CLASS: "LSR"},
        annotations={A_RESOURCE_STATUS: f'{{"cpuset":"{cpuset}"}}'} if cpuset else {},
    )


def values(one: SimulatedAgent, pod: PodMeta, name: str) -> list[str | None]:
    return [one.machine.read_knob(group, name) for group in (pod.group, pod.containers[0].group)]


def test_batch_amounts_count_from_the_first_step() -> None:
    one, job = agent(), batch("job", 500, memory=GIB)
    step = one.advance(10.0, NodeInputs(node=NODE, pods=(job,)), {container("job"): ContainerDemand(3000, GIB // 2)})
    assert [ran.error for ran in step.ran if ran.error is not None] == []
    assert values(one, job, knob.CPU_SHARES) == ["512", "512"]
    assert values(one, job, knob.CPU_QUOTA) == ["50000", "50000"]
    assert values(one, job, knob.MEMORY_LIMIT) == [str(GIB)] * 2
    assert step.moment.outcomes[container("job")].got_milli == 500


def test_without_the_hook_batch_pods_have_no_limit() -> None:
    one, job = agent(default_gates() - {"BatchResource"}), batch("job", 500)
    step = one.advance(10.0, NodeInputs(node=NODE, pods=(job,)), {container("job"): ContainerDemand(3000, GIB // 2)})
    assert values(one, job, knob.CPU_QUOTA) == ["-1", "-1"]
    assert step.moment.outcomes[container("job")].got_milli > 500


def test_pinned_pods_have_their_cpus_and_others_the_rest() -> None:
    one, web = agent(), msgspec.structs.replace(service("web", 1000), labels={L_QOS_CLASS: "LS"})
    own = pinned("own", "3")
    one.advance(10.0, NodeInputs(node=NODE, pods=(web, own)), {})
    assert one.machine.read_knob(own.containers[0].group, knob.CPUSET) == "3"
    assert values(one, own, knob.CPU_QUOTA) == ["-1", "-1"]
    assert one.machine.read_knob(web.containers[0].group, knob.CPUSET) == "0-2"
    free = pinned("own", "")
    one.advance(20.0, NodeInputs(node=NODE, pods=(web, free)), {})
    assert values(one, free, knob.CPU_QUOTA) == ["200000", "200000"], "its limit counts again"
    assert one.machine.read_knob(web.containers[0].group, knob.CPUSET) == "0-3"


def test_a_container_is_made_once_with_its_card() -> None:
    cards = {A_DEVICE_ALLOCATED: '{"gpu":[{"minor":0}]}'}
    one = agent(default_gates() | {"GPUEnvInject"})
    web = msgspec.structs.replace(service("web", 1000), annotations=cards)

    def told() -> tuple[int, int, str]:
        found = {hook.name: hook for hook in one.hooks.status().hooks}["gpu env inject"]
        return found.pods, found.containers, found.last_applied

    one.advance(10.0, NodeInputs(node=NODE, pods=()), {})
    assert told() == (0, 0, "")
    for now_s in (20.0, 40.0):
        one.advance(now_s, NodeInputs(node=NODE, pods=(web,)), {})
        assert told() == (1, 1, "1970-01-01T00:00:20Z")
