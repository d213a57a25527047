"""Metrics of a simulated agent under koordlet's names, brought up to date when they are asked for: of thousands of
agents most never are.

Evictions are counted as they happen. What a machine in memory does not have (pressure, cycles, requests to a kubelet,
times of writes) is not served.
"""

from __future__ import annotations

from koord.koordlet.inputs.node_inputs import NodeInputs
from koord.koordlet.strategies import cpu_burst, cpu_suppress
from koord.sim.agents.node_agent import SimulatedAgent
from koord.telemetry import metrics
from koord.telemetry.http_routing import HttpCall, HttpReply

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
