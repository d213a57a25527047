"""The load of a simulated cluster: nodes and cluster now and over the day, and what services lacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from koord.api.koordinator.protocol import BEST_EFFORT
from koord.api.koordinator.resource_name import BATCH_CPU
from koord.host.cgroup.knob import CPUSET
from koord.koordlet.inputs.node_inputs import NodeInputs
from koord.koordlet.strategies import cpu_suppress
from koord.sim.agents.node_agent import SimulatedAgent
from koord.sim.machine.simulated_machine import GROUPS, worst_latency_factor
from koord.values.cpuset import CPUSet

MIN_SUPPRESSED_MILLI = 100.0  # less does not count as suppression


class NodeLoadState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The load of one node, in milli-cores. `cpus_for_batch`: how many BE may use; `held_back`: wanted beyond."""

    name: str
    capacity_milli: int
    services_milli: float
    batch_milli: float
    system_milli: float
    lent_milli: int  # batch-cpu allocatable
    batch_pods: int
    service_pods: int
    cpus_for_batch: int
    held_back_milli: float
    short_milli: float
    latency: float
    why: str = ""  # the last reason of suppression

    @property
    def used_milli(self) -> float:
        return self.services_milli + self.batch_milli + self.system_milli

    @property
    def is_suppressed(self) -> bool:
        return self.held_back_milli > MIN_SUPPRESSED_MILLI


class ClusterLoadState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    at_s: float
    nodes: tuple[NodeLoadState, ...]

    @property
    def capacity_milli(self) -> int:
        return sum(node.capacity_milli for node in self.nodes)

    def percent(self, *fields: str) -> float:
        """Return the percentage of the cluster's CPU; fields are those of the node states."""
        total = sum(float(getattr(node, name)) for node in self.nodes for name in fields)
        return 100 * total / max(self.capacity_milli, 1)

    @property
    def suppressed(self) -> int:
        """Return the number of nodes on which BE pods get less than they want."""
        return sum(node.is_suppressed for node in self.nodes)


class LoadTotals(msgspec.Struct, kw_only=True, rename="camel"):
    """Sums over a stretch of the run, in seconds and milli-core-seconds."""

    seconds: float = 0.0
    capacity: float = 0.0
    services: float = 0.0  # with the system's daemons
    batch: float = 0.0
    lent: float = 0.0
    short: float = 0.0
    suppressed_node_s: float = 0.0
    slowest: float = 1.0

    def add(self, state: ClusterLoadState, step_s: float) -> None:
        self.seconds += step_s
        self.capacity += state.capacity_milli * step_s
        for node in state.nodes:
            self.services += (node.services_milli + node.system_milli) * step_s
            self.batch += node.batch_milli * step_s
            self.lent += node.lent_milli * step_s
            self.short += node.short_milli * step_s
            self.suppressed_node_s += node.is_suppressed * step_s
            self.slowest = max(self.slowest, node.latency)

    @property
    def services_percent(self) -> float:
        return 100 * self.services / self.capacity if self.capacity else 0.0

    @property
    def used_percent(self) -> float:
        return 100 * (self.services + self.batch) / self.capacity if self.capacity else 0.0


class LoadObserver:
    """Observes every step; keeps the present, a history in slots of `slot_s`, and sums since jobs began."""

    def __init__(self, step_s: float, slot_s: float = 1200.0) -> None:
        self._step_s = step_s
        self._slot_s = slot_s
        self._slot: LoadTotals = LoadTotals()
        self.history: list[LoadTotals] = []
        self.before = LoadTotals()  # until there is any batch work
        self.during = LoadTotals()
        self.state: ClusterLoadState | None = None

    def observe(
        self, at_s: float, agents: Mapping[str, SimulatedAgent], facts: Mapping[str, NodeInputs]
    ) -> ClusterLoadState:
        """Observe the cluster after all nodes have stepped."""
        nodes = tuple(_node_load(agent, facts[name]) for name, agent in agents.items() if agent.last_step is not None)
        self.state = ClusterLoadState(at_s=at_s, nodes=nodes)
        began = self.during.seconds > 0 or any(node.batch_pods for node in nodes)
        (self.during if began else self.before).add(self.state, self._step_s)
        self._slot.add(self.state, self._step_s)
        if self._slot.seconds >= self._slot_s:
            self.history.append(self._slot)
            self._slot = LoadTotals()
        return self.state

    def slots(self, field: str) -> Sequence[float]:
        """Return the percentage of the cluster's CPU, slot by slot: services, batch or lent."""
        return [100 * getattr(slot, field) / slot.capacity for slot in self.history if slot.capacity]


def _node_load(agent: SimulatedAgent, facts: NodeInputs) -> NodeLoadState:
    step = agent.last_step
    assert step is not None
    moment, machine = step.moment, agent.machine
    batch = {pod.uid for pod in facts.pods if pod.is_best_effort}
    services = frozenset(pod.uid for pod in facts.pods if pod.uid not in batch)
    cpus = len(machine.shape.processors)
    held = len(CPUSet.parse(machine.read_knob(GROUPS[BEST_EFFORT], CPUSET) or ""))
    node = facts.node
    return NodeLoadState(
        name=agent.name,
        capacity_milli=1000 * cpus,
        services_milli=sum(fare.got_milli for fare in moment.outcomes.values() if fare.pod in services),
        batch_milli=sum(fare.got_milli for fare in moment.outcomes.values() if fare.pod in batch),
        system_milli=moment.system_milli,
        lent_milli=0 if node is None else node.allocatable.get(BATCH_CPU, 0),
        batch_pods=len(batch),
        service_pods=len(services),
        cpus_for_batch=held or cpus,
        held_back_milli=moment.short_milli(frozenset(batch)),
        short_milli=moment.short_milli(services),
        latency=worst_latency_factor(moment.outcomes, services),
        why=next((ran.plan.why for ran in step.ran if ran.strategy == cpu_suppress.OWNER), ""),
    )
