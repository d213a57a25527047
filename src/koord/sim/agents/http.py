"""The HTTP services of simulated agents, as real ones have: of all nodes, and of one below /nodes/NAME.

Metrics are under koordlet's names, brought up to date when they are asked for: of thousands of agents most never are.
Evictions are counted as they happen. What a machine in memory does not have (pressure, cycles, requests to a kubelet,
times of writes) is not served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from koord.host.cgroup.knob import CPU_BURST, KNOBS
from koord.host.hardware import CapabilityState
from koord.koordlet.agent_status import ContainersStatus, InterferenceStatus
from koord.koordlet.container_values import pods_status
from koord.koordlet.gpu_shares import GpusStatus, card_status, containers_with_gpus, granted_share
from koord.koordlet.inputs.node_inputs import NodeInputs
from koord.koordlet.reporters.builders import node_conditions
from koord.koordlet.reporters.builders.node_conditions import CapabilityRow
from koord.koordlet.strategies import cpu_burst, cpu_suppress
from koord.koordlet.strategies.runner import strategy_status
from koord.sim.agents.cluster_agents import SimulatedAgents
from koord.sim.agents.node_agent import SimulatedAgent
from koord.sim.machine.simulated_machine import SimulatedMachine
from koord.telemetry import http_routing, metrics
from koord.telemetry.clock import Clock
from koord.telemetry.component_server import ComponentServer, ServiceRoutes
from koord.telemetry.http_routing import HttpCall, HttpReply
from koord.values import timestamp

_NODE_PATH = "/nodes/:node/apis/v1"

_SHOWN = (cpu_suppress.OWNER, cpu_burst.OWNER)


def metrics_reply(agent: SimulatedAgent, inputs: NodeInputs, now_s: float, call: HttpCall) -> HttpReply:
    shown = agent.metrics
    shown.set_usage(agent.store, now_s)
    shown.pods_changed(inputs.pods)
    if inputs.node is not None:
        shown.node_changed(inputs.node)
    threshold = None if inputs.slo is None else inputs.slo.resource_used_threshold_with_be
    ran = [one for name in _SHOWN if name in agent.last_runs and not (one := agent.last_runs[name][1]).error]
    shown.record_strategies(ran, inputs.pods, "" if threshold is None else threshold.cpu_suppress_policy)
    shown.expire(now_s)
    open_metrics = metrics.prefers_openmetrics(call.headers.get("Accept", ""))
    kind = metrics.OPENMETRICS_CONTENT_TYPE if open_metrics else metrics.TEXT_CONTENT_TYPE
    body = metrics.render((shown.internal, shown.external), open_metrics=open_metrics)
    return HttpReply(body=body, content_type=kind)


def build_server(agents: SimulatedAgents, clock: Clock) -> ComponentServer:
    endpoint = ComponentServer(clock)
    ServiceRoutes(endpoint).add("GET", "/evictions", lambda call: _evictions(agents, call))
    of_one = ServiceRoutes(endpoint, _NODE_PATH)
    of_one.add("GET", "/evictions", _for_node(agents, lambda agent, call: _evictions(agents, call)))
    of_one.add(
        "GET", "/capabilities", _for_node(agents, lambda agent, _: {"capabilities": capability_rows(agent.machine)})
    )
    of_one.add("GET", "/strategies", _for_node(agents, lambda agent, _: {"strategies": _strategy_statuses(agent)}))
    of_one.add("GET", "/hooks", _for_node(agents, lambda agent, _: agent.hooks.status()))
    of_one.add("GET", "/containers", _for_node(agents, lambda agent, call: _containers(agents, agent, call)))
    of_one.add("GET", "/interference", _for_node(agents, lambda agent, call: _interference(agents, agent, call)))
    of_one.add("GET", "/gpus", _for_node(agents, lambda agent, _: _gpus(agents, agent)))
    endpoint.routes.add(
        "GET",
        "/nodes/:node/metrics",
        _for_node(agents, lambda agent, call: metrics_reply(agent, agents.facts(agent.name), clock.time(), call)),
    )
    of_one.add("GET", "/state", _for_node(agents, lambda agent, _: _state(agents, agent)))
    return endpoint


def capability_rows(machine: SimulatedMachine) -> list[CapabilityRow]:
    """Return the capabilities of a machine: a file that it has takes every value that its kernel would."""
    bounded = machine.shape.burst_within_quota
    found = [_row(name, has=machine.has_knob(name), bounded=bounded and name == CPU_BURST) for name in KNOBS]
    features = [
        CapabilityRow(knob=name, state=CapabilityState.OFF.value, how="simulated machines have none")
        for name in ("perf_event", "kidled", "resctrl")
    ]
    return [*node_conditions.with_strategies(found), *features]


def _row(name: str, *, has: bool, bounded: bool) -> CapabilityRow:
    if not has:
        return CapabilityRow(knob=name, state=CapabilityState.OFF.value, how="the simulated kernel does not have it")
    if bounded:
        return CapabilityRow(
            knob=name, state=CapabilityState.DEGRADED.value, how="simulated; not above the quota", errno="EINVAL"
        )
    return CapabilityRow(knob=name, state=CapabilityState.SUPPORTED.value, how="simulated")


def _for_node(agents: SimulatedAgents, answer: Callable[[SimulatedAgent, HttpCall], Any]) -> Callable[[HttpCall], Any]:
    def handler(call: HttpCall) -> Any:
        name = call.parameters["node"]
        agent = agents.agents.get(name)
        return http_routing.error_reply(404, f"no simulated node {name}") if agent is None else answer(agent, call)

    return handler


def _evictions(agents: SimulatedAgents, call: HttpCall) -> dict[str, Any]:
    found = agents.ledger.records(call.first_value("namespace") or "", call.first_value("name") or "")
    node = call.parameters.get("node")
    return {"evictions": [record for record in found if node is None or record.node == node]}


def _containers(agents: SimulatedAgents, agent: SimulatedAgent, call: HttpCall) -> ContainersStatus:
    namespace, name = call.first_value("namespace") or "", call.first_value("name") or ""
    pods = [pod for pod in agents.facts(agent.name).pods if namespace in ("", pod.namespace) and name in ("", pod.name)]
    return pods_status(pods, agent.applied_files, agent.hooks.pods)


def _gpus(agents: SimulatedAgents, agent: SimulatedAgent) -> GpusStatus:
    """Return the cards and what is granted of them; nothing runs on a simulated card, so no use is told."""
    shares = containers_with_gpus(agents.facts(agent.name).pods)
    return GpusStatus(
        cards=tuple(card_status(card) for card in agent.gpus),
        shares=tuple(granted_share(pod, container, card) for pod, container, cards in shares for card in cards),
    )


def _interference(agents: SimulatedAgents, agent: SimulatedAgent, call: HttpCall) -> InterferenceStatus:
    namespace, name = call.first_value("namespace") or "", call.first_value("name") or ""
    return agent.interference_status(agents.facts(agent.name).pods, namespace, name)


def _strategy_statuses(agent: SimulatedAgent) -> list[Any]:
    return [strategy_status(ran, timestamp.unix_text(at_s)) for at_s, ran in agent.last_runs.values()]


def _state(agents: SimulatedAgents, agent: SimulatedAgent) -> dict[str, Any]:
    facts = agents.facts(agent.name)
    return {
        "node": agent.name,
        "simulated": True,
        "cgroupVersion": agent.machine.shape.cgroup_version,
        "nodeSeen": facts.node is not None,
        "nodeSLOSeen": facts.slo is not None,
        "pods": len(facts.pods),
        "series": len(agent.store),
        "strategies": list(agent.strategy_runner.enabled),
        "collectors": {name: one.problem or "works" for name, one in agent.collectors.current.items()},
    }
