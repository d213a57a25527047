"""Bandwidths of the network's QoS classes and of pods, in bits per second, from the NodeSLO and annotations."""

from __future__ import annotations

import msgspec

from koord.api.annotations import qos_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.protocol import A_NETWORK_QOS
from koord.api.koordinator.slo import NetworkQOS, NodeSLOSpec, ResourceQOS
from koord.koordlet.hooks.hook import PodContext
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
