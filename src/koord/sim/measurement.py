"""The agents of all simulated nodes as one component of a cluster: they follow pods, nodes and SLOs, step
their machines, evict through the API server and report. Decisions are made by each node's agent.
"""

from __future__ import annotations

from koord.api.pod import Pod
from koord.api.pod_qos import pod_qos
from koord.embedded.kubelet.host import NodeUsage
from koord.embedded.kubelet.usage import Usage
from koord.koordlet.contention.machine import LAYOUT
from koord.koordlet.contention.moment import Moment
from koord.koordlet.pod import PodView, pod_view
from koord.sim.agent import Step

_ENOUGH = 0.99  # of what was wanted: less slows work down


def view_of(pod: Pod) -> PodView:
    """Return the pod as agents see it. Simulated containers have cgroups named by their ids, whatever their runtime."""
    group = LAYOUT.pod_dir(pod_qos(pod), pod.metadata.uid)
    ids = [one.container_id for one in pod.status.container_statuses if one.container_id]
    return pod_view(pod, group, {identity: f"{group}/{identity.rpartition('/')[2][:12]}" for identity in ids})


def lost(moment: Moment) -> dict[str, float]:
    """Return by how much less than a whole step each pod progressed; the slowest of a pod's containers counts."""
    found: dict[str, float] = {}
    for fare in moment.fares.values():
        if fare.got_milli < _ENOUGH * fare.wanted_milli:
            lost = moment.step_s * (1 - fare.got_milli / fare.wanted_milli)
            found[fare.pod] = max(found.get(fare.pod, 0.0), lost)
    return found


def measured(step: Step) -> NodeUsage:
    moment = step.moment
    pods: dict[str, Usage] = {}
    for fare in moment.fares.values():
        used = Usage(round(fare.got_milli), fare.memory_bytes)
        pods[fare.pod] = pods[fare.pod].plus(used) if fare.pod in pods else used
    system = Usage(round(moment.system_milli), moment.system_bytes)
    total = system
    for used in pods.values():
        total = total.plus(used)
    return NodeUsage(system=system, pods=pods, total=total)
