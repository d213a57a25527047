"""The HTTP services of simulated agents, under the paths that real ones have: of all nodes together, and of
one below /nodes/NAME.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from koord.host.capability import State
from koord.host.cgroup.knob import CPU_BURST, KNOBS
from koord.koordlet import capability
from koord.koordlet.capability import Row
from koord.koordlet.contention.machine import SimulatedMachine
from koord.koordlet.doing import doing_of
from koord.sim.agent import Agent
from koord.sim.agents import Agents
from koord.telemetry import routing
from koord.telemetry.clock import Clock
from koord.telemetry.endpoint import Endpoint, Services
from koord.telemetry.routing import Call
from koord.values import instant

_NODE = "/nodes/:node/apis/v1"


def endpoint_of(agents: Agents, clock: Clock) -> Endpoint:
    endpoint = Endpoint(clock)
    Services(endpoint).add("GET", "/evictions", lambda call: _evictions(agents, call))
    of_one = Services(endpoint, _NODE)
    of_one.add("GET", "/evictions", _of(agents, lambda agent, call: _evictions(agents, call)))
    of_one.add("GET", "/capabilities", _of(agents, lambda agent, _: {"capabilities": rows(agent.machine)}))
    of_one.add("GET", "/strategies", _of(agents, lambda agent, _: {"strategies": _doings(agent)}))
    of_one.add("GET", "/state", _of(agents, lambda agent, _: _state(agents, agent)))
    return endpoint


def rows(machine: SimulatedMachine) -> list[Row]:
    """Return the capabilities of a machine: a file that it has takes every value that its kernel would."""
    bounded = machine.shape.burst_within_quota
    found = [_row(name, has=machine.has(name), bounded=bounded and name == CPU_BURST) for name in KNOBS]
    features = [
        Row(knob=name, state=State.OFF.value, how="simulated machines have none")
        for name in ("perf_event", "kidled", "resctrl")
    ]
    return [*capability.with_users(found), *features]


def _row(name: str, *, has: bool, bounded: bool) -> Row:
    if not has:
        return Row(knob=name, state=State.OFF.value, how="the simulated kernel does not have it")
    if bounded:
        return Row(knob=name, state=State.DEGRADED.value, how="simulated; not above the quota", errno="EINVAL")
    return Row(knob=name, state=State.SUPPORTED.value, how="simulated")


def _of(agents: Agents, answer: Callable[[Agent, Call], Any]) -> Callable[[Call], Any]:
    def handler(call: Call) -> Any:
        name = call.parameters["node"]
        agent = agents.agents.get(name)
        return routing.trouble(404, f"no simulated node {name}") if agent is None else answer(agent, call)

    return handler


def _evictions(agents: Agents, call: Call) -> dict[str, Any]:
    found = agents.ledger.entries(call.first("namespace") or "", call.first("name") or "")
    node = call.parameters.get("node")
    return {"evictions": [entry for entry in found if node is None or entry.node == node]}


def _doings(agent: Agent) -> list[Any]:
    return [doing_of(ran, instant.text(datetime.fromtimestamp(at_s, UTC))) for at_s, ran in agent.ran.values()]


def _state(agents: Agents, agent: Agent) -> dict[str, Any]:
    facts = agents.facts(agent.name)
    return {
        "node": agent.name,
        "simulated": True,
        "cgroupVersion": agent.machine.shape.cgroup_version,
        "nodeSeen": facts.node is not None,
        "nodeSLOSeen": facts.slo is not None,
        "pods": len(facts.pods),
        "series": len(agent.store),
        "strategies": list(agent.round.enabled),
    }
