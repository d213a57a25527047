"""This module computes what a pod requests, as one number per resource, and its Kubernetes QoS class, for all
programs.

It follows Kubernetes 1.35: containers add up; an init container needs its own share on top of the sidecars
that started before it, and the pod needs the largest such moment; pod-level amounts replace the sum for
cpu, memory and huge pages; overhead comes on top; while a container is being resized the larger of
requested, admitted and actual counts. Claims of dynamic resources are not amounts and are left to the
allocator.

Amounts are milli-units for cpu and units for everything else. Sums are exact and rounded up once, at the
end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Literal, TypeAlias

from koord.api.kubernetes.pod import Container, ContainerStatus, Pod, PodSpec, PodStatus, ResourceRequirements
from koord.api.model import QuantityText, ResourceList
from koord.values import resources as vector
from koord.values.names import qualified_name
from koord.values.quantity import Quantity
from koord.values.resources import CPU, MEMORY

HUGE_PAGES_PREFIX = "hugepages-"

# A container that names no request is scored as if it asked for these, so that it never looks free.
DEFAULT_CPU_REQUEST = "100m"
DEFAULT_MEMORY_REQUEST = "200Mi"

_Amounts: TypeAlias = dict[str, Quantity]
_Listing: TypeAlias = Callable[[ResourceRequirements], ResourceList]


@lru_cache(maxsize=4096)
def is_extended_resource(name: str) -> bool:
    """Return whether a resource is outside of Kubernetes' own domain, and so counted in whole numbers by its owner."""
    if "/" not in name or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    return not qualified_name(f"requests.{name}")


def pod_requests(spec: PodSpec, status: PodStatus | None = None) -> dict[str, int]:
    """Return a pod's requests. A resize under way counts with a placed pod's status, else the spec does."""
    return vector.to_units(_requests(spec, status, {}))


def pod_limits(spec: PodSpec, status: PodStatus | None = None) -> dict[str, int]:
    """Return a pod's limits. Resources without a limit are absent; overhead only widens limits that exist."""
    limits = _aggregate(spec, status, _limits_of, {})
    if spec.resources is not None:
        limits |= _pod_level(spec.resources.limits)
    overhead = vector.parse(spec.overhead or {})
    widened = {name: amount for name, amount in overhead.items() if name in limits and not limits[name].is_zero()}
    return vector.to_units(vector.add(limits, widened))


def nonzero_requests(spec: PodSpec, status: PodStatus | None = None) -> dict[str, int]:
    """Return requests for scoring: pod_requests with the default cpu and memory for each container that names
    none.

    A pod that states its own amounts is believed; it gets a default only for what no level mentions.
    """
    requests = _requests(spec, status, {})
    defaults = vector.parse({CPU: DEFAULT_CPU_REQUEST, MEMORY: DEFAULT_MEMORY_REQUEST})
    if spec.resources is not None and _pod_level(spec.resources.requests):
        defaults = {name: amount for name, amount in defaults.items() if name not in requests}
    return vector.to_units(_requests(spec, status, defaults) if defaults else requests)


def resource_amounts(listed: Mapping[str, QuantityText]) -> dict[str, int]:
    """Convert any resource list of the API (a node's allocatable, a quota's hard) to the units used here."""
    return {name: vector.parse_units(name, amount) for name, amount in listed.items()}


def is_pod_level(name: str) -> bool:
    """Return whether a resource may be stated for the pod as a whole."""
    return name in (CPU, MEMORY) or name.startswith(HUGE_PAGES_PREFIX)


def _requests(spec: PodSpec, status: PodStatus | None, defaults: _Amounts) -> _Amounts:
    requests = _aggregate(spec, status, _requests_of, defaults)
    if spec.resources is not None:
        requests |= _pod_level(spec.resources.requests)
    return vector.add(requests, vector.parse(spec.overhead)) if spec.overhead else requests


