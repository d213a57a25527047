"""The TCNetworkQoS hook: classes of traffic for pods by their QoS class, and limits of single pods, by tc.

    1:1  the node's bandwidth
    1:2  system: what LS and BE are not guaranteed; SYSTEM pods, pods without a class and the node itself
    1:3  LS (and LSE, LSR) pods
    1:4  BE pods
    1:x  one for each pod whose annotation limits it

Packets find their class by the address of their pod. Those of pods in the node's own network have the node's address;
going out they find theirs by the class id of the pod's cgroup, where the kernel has net_cls. Incoming packets have a
tree of their own, where anything is limited at all: they take a detour for it.

Bandwidths of the network's QoS classes and of pods are in bits per second, from the NodeSLO and annotations.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable, Iterable, Sequence

import msgspec

from koord.api.annotations import qos_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.config.slo.defaults import TC
from koord.api.koordinator.protocol import A_NETWORK_QOS, BE, LS, LSE, LSR, SYSTEM
from koord.api.koordinator.slo import NetworkQOS, NodeSLOSpec, ResourceQOS
from koord.host import traffic_class
from koord.host.cgroup.knob import NET_CLS_CLASSID
from koord.koordlet.hooks.hook import NOTHING, HookPlan, HookValue, NodeRules, PodContext
from koord.values.int_or_string import IntOrString
from koord.values.quantity import Quantity, QuantityError


class ClassBandwidth(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The bandwidth that one class is guaranteed (request) and may use (limit), by direction; a limit of 0 is none."""

    ingress_request: int = 0
    ingress_limit: int = 0
    egress_request: int = 0
    egress_limit: int = 0


class NodeBandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """The node's bandwidth and what LS and BE pods may use of it. `problems` names values that count as 0."""

    total: int = 0
    ls: ClassBandwidth = ClassBandwidth()
    be: ClassBandwidth = ClassBandwidth()
    problems: tuple[str, ...] = ()


