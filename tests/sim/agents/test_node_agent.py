"""The node agent on a simulated machine keeps services from starving while batch pods use the rest."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.koordinator.slo import (
    CPUQOSConfig,
    NodeSLOSpec,
    ResourceQOS,
    ResourceQOSStrategy,
    ResourceThresholdStrategy,
)
from koord.host.hardware import MachineCpu
from koord.koordlet.inputs.effective_slo import effective_slo
from koord.koordlet.inputs.node_inputs import NodeInputs, NodeProperties
from koord.koordlet.reporters.builders.node_metric import ReportWithheld
from koord.sim.agents.node_agent import SimulatedAgent, SimulatedAgentSettings
from koord.sim.machine.simulated_machine import ContainerDemand, SimulatedHardware
from tests.sim.machine.machine_builders import GIB, batch, container, service

CPUS = 8
PODS = (service("web", 4000), service("db", 2000), batch("job", 4000), batch("other", 2000))
SLO = effective_slo(
    NodeSLOSpec(
        resource_used_threshold_with_be=ResourceThresholdStrategy(enable=True),
        resource_qos_strategy=ResourceQOSStrategy(
            be_class=ResourceQOS(cpu_qos=CPUQOSConfig(enable=True, group_identity=-1)),
        ),
    )
)
NODE = NodeProperties(
    name="n",
    capacity={"cpu": 8000, "memory": 32 * GIB},
    allocatable={"cpu": 8000, "memory": 32 * GIB},
)
FACTS = NodeInputs(node=NODE, slo=SLO, pods=PODS)


def agent(cold_start_s: float = 86_400.0) -> SimulatedAgent:
    hardware = SimulatedHardware(
        processors=tuple(MachineCpu(cpu=cpu, core=cpu // 2) for cpu in range(CPUS)), memory_bytes=32 * GIB
    )
    gates = frozenset({"BECPUSuppress", "GroupIdentity", "CPUBurst"})
    return SimulatedAgent(
        "n",
        hardware,
        ContainerDemand(200, GIB),
        SimulatedAgentSettings(gates=gates, step_s=10.0, cold_start_s=cold_start_s),
    )


def wishes(web: float, db: float, job: float, other: float = 2000) -> dict[str, ContainerDemand]:
    amounts = {"web": web, "db": db, "job": job, "other": other}
    return {container(uid): ContainerDemand(milli, GIB // 2) for uid, milli in amounts.items()}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4800), st.integers(0, 3000), st.integers(0, 8000)), min_size=2, max_size=12))
def test_services_lack_nothing_however_their_load_jumps(loads: list[tuple[int, int, int]]) -> None:
    one = agent()
    one.advance(10.0, FACTS, wishes(0, 0, 0, 0))  # batch work is idle class from the first round on
    for number, (web, db, job) in enumerate(loads, start=2):
        step = one.advance(10.0 * number, FACTS, wishes(web, db, job))
        assert not [ran.error for ran in step.ran if ran.error is not None]
        assert step.moment.short_milli(frozenset({"web", "db"})) == pytest.approx(0, abs=1e-3)
        assert step.moment.used_milli <= CPUS * 1000 + 1e-3


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3000), st.integers(0, 1500))
def test_a_steady_node_settles_at_its_ceiling_or_at_what_services_use(web: int, db: int) -> None:
    one = agent()
    for number in range(1, 12):
        step = one.advance(10.0 * number, FACTS, wishes(web, db, 8000))
    ceiling = 0.65 * CPUS * 1000
    used = step.moment.used_milli
    at_most = max(ceiling + 1000, web + db + 200 + 2000)  # sets are whole CPUs, and two are always left to batch
    assert used <= at_most + 1e-3
    assert used >= min(ceiling, web + db + 200 + 4000 + 2000) - 5  # samples are whole milli-cores


def test_reports_come_from_samples_and_predictions_with_time() -> None:
    one = agent(cold_start_s=60.0)
    assert isinstance(one.report(5.0, FACTS), ReportWithheld)
    for number in range(1, 60):
        one.advance(10.0 * number, FACTS, wishes(1000, 500, 1000))
    status = one.report(590.0, FACTS)
    assert not isinstance(status, ReportWithheld)
    assert status.node_metric is not None
    assert status.node_metric.node_usage.resources["cpu"] == "4700m"
    assert {metric.name for metric in status.pods_metric} == {"web", "db", "job", "other"}
    assert one.prediction(590.0, FACTS) is not None
