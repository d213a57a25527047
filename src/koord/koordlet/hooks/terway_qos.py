"""The TerwayQoS hook: the two files by which Terway limits the network use of classes and of pods.

Terway's own agent on the node reads the files and does the rest. All rates in them are in bytes per second.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.config.slo.defaults import TERWAY_QOS
from koord.api.koordinator.protocol import A_NETWORK_QOS, BE, BEST_EFFORT, BURSTABLE, GUARANTEED, LS, LSE, LSR, SYSTEM
from koord.koordlet.hooks.hook import NOTHING, HookPlan, NodeRules, PodContext
from koord.koordlet.hooks.tc import ClassBandwidth, NodeBandwidth, PodBandwidth, node_bandwidth, pod_bandwidth

NAME = "TerwayQoS"
CGROUP_ROOT = "/sys/fs/cgroup/net_cls"  # as Terway's agent sees it, whatever this one's mounts are
_BITS = 8
_PRIORITY_OF_CLASS = {SYSTEM: 0, LSE: 1, LSR: 1, LS: 1, BE: 2}
_PRIORITY_OF_KUBE_QOS = {GUARANTEED: 1, BURSTABLE: 1, BEST_EFFORT: 2}


class TerwayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of Terway's two files. Both are to be deleted where it is not enabled."""

    enabled: bool
    global_config: str = ""
    pods: str = ""
    problems: tuple[str, ...] = ()


class _QosConfig(msgspec.Struct, frozen=True, rename="camel"):
    ingress_bandwidth: int
    egress_bandwidth: int


class _PodEntry(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One pod in Terway's file; its fields stand in this order."""

    pod_name: str
    pod_namespace: str
    pod_uid: str = msgspec.field(name="podUID")
    prio: int
    cgroup_dir: str
    qos_config: _QosConfig


def decide_pod(pod: PodContext, rules: NodeRules) -> HookPlan:
    """Tell which pods are left out of Terway's file; for single pods there is nothing else to decide."""
    limits = _limits(pod) if is_enabled(rules) else None
    return HookPlan(problem=limits) if isinstance(limits, str) else NOTHING


def decide_node(rules: NodeRules, pods: Iterable[PodContext]) -> TerwayPlan | None:
    """Decide the files for all pods of the node; None before the first NodeSLO, when nothing is touched."""
    if rules.slo is None:
        return None
    if not is_enabled(rules):
        return TerwayPlan(enabled=False)
    node = node_bandwidth(rules.slo)
    return TerwayPlan(
        enabled=True,
        global_config=_global_config(node),
        pods=_pods_file(pods),
        problems=(*node.problems, *_refusals(node)),
    )


def is_enabled(rules: NodeRules) -> bool:
    qos = None if rules.slo is None else rules.slo.resource_qos_strategy
    policies = None if qos is None else qos.policies
    return policies is not None and policies.net_qos_policy == TERWAY_QOS


def _global_config(node: NodeBandwidth) -> str:
    rows = [("hw_tx_bps_max", node.total), ("hw_rx_bps_max", node.total)]
    for level, bandwidth in (("l1", node.ls), ("l2", node.be)):
        rows += [
            (f"offline_{level}_tx_bps_min", bandwidth.egress_request),
            (f"offline_{level}_tx_bps_max", bandwidth.egress_limit),
            (f"offline_{level}_rx_bps_min", bandwidth.ingress_request),
            (f"offline_{level}_rx_bps_max", bandwidth.ingress_limit),
        ]
    return "".join(f"{key} {bits // _BITS}\n" for key, bits in rows)


def _refusals(node: NodeBandwidth) -> tuple[str, ...]:
    """Return why Terway will refuse the file and keep to the one before: its rules, checked where people look."""
    found: list[str] = []
    for way in ("ingress", "egress"):
        limits = {name: _of(one, way, "limit") for name, one in (("lsClass", node.ls), ("beClass", node.be))}
        requests = {"lsClass": _of(node.ls, way, "request"), "beClass": _of(node.be, way, "request")}
        found += [
            f"Terway refuses {way}Request of {name}: it is above {way}Limit"
            for name, request in requests.items()
            if request > limits[name]
        ]
        if sum(limits.values()) > node.total:
            found.append(f"Terway refuses {way}Limit of lsClass and beClass: they are above the node's bandwidth")
    return tuple(found)


def _of(bandwidth: ClassBandwidth, way: str, kind: str) -> int:
    amount: int = getattr(bandwidth, f"{way}_{kind}")
    return amount


def _pods_file(pods: Iterable[PodContext]) -> str:
    entries: dict[str, _PodEntry] = {}
    for pod in sorted(pods, key=lambda pod: pod.uid):
        limits = _limits(pod)
        if isinstance(limits, str):
            continue
        entries[pod.uid] = _PodEntry(
            pod_name=pod.name,
            pod_namespace=pod.namespace,
            pod_uid=pod.uid,
            prio=priority(pod),
            cgroup_dir=f"{CGROUP_ROOT}/{pod.group}",
            qos_config=_QosConfig((limits.ingress or 0) // _BITS, (limits.egress or 0) // _BITS),
        )
    return msgspec.json.encode(entries).decode()


def priority(pod: PodContext) -> int:
    """Return Terway's level of a pod: 0 before 1 before 2."""
    by_class = _PRIORITY_OF_CLASS.get(pod.qos)
    return _PRIORITY_OF_KUBE_QOS.get(pod.kube_qos, 0) if by_class is None else by_class


def _limits(pod: PodContext) -> PodBandwidth | str:
    """Return the limits of a pod, or why Terway cannot be told of it: it wants both or none."""
    limits = pod_bandwidth(pod)
    if isinstance(limits, MalformedAnnotation):
        return f"{limits}; Terway is not told of the pod"
    if limits.ingress is None or limits.egress is None:
        return f"{A_NETWORK_QOS} states one of two limits; Terway is not told of the pod"
    return limits