class PodBandwidth(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The limits of one pod; 0 is none, None is a limit that the annotation does not state."""

    ingress: int | None = 0
    egress: int | None = 0


def node_bandwidth(slo: NodeSLOSpec) -> NodeBandwidth:
    """Return the bandwidths of the node. A value that cannot be used counts as 0 and is a problem."""
    problems: list[str] = []
    system, qos = slo.system_strategy, slo.resource_qos_strategy
    total = 0 if system is None else _bits(system.total_network_bandwidth)
    if isinstance(total, str):
        problems.append(f"totalNetworkBandwidth {total}")
        total = 0
    ls = _class_bandwidth("lsClass", None if qos is None else qos.ls_class, total, problems)
    be = _class_bandwidth("beClass", None if qos is None else qos.be_class, total, problems)
    return NodeBandwidth(total=total, ls=ls, be=be, problems=tuple(problems))


def pod_bandwidth(pod: PodContext) -> PodBandwidth | MalformedAnnotation:
    """Return the limits of the pod's annotation; no annotation is no limit."""
    stated = qos_codecs.parse_network_qos(pod.annotations)
    if stated is None:
        return PodBandwidth()
    if isinstance(stated, MalformedAnnotation):
        return stated
    limits: list[int | None] = []
    for text in (stated.ingress_limit, stated.egress_limit):
        bits = _bits(text) if text else None
        if isinstance(bits, str):
            return MalformedAnnotation(A_NETWORK_QOS, bits)
        limits.append(bits)
    return PodBandwidth(ingress=limits[0], egress=limits[1])


def _class_bandwidth(name: str, block: ResourceQOS | None, total: int, problems: list[str]) -> ClassBandwidth:
    config = None if block is None else block.network_qos
    if config is None or not config.enable:
        return ClassBandwidth()
    found: dict[str, int] = {}
    for field in ClassBandwidth.__struct_fields__:
        amount = _share(getattr(config, field), total)
        if isinstance(amount, str):
            problems.append(f"{name}.networkQOS.{_wire_name(field)} {amount}")
            amount = 0
        found[field] = amount
    return ClassBandwidth(**found)


def _share(value: IntOrString | None, total: int) -> int | str:
    """Return the bits of a percentage of the total (an integer) or of a quantity (text), or why it is neither."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value * total // 100 if 0 <= value <= 100 else f"{value} is no percentage from 0 to 100"
    bits = _bits(value)
    if isinstance(bits, int) and bits > total:
        return f"{value} is more than the node's {total} bits per second"
    return bits


def _bits(value: str | float) -> int | str:
    try:
        bits = Quantity.parse(value).value()
    except QuantityError as error:
        return f"{value!r} is no quantity: {error}"
    return bits if bits >= 0 else f"{value} is below 0"


def _wire_name(field: str) -> str:
    return next(one.encode_name for one in msgspec.structs.fields(NetworkQOS) if one.name == field)


NAME = "tcPlugin"
FILES = (NET_CLS_CLASSID,)
SYSTEM_MINOR, LS_MINOR, BE_MINOR = traffic_class.DEFAULT_MINOR, 3, 4
_PRIORITY = {SYSTEM_MINOR: 1, LS_MINOR: 2, BE_MINOR: 3}
_MINOR_OF_CLASS = {SYSTEM: SYSTEM_MINOR, LSE: LS_MINOR, LSR: LS_MINOR, LS: LS_MINOR, BE: BE_MINOR}
_POD_MINORS = range(0x10, 0xFFFF)  # 0xffff names a root in the kernel


class _Share(msgspec.Struct, frozen=True, gc=False):
    request: int
    limit: int


class _Direction(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two directions, and what classes and the annotation say of it."""

    name: str
    ls: _Share
    be: _Share
    pod_limit: Callable[[PodBandwidth], int | None]


def decide_pod(pod: PodContext, rules: NodeRules) -> HookPlan:
    """Decide the class id of the pod's cgroup, and tell what of its annotation cannot be used."""
    if not is_enabled(rules):
        return NOTHING
    minor, problem = _MINOR_OF_CLASS.get(pod.qos), ""
    limits = pod_bandwidth(pod)
    if isinstance(limits, MalformedAnnotation):
        problem = str(limits)
    else:
        if limits.ingress and pod.host_network and minor is not None:
            problem = "ingressLimit is not enforced in the node's own network"
        minor = pod_minor(pod.uid) if limits.egress and minor is not None else minor
    if minor is None:
        return HookPlan(problem=problem)
    why = f"class {traffic_class.MAJOR}:{minor:x} of the device"
    value = HookValue(knob=NET_CLS_CLASSID, value=str(traffic_class.MAJOR << 16 | minor), why=why)
    return HookPlan(values=(value,), problem=problem)


def decide_node(rules: NodeRules, pods: Iterable[PodContext]) -> traffic_class.TrafficPlan | None:
    """Decide the classes and filters of the device; None before the first NodeSLO, when nothing is touched."""
    if rules.slo is None:
        return None
    if not is_enabled(rules):
        return traffic_class.TrafficPlan(enabled=False)
    node = node_bandwidth(rules.slo)
    problems = list(node.problems)
    listed = sorted(pods, key=lambda pod: (pod.created_s, pod.uid))
    egress = _Direction(
        name="egress",
        ls=_Share(node.ls.egress_request, node.ls.egress_limit),
        be=_Share(node.be.egress_request, node.be.egress_limit),
        pod_limit=lambda limits: limits.egress,
    )
    ingress = _Direction(
        name="ingress",
        ls=_Share(node.ls.ingress_request, node.ls.ingress_limit),
        be=_Share(node.be.ingress_request, node.be.ingress_limit),
        pod_limit=lambda limits: limits.ingress,
    )
    outgoing = _tree(node.total, egress, listed, problems)
    by_cgroup = any(
        pod.host_network and _class_of(pod, egress)[0] not in (None, traffic_class.DEFAULT_MINOR) for pod in listed
    )
    incoming = _tree(node.total, ingress, listed, problems) if _limits_anything(node.total, ingress, listed) else None
    return traffic_class.TrafficPlan(
        enabled=True,
        egress=msgspec.structs.replace(outgoing, by_cgroup=by_cgroup),
        ingress=incoming,
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


def _limits_anything(total: int, direction: _Direction, pods: Sequence[PodContext]) -> bool:
    shares = (direction.ls, direction.be)
    return any(share.request or 0 < share.limit < total for share in shares) or any(
        not pod.host_network and _class_of(pod, direction)[1] for pod in pods
    )


def _class_of(pod: PodContext, direction: _Direction) -> tuple[int | None, int]:
    """Return the class by the pod's QoS class, and the pod's own limit of this direction; 0 for none."""
    minor = _MINOR_OF_CLASS.get(pod.qos)
    limits = pod_bandwidth(pod)
    if minor is None or isinstance(limits, MalformedAnnotation):
        return minor, 0
    return minor, direction.pod_limit(limits) or 0


def _tree(
    total: int, direction: _Direction, pods: Sequence[PodContext], problems: list[str]
) -> traffic_class.TrafficTree:
    """Return the tree of one direction. `pods` are in the order of their age."""
    classes = _node_classes(total, direction, problems)
    filters: dict[str, traffic_class.AddressFilter] = {}
    taken: dict[int, str] = {}
    for pod in pods:
        minor, limit_bits = _class_of(pod, direction)
        if minor is None or (pod.host_network and direction.name == "ingress"):
            continue  # it has the default class, as the node's own traffic has
        if limit_bits:
            priority = _PRIORITY[minor]
            minor = _free_minor(pod, taken, problems)
            bits = max(limit_bits, traffic_class.LEAST_RATE_BITS)
            classes.append(traffic_class.TrafficClass(minor=minor, rate_bits=bits, ceil_bits=bits, priority=priority))
        address = "" if pod.host_network or minor == traffic_class.DEFAULT_MINOR else _address(pod.ip)
        if address:
            filters[address] = traffic_class.AddressFilter(address=address, minor=minor)
    return traffic_class.TrafficTree(classes=tuple(classes), filters=tuple(sorted(filters.values())))


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


def _node_classes(total: int, direction: _Direction, problems: list[str]) -> list[traffic_class.TrafficClass]:
    total = max(total, traffic_class.LEAST_RATE_BITS)
    rest = total - direction.ls.request - direction.be.request
    if rest < traffic_class.LEAST_RATE_BITS:
        problems.append(f"{direction.name}Request of lsClass and beClass leave nothing for the system")
    return [
        traffic_class.TrafficClass(minor=traffic_class.ROOT_MINOR, parent=0, rate_bits=total, ceil_bits=total),
        _class(SYSTEM_MINOR, _Share(rest, total), total),
        _class(LS_MINOR, direction.ls, total),
        _class(BE_MINOR, direction.be, total),
    ]


def _class(minor: int, share: _Share, total: int) -> traffic_class.TrafficClass:
    """Return a class. No limit is that of the node, and a limit below the request is the request."""
    rate = max(share.request, traffic_class.LEAST_RATE_BITS)
    ceil = max(share.limit or total, rate)
    return traffic_class.TrafficClass(minor=minor, rate_bits=rate, ceil_bits=ceil, priority=_PRIORITY[minor])


def _address(text: str) -> str:
    """Return an address in its usual notation; "" while the pod has none."""
    try:
        return str(ipaddress.ip_address(text)) if text else ""
    except ValueError:
        return ""