def _aggregate(spec: PodSpec, status: PodStatus | None, listing: _Listing, defaults: _Amounts) -> _Amounts:
    reported = _status_by_container(status)
    total: _Amounts = {}
    for container in spec.containers:
        asked = _effective_container_amounts(container, reported.get(container.name), status, listing, defaults)
        total = vector.add(total, asked)
    sidecars: _Amounts = {}
    peak: _Amounts = {}
    for container in spec.init_containers:
        if container.restart_policy == "Always":  # it stays, so it counts beside the containers too
            asked = _effective_container_amounts(container, reported.get(container.name), status, listing, defaults)
            total = vector.add(total, asked)
            sidecars = vector.add(sidecars, asked)
            peak = vector.maximum(peak, sidecars)
        else:  # it is over before anything could resize it
            asked = _effective_container_amounts(container, None, status, listing, defaults)
            peak = vector.maximum(peak, vector.add(sidecars, asked))
    return vector.maximum(total, peak) if peak else total


def _status_by_container(status: PodStatus | None) -> dict[str, ContainerStatus]:
    if status is None:
        return {}
    return {seen.name: seen for seen in (*status.container_statuses, *status.init_container_statuses)}


def _effective_container_amounts(
    container: Container, seen: ContainerStatus | None, status: PodStatus | None, listing: _Listing, defaults: _Amounts
) -> _Amounts:
    """Return what one container counts for, a resize under way included."""
    counted = vector.parse(listing(container.resources))
    if seen is not None and seen.resources is not None and status is not None:
        if _resize_infeasible(status):  # the node refused, so what was asked will never run
            counted = {}
        counted = vector.maximum(counted, vector.parse(listing(seen.resources)))
        if listing is _requests_of and seen.allocated_resources:
            counted = vector.maximum(counted, vector.parse(seen.allocated_resources))
    return defaults | counted if defaults else counted


def _resize_infeasible(status: PodStatus) -> bool:
    reasons = (c.reason for c in status.conditions if c.type == "PodResizePending")
    return next(reasons, "") == "Infeasible"


def _requests_of(resources: ResourceRequirements) -> ResourceList:
    return resources.requests


def _limits_of(resources: ResourceRequirements) -> ResourceList:
    return resources.limits


def _pod_level(listed: ResourceList) -> _Amounts:
    return vector.parse({name: text for name, text in listed.items() if is_pod_level(name)})


KubernetesQosClass: TypeAlias = Literal["Guaranteed", "Burstable", "BestEffort"]

# Only these decide the class; huge pages, storage and devices do not.
_QOS_RESOURCES = ("cpu", "memory")


def recorded_qos_class(pod: Pod) -> str:
    """Return the class that the API server recorded when the pod was created, which a resize cannot change."""
    return pod.status.qos_class or compute_qos_class(pod.spec)


def compute_qos_class(spec: PodSpec) -> KubernetesQosClass:
    """Compute Kubernetes' QoS class: Guaranteed needs limits for cpu and memory everywhere and requests equal to
    them in sum.

    Once a pod states amounts of its own, its containers' are ignored, even where they differ. Koordinator's QoS
    classes are another thing and live elsewhere.
    """
    if spec.resources is not None:
        levels = [spec.resources]
        # Without any pod-level limit the comparison of sums below already denies Guaranteed.
        limited = not spec.resources.limits or _positive(spec.resources.limits).keys() == set(_QOS_RESOURCES)
    else:
        levels = [c.resources for c in (*spec.containers, *spec.init_containers)]
        limited = all(_positive(level.limits).keys() == set(_QOS_RESOURCES) for level in levels)
    requests = vector.total(_positive(level.requests) for level in levels)
    limits = vector.total(_positive(level.limits) for level in levels)
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if limited and requests == limits else "Burstable"


def _positive(listed: ResourceList) -> dict[str, Quantity]:
    parsed = vector.parse({name: listed[name] for name in _QOS_RESOURCES if name in listed})
    return {name: amount for name, amount in parsed.items() if amount.sign() > 0}
