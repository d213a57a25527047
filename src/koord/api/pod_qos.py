"""Kubernetes' own quality-of-service class of a pod. Koordinator's QoS classes are another thing and live elsewhere."""

from __future__ import annotations

from typing import Literal, TypeAlias

from koord.api.part import ResourceList
from koord.api.pod import Pod, PodSpec
from koord.values import resources as vector
from koord.values.quantity import Quantity

QosClass: TypeAlias = Literal["Guaranteed", "Burstable", "BestEffort"]

# Only these decide the class; huge pages, storage and devices do not.
_COMPUTE = ("cpu", "memory")


def pod_qos(pod: Pod) -> str:
    """Return the class that the API server recorded when the pod was created, which a resize cannot change."""
    return pod.status.qos_class or qos_class(pod.spec)


def qos_class(spec: PodSpec) -> QosClass:
    """Compute Kubernetes' QoS class: Guaranteed needs limits for cpu and memory everywhere and requests equal to
    them in sum.

    Once a pod states amounts of its own, its containers' are ignored, even where they differ. Koordinator's QoS
    classes are another thing and live elsewhere.
    """
    if spec.resources is not None:
        levels = [spec.resources]
        # Without any pod-level limit the comparison of sums below already denies Guaranteed.
        limited = not spec.resources.limits or _positive(spec.resources.limits).keys() == set(_COMPUTE)
    else:
        levels = [c.resources for c in (*spec.containers, *spec.init_containers)]
        limited = all(_positive(level.limits).keys() == set(_COMPUTE) for level in levels)
    requests = _sum([_positive(level.requests) for level in levels])
    limits = _sum([_positive(level.limits) for level in levels])
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if limited and requests == limits else "Burstable"


def _positive(listed: ResourceList) -> dict[str, Quantity]:
    parsed = vector.parse({name: listed[name] for name in _COMPUTE if name in listed})
    return {name: amount for name, amount in parsed.items() if amount.sign() > 0}


def _sum(parts: list[dict[str, Quantity]]) -> dict[str, Quantity]:
    total: dict[str, Quantity] = {}
    for part in parts:
        total = vector.add(total, part)
    return total
