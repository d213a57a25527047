"""The CPUs of host applications: processes outside of Kubernetes that the NodeSLO names, with a QoS class.

Only LS applications have CPUs from here, those of the LS pools; all others keep what their administrator gave them.
"""

from __future__ import annotations

from koord.api.koordinator.qos_class import LS
from koord.api.koordinator.slo_strategy import HostApplicationSpec
from koord.host.cgroup.knob import CPUSET
from koord.koordlet.hooks.cpuset import shared_cpus
from koord.koordlet.hooks.hook import NOTHING, HookPlan, HookValue, NodeRules


def decide_host_application(application: HostApplicationSpec, rules: NodeRules) -> HookPlan:
    """Decide the CPUs of one application. `CgroupLayout.host_application_dir` names its cgroup."""
    cpus = shared_cpus(rules.ls_pools)
    if application.qos != LS or not cpus:
        return NOTHING
    return HookPlan(values=(HookValue(knob=CPUSET, value=str(cpus), why="LS pools of all NUMA nodes"),))
