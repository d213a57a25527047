"""A simulated antagonist slows services whatever CPUs they have; the agent of its node names it and acts."""

from __future__ import annotations

import pytest

from koord.api.koordinator.slo import Extensions, NodeSLOSpec
from koord.host.hardware import MachineCpu
from koord.koordlet.inputs.effective_slo import effective_slo
from koord.koordlet.inputs.node_inputs import NodeInputs, NodeProperties
from koord.sim.agents.node_agent import AgentStep, SimulatedAgent, SimulatedAgentSettings
from koord.sim.machine.simulated_machine import ContainerDemand, SimulatedHardware, SimulatedMachine
from tests.sim.machine.machine_builders import GIB, batch, container, machine, run, service

PODS = (service("web", 2000), batch("stream", 4000), batch("quiet", 2000))
AMOUNTS = {"cpu": 8000, "memory": 32 * GIB}
NODE = NodeProperties(name="n", capacity=AMOUNTS, allocatable=AMOUNTS)


class Node:
    def __init__(self, action: str) -> None:
        hardware = SimulatedHardware(
            processors=tuple(MachineCpu(cpu=cpu, core=cpu // 2) for cpu in range(8)), memory_bytes=32 * GIB
        )
        gates = frozenset({"InterferenceDetection", "BatchResource"})
        settings = SimulatedAgentSettings(gates=gates, step_s=5.0)
        self.agent = SimulatedAgent("n", hardware, ContainerDemand(200, GIB), settings)
        stated = {"action": action, "sampleSeconds": 5, "throttleSeconds": 60, "actionIntervalSeconds": 60}
        slo = effective_slo(NodeSLOSpec(extensions=Extensions(object={"interference": stated})))
        self.facts = NodeInputs(node=NODE, slo=slo, pods=PODS)
        self.now_s = 1_000_000.0

    def steps(self, count: int, stream_milli: float) -> list[AgentStep]:
        done: list[AgentStep] = []
        for _ in range(count):
            self.now_s += 5.0
            demands = {
                container("web"): ContainerDemand(1000, GIB),
                container("quiet"): ContainerDemand(1500, GIB),
                container("stream"): ContainerDemand(stream_milli, GIB, cache_pressure=10.0),
            }
            done.append(self.agent.advance(self.now_s, self.facts, demands))
            assert [ran.error for ran in done[-1].ran if ran.error is not None] == []
        return done

    def cpi(self) -> float:
        step = self.agent.last_step
        assert step is not None
        return step.moment.outcomes[container("web")].contention.cpi


def test_pressure_on_caches_raises_cpi_wherever_the_others_run() -> None:
    one = machine()
    one.set_pods(PODS)
    calm, plain = machine_cpis(one, 1.0, 0.0)
    pressed, pressing = machine_cpis(one, 2.0, 10.0)
    assert pressed > 2 * calm
    assert pressing == pytest.approx(plain), "its own pressure does not slow it"


def machine_cpis(one: SimulatedMachine, at_s: float, pressure: float) -> tuple[float, float]:
    moment = run(one, at_s, web=1000.0, stream=ContainerDemand(3000, GIB, cache_pressure=pressure))
    web, stream = (moment.outcomes[container(name)].contention.cpi for name in ("web", "stream"))
    return web, stream


def test_the_antagonist_is_named_and_not_the_pod_that_always_runs() -> None:
    node = Node("report")
    node.steps(30, 0.0)
    node.steps(4, 2500.0)
    status = node.agent.interference_status(PODS, "default", "web")
    (incident,) = status.incidents
    assert (incident.metric, incident.culprit) == ("cpi", "default/stream")
    assert [one.pod for one in incident.suspects] == ["stream", "quiet"]
    assert [(one.pod, one.reason) for one in node.agent.interference_news()] == [("web", "InterferenceDetected")]


def test_throttling_mends_it() -> None:
    node = Node("throttle")
    node.steps(30, 0.0)
    normal = node.cpi()
    node.steps(4, 2500.0)
    assert node.cpi() > 1.8 * normal or node.agent.interference_status(PODS, "", "").throttled
    node.steps(6, 2500.0)
    assert node.cpi() < 1.2 * normal
    (throttled,) = node.agent.interference_status(PODS, "", "").throttled
    assert (throttled.pod, throttled.victim) == ("stream", "default/web")


def test_eviction_is_asked_for_once() -> None:
    node = Node("evict")
    node.steps(30, 0.0)
    wanted = [request for step in node.steps(8, 2500.0) for request in step.evictions]
    assert [(one.name, one.record.rule) for one in wanted] == [("stream", "InterferenceEvict")]
