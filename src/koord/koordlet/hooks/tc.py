"""The TCNetworkQoS hook: classes of outgoing traffic for pods by their QoS class, and limits of single pods, by tc.

    1:1  the node's bandwidth
    1:2  system: what LS and BE are not guaranteed; SYSTEM pods, pods without a class and the node itself
    1:3  LS (and LSE, LSR) pods
    1:4  BE pods
    1:x  one for each pod whose annotation limits it

Packets find their class by the address of their pod. Those of pods in the node's own network have the node's address
and find theirs by the class id of the pod's cgroup, where the kernel has net_cls.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.config.slo.defaults import TC
from koord.api.koordinator.qos_class import BE, LS, LSE, LSR, SYSTEM
from koord.host.cgroup.knob import NET_CLS_CLASSID
from koord.host.traffic_class import (
    DEFAULT_MINOR,
    LEAST_RATE_BITS,
    MAJOR,
    ROOT_MINOR,
    AddressFilter,
    TrafficClass,
    TrafficPlan,
)
from koord.koordlet.hooks.bandwidth import ClassBandwidth, NodeBandwidth, node_bandwidth, pod_bandwidth
from koord.koordlet.hooks.hook import NOTHING, HookPlan, HookValue, NodeRules, PodContext

NAME = "tcPlugin"
FILES = (NET_CLS_CLASSID,)
SYSTEM_MINOR, LS_MINOR, BE_MINOR = DEFAULT_MINOR, 3, 4
_PRIORITY = {SYSTEM_MINOR: 1, LS_MINOR: 2, BE_MINOR: 3}
_MINOR_OF_CLASS = {SYSTEM: SYSTEM_MINOR, LSE: LS_MINOR, LSR: LS_MINOR, LS: LS_MINOR, BE: BE_MINOR}
_POD_MINORS = range(0x10, 0xFFFF)  # 0xffff names a root in the kernel


def decide_pod(pod: PodContext, rules: NodeRules) -> HookPlan:
    """Decide the class id of the pod's cgroup, and tell what of its annotation cannot be used."""
    if not is_enabled(rules):
        return NOTHING
    minor, problem = _MINOR_OF_CLASS.get(pod.qos), ""
    limits = pod_bandwidth(pod)
    if isinstance(limits, MalformedAnnotation):
        problem = str(limits)
    else:
        if limits.ingress and pod.qos:
            problem = "ingressLimit is not enforced by tc"
        minor = pod_minor(pod.uid) if limits.egress and minor is not None else minor
    if minor is None:
        return HookPlan(problem=problem)
    why = f"class {MAJOR}:{minor:x} of the device"
    value = HookValue(knob=NET_CLS_CLASSID, value=str(MAJOR << 16 | minor), why=why)
    return HookPlan(values=(value,), problem=problem)


def decide_node(rules: NodeRules, pods: Iterable[PodContext]) -> TrafficPlan | None:
    """Decide the classes and filters of the device; None before the first NodeSLO, when nothing is touched."""
    if rules.slo is None:
        return None
    if not is_enabled(rules):
        return TrafficPlan(enabled=False)
    node = node_bandwidth(rules.slo)
    problems = list(node.problems)
    classes = _node_classes(node, problems)
    filters: list[AddressFilter] = []
    by_cgroup = False
    taken: dict[int, str] = {}
    for pod in sorted(pods, key=lambda pod: (pod.created_s, pod.uid)):
        minor = _MINOR_OF_CLASS.get(pod.qos)
        if minor is None:
            continue  # it has the default class, as the node's own traffic has
        limits = pod_bandwidth(pod)
        limit_bits = 0 if isinstance(limits, MalformedAnnotation) else limits.egress or 0
        priority = _PRIORITY[minor]
        if limit_bits:
            minor = _free_minor(pod, taken, problems)
            bits = max(limit_bits, LEAST_RATE_BITS)
            classes.append(TrafficClass(minor=minor, rate_bits=bits, ceil_bits=bits, priority=priority))
        if minor == DEFAULT_MINOR:
            continue
        by_cgroup |= pod.host_network
        address = "" if pod.host_network else _address(pod.ip)
        if address:
            filters.append(AddressFilter(address=address, minor=minor))
    return TrafficPlan(
        enabled=True,
        classes=tuple(classes),
        filters=tuple(sorted({one.address: one for one in filters}.values())),
        by_cgroup=by_cgroup,
        problems=tuple(problems),
    )


def is_enabled(rules: NodeRules) -> bool:
    """Return whether tc is the policy and the node says how much bandwidth it has."""
    if rules.slo is None:
        return False
    qos = rules.slo.resource_qos_strategy
    policy = None if qos is None or qos.policies is None else qos.policies.net_qos_policy
    return policy in (None, TC) and node_bandwidth(rules.slo).total > 0


def pod_minor(uid: str) -> int:
    """Return the number of a pod's own class: the same for the same pod, also after a restart."""
    digest = hashlib.blake2s(uid.encode(), digest_size=4).digest()
    return _POD_MINORS[int.from_bytes(digest, "big") % len(_POD_MINORS)]


def _free_minor(pod: PodContext, taken: dict[int, str], problems: list[str]) -> int:
    """Return the number of the pod's class, another one where an older pod has it already."""
    minor = first = pod_minor(pod.uid)
    while minor in taken:
        minor = _POD_MINORS[(_POD_MINORS.index(minor) + 1) % len(_POD_MINORS)]
    taken[minor] = pod.full_name
    if minor != first and pod.host_network:
        # Its class id is decided without sight of other pods.
        problems.append(f"{pod.full_name} shares the limit of {taken[first]}")
    return minor


def _node_classes(node: NodeBandwidth, problems: list[str]) -> list[TrafficClass]:
    total = max(node.total, LEAST_RATE_BITS)
    rest = total - node.ls.egress_request - node.be.egress_request
    if rest < LEAST_RATE_BITS:
        problems.append("egressRequest of lsClass and beClass leave nothing for the system")
    return [
        TrafficClass(minor=ROOT_MINOR, parent=0, rate_bits=total, ceil_bits=total),
        _class(SYSTEM_MINOR, ClassBandwidth(egress_request=rest), total),
        _class(LS_MINOR, node.ls, total),
        _class(BE_MINOR, node.be, total),
    ]


def _class(minor: int, bandwidth: ClassBandwidth, total: int) -> TrafficClass:
    """Return a class. No limit is that of the node, and a limit below the request is the request."""
    rate = max(bandwidth.egress_request, LEAST_RATE_BITS)
    ceil = max(bandwidth.egress_limit or total, rate)
    return TrafficClass(minor=minor, rate_bits=rate, ceil_bits=ceil, priority=_PRIORITY[minor])


def _address(text: str) -> str:
    """Return an address in its usual notation; "" while the pod has none."""
    try:
        return str(ipaddress.ip_address(text)) if text else ""
    except ValueError:
        return ""
