"""What a simulated agent remembers of the files that it gave values to, and what it tells of its hooks."""

from __future__ import annotations

import json

import msgspec

from koord.api.koordinator.protocol import A_RESOURCE_STATUS
from koord.host.cgroup.knob import CPU_BURST, CPU_QUOTA, CPU_SHARES, CPUSET
from koord.host.hardware import MachineCpu
from koord.koordlet.cgroup_writer.effects import WriteCgroup
from koord.koordlet.container_values import AppliedValue
from koord.koordlet.inputs.node_inputs import NodeInputs
from koord.sim.agents.node_agent import SimulatedAgent, SimulatedAgentSettings, SimulatedAppliedFiles
from koord.sim.machine.simulated_machine import ContainerDemand, SimulatedHardware, SimulatedMachine
from tests.sim.machine.machine_builders import GIB, batch, machine, service

POD = batch("job", 2000)
GROUP = POD.containers[0].group


def write(file: str, value: str, why: str = "1 + 1") -> WriteCgroup:
    return WriteCgroup(group=GROUP, file=file, value=value, owner="tester", cause="test", why=why)


def started() -> tuple[SimulatedMachine, SimulatedAppliedFiles]:
    made = machine()
    made.set_pods((POD,))
    files = SimulatedAppliedFiles(made)
    files.forget_removed((POD,))
    return made, files


def test_a_value_keeps_the_time_of_its_write_and_has_the_newest_reason() -> None:
    made, files = started()
    files.record(10.0, made.execute([write(CPU_SHARES, "512")]))
    files.record(20.0, made.execute([write(CPU_SHARES, "512", why="2 + 0")]))
    assert files.applied(GROUP) == {
        CPU_SHARES: AppliedValue(value="512", owner="tester", why="2 + 0", written_s=10.0),
    }
    files.record(30.0, made.execute([write(CPU_SHARES, "1024")]))
    assert files.applied(GROUP)[CPU_SHARES].written_s == 30.0


def test_a_value_that_the_file_already_had_was_never_written() -> None:
    made, files = started()
    files.record(10.0, made.execute([write(CPU_QUOTA, "-1")]))
    assert files.applied(GROUP)[CPU_QUOTA].written_s is None


def test_what_is_restored_is_no_longer_told() -> None:
    made, files = started()
    files.record(10.0, made.execute([write(CPU_SHARES, "512")], complete_owners=("tester",)))
    files.record(20.0, made.execute([], complete_owners=("tester",)))
    assert files.applied(GROUP) == {}
    assert made.read_knob(GROUP, CPU_SHARES) == "2"


def test_a_refusal_is_told_until_the_kernel_takes_a_value() -> None:
    made, files = started()
    files.record(10.0, made.execute([write(CPUSET, "0-99")]))
    assert files.refusal(GROUP, CPUSET) == "there are no such CPUs"
    assert files.applied(GROUP) == {}
    files.record(20.0, made.execute([write(CPUSET, "0-1")]))
    assert files.refusal(GROUP, CPUSET) == ""


def test_a_file_that_changed_since_differs() -> None:
    made, files = started()
    made.execute([write(CPU_BURST, "7")])
    assert files.read(GROUP, CPU_BURST, "7").differs is False
    found = files.read(GROUP, CPU_BURST, "8")
    assert (found.value, found.differs) == ("7", True)
    assert files.read("kubepods/gone", CPU_BURST, "8").value is None


def test_groups_of_pods_that_left_are_forgotten() -> None:
    made, files = started()
    files.record(10.0, made.execute([write(CPU_SHARES, "512"), write(CPUSET, "0-99")]))
    made.set_pods(())
    files.forget_removed(())
    assert files.applied(GROUP) == {}
    assert files.refusal(GROUP, CPUSET) == ""


def test_hooks_of_a_simulated_agent_count_pods_and_problems() -> None:
    broken = msgspec.structs.replace(service("web"), annotations={A_RESOURCE_STATUS: json.dumps({"cpuset": "0-x"})})
    agent = SimulatedAgent(
        "n",
        SimulatedHardware(processors=(MachineCpu(cpu=0, core=0),), memory_bytes=32 * GIB),
        ContainerDemand(200, GIB),
        SimulatedAgentSettings(gates=frozenset({"BatchResource", "CPUSetAllocator"})),
    )
    assert [way.connected for way in agent.hooks.status().connections] == [False]
    for now_s in (10.0, 20.0):
        agent.advance(now_s, NodeInputs(pods=(POD, broken)), {})
    status = agent.hooks.status()
    assert [(way.connected, way.since) for way in status.connections] == [(True, "1970-01-01T00:00:10Z")]
    hooks = {hook.name: hook for hook in status.hooks}
    assert (hooks["BatchResource"].pods, hooks["BatchResource"].last_applied) == (1, "1970-01-01T00:00:20Z")
    assert hooks["CPUSetAllocator"].failures == 1  # the same problem in both steps
    assert "cpuset" in hooks["CPUSetAllocator"].last_failure
