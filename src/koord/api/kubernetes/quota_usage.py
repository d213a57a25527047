"""This module says what an object uses of a ResourceQuota, and whether a quota's scopes select the object.

It follows Kubernetes 1.35: every name in a quota's `hard` belongs to one kind of objects; pods that ended count as
objects only; scopes are properties of pods, but for VolumeAttributesClass, which is one of claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from koord.api.kubernetes.core_v1 import ResourceQuotaSpec, ScopedResourceSelectorRequirement
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import (
    HUGE_PAGES_PREFIX,
    compute_qos_class,
    is_extended_resource,
    pod_limits,
    pod_requests,
)
from koord.values.quantity import Format, Quantity
from koord.values.resources import CPU

Obj = Mapping[str, Any]
Usage = dict[str, Quantity]

PODS = "pods"
SERVICES = "services"
CLAIMS = "persistentvolumeclaims"
COUNT_PREFIX = "count/"
REQUESTS_PREFIX = "requests."
LIMITS_PREFIX = "limits."
RESOURCE_CLAIMS = "resourceclaims.resource.k8s.io"
STORAGE_CLASS_SUFFIX = ".storageclass.storage.k8s.io/"
DEVICE_CLASS_SUFFIX = ".deviceclass.resource.k8s.io/devices"
# What a request for all devices is charged: the most that one claim can be allocated.
_ALL_DEVICES = 32
_BETA_STORAGE_CLASS = "volume.beta.kubernetes.io/storage-class"
_ONE = Quantity.from_value(1)
_COMPUTE = ("cpu", "memory", "ephemeral-storage")
# What every container must state where a quota limits it; an amount that nobody states cannot be counted.
_STATED = ("cpu", "memory")
# Kinds that can be named without `count/`.
_COUNTED_BY_NAME = ("configmaps", "secrets", "replicationcontrollers", "resourcequotas", PODS, SERVICES, CLAIMS)


def counted_kind(name: str) -> str | None:
    """Return the kind, `plural` or `plural.group`, that a resource of a quota counts; None for an unknown one."""
    if name.startswith(COUNT_PREFIX):
        return name.removeprefix(COUNT_PREFIX)
    if name in _COUNTED_BY_NAME:
        return name
    if name in ("services.nodeports", "services.loadbalancers"):
        return SERVICES
    if name == "requests.storage" or STORAGE_CLASS_SUFFIX in name:
        return CLAIMS
    if name.endswith(DEVICE_CLASS_SUFFIX):
        return RESOURCE_CLAIMS
    plain = name.removeprefix(REQUESTS_PREFIX)
    if plain in _COMPUTE or name.removeprefix(LIMITS_PREFIX) in _COMPUTE or plain.startswith(HUGE_PAGES_PREFIX):
        return PODS
    return PODS if plain != name and is_extended_resource(plain) else None


# -- usage


def pod_usage(pod: Pod, now: datetime) -> Usage:
    usage: Usage = {"count/pods": _ONE}
    if not _occupies(pod, now):
        return usage
    usage[PODS] = _ONE
    for name, amount in pod_requests(pod.spec, pod.status).items():
        quantity = _quantity(name, amount)
        if name in _COMPUTE or name.startswith(HUGE_PAGES_PREFIX):
            usage[name] = usage[REQUESTS_PREFIX + name] = quantity
        elif is_extended_resource(name):
            usage[REQUESTS_PREFIX + name] = quantity
    for name, amount in pod_limits(pod.spec, pod.status).items():
        if name in _COMPUTE:
            usage[LIMITS_PREFIX + name] = _quantity(name, amount)
    return usage


def _occupies(pod: Pod, now: datetime) -> bool:
    """Return whether the pod holds resources: it has not ended, and its node has not failed to delete it in time."""
    meta = pod.metadata
    if pod.status.phase in ("Succeeded", "Failed"):
        return False
    if meta.deletion_timestamp is None or meta.deletion_grace_period_seconds is None:
        return True
    return now <= meta.deletion_timestamp + timedelta(seconds=meta.deletion_grace_period_seconds)


def _quantity(name: str, amount: int) -> Quantity:
    if name == CPU:
        return Quantity.from_milli(amount)
    return Quantity.from_value(amount, Format.DECIMAL_SI if "/" in name else Format.BINARY_SI)


def service_usage(service: Obj) -> Usage:
    spec = service.get("spec") or {}
    kind, ports = spec.get("type"), spec.get("ports") or ()
    node_ports = 0
    if kind == "NodePort" or (kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is not False):
        node_ports = len(ports)
    elif kind == "LoadBalancer":
        node_ports = sum(1 for port in ports if port.get("nodePort"))
    return {
        SERVICES: _ONE,
        "count/services": _ONE,
        "services.nodeports": Quantity.from_value(node_ports),
        "services.loadbalancers": Quantity.from_value(1 if kind == "LoadBalancer" else 0),
    }


def claim_usage(claim: Obj) -> Usage:
    spec = claim.get("spec") or {}
    usage = {CLAIMS: _ONE, "count/persistentvolumeclaims": _ONE}
    stated = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    if stated is not None:
        usage["requests.storage"] = Quantity.parse(stated)
    notes = (claim.get("metadata") or {}).get("annotations") or {}
    storage_class = notes.get(_BETA_STORAGE_CLASS) or spec.get("storageClassName")
    if storage_class:
        for name in (CLAIMS, "requests.storage"):
            if name in usage:
                usage[f"{storage_class}{STORAGE_CLASS_SUFFIX}{name}"] = usage[name]
    return usage


def device_claim_usage(claim: Obj) -> Usage:
    """Return the usage of a ResourceClaim: of each class the devices that it asks for, of alternatives the most."""
    devices: dict[str, int] = {}
    for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
        exact = request.get("exactly")
        most: dict[str, int] = {}
        for wanted in [*([exact] if exact is not None else []), *(request.get("firstAvailable") or ())]:
            count = _ALL_DEVICES if wanted.get("allocationMode") == "All" else int(wanted.get("count") or 1)
            name = wanted.get("deviceClassName", "")
            most[name] = max(most.get(name, 0), count)
        for name, count in most.items():
            devices[name] = devices.get(name, 0) + count
    counted = {f"{name}{DEVICE_CLASS_SUFFIX}": Quantity.from_value(count) for name, count in devices.items() if name}
    return {f"{COUNT_PREFIX}{RESOURCE_CLAIMS}": _ONE, **counted}


def object_count(kind: str) -> Usage:
    """Return the usage of an object that is counted and nothing more."""
    return {f"{COUNT_PREFIX}{kind}": _ONE, **({kind: _ONE} if kind in _COUNTED_BY_NAME else {})}


_USAGE_OF_KIND: Mapping[str, Callable[[Obj], Usage]] = {
    SERVICES: service_usage,
    CLAIMS: claim_usage,
    RESOURCE_CLAIMS: device_claim_usage,
}


def object_usage(kind: str, obj: Obj) -> Usage:
    """Return the usage of an object of any kind but pods, whose usage depends on the time."""
    measure = _USAGE_OF_KIND.get(kind)
    return measure(obj) if measure is not None else object_count(kind)


# -- scopes


def quota_scopes(spec: ResourceQuotaSpec) -> tuple[ScopedResourceSelectorRequirement, ...]:
    plain = tuple(ScopedResourceSelectorRequirement(scope_name=name, operator="Exists") for name in spec.scopes)
    return plain + (spec.scope_selector.match_expressions if spec.scope_selector is not None else ())


def selects_pod(spec: ResourceQuotaSpec, pod: Pod) -> bool:
    return all(_pod_in_scope(scope, pod) for scope in quota_scopes(spec))


def selects_object(spec: ResourceQuotaSpec, kind: str, obj: Obj) -> bool:
    """Return whether a quota counts an object that is no pod: one with scopes counts claims by their class alone."""
    scopes = quota_scopes(spec)
    if not scopes:
        return True
    if kind != CLAIMS or any(scope.scope_name != "VolumeAttributesClass" for scope in scopes):
        return False
    chosen = (obj.get("spec") or {}).get("volumeAttributesClassName") or ""
    return all(_value_in_scope(scope, chosen) for scope in scopes)


def _pod_in_scope(scope: ScopedResourceSelectorRequirement, pod: Pod) -> bool:
    match scope.scope_name:
        case "Terminating":
            return pod.spec.active_deadline_seconds is not None
        case "NotTerminating":
            return pod.spec.active_deadline_seconds is None
        case "BestEffort":
            return compute_qos_class(pod.spec) == "BestEffort"
        case "NotBestEffort":
            return compute_qos_class(pod.spec) != "BestEffort"
        case "PriorityClass":
            return _value_in_scope(scope, pod.spec.priority_class_name)
        case "CrossNamespacePodAffinity":
            return _has_cross_namespace_affinity(pod)
    return False


def _value_in_scope(scope: ScopedResourceSelectorRequirement, value: str) -> bool:
    match scope.operator:
        case "Exists":
            return bool(value)
        case "DoesNotExist":
            return not value
        case "In":
            return value in scope.values
        case "NotIn":
            return value not in scope.values
    return False


def _has_cross_namespace_affinity(pod: Pod) -> bool:
    affinity = pod.spec.affinity
    if affinity is None:
        return False
    for rules in (affinity.pod_affinity, affinity.pod_anti_affinity):
        if rules is None:
            continue
        preferred = (
            weighted.pod_affinity_term for weighted in rules.preferred_during_scheduling_ignored_during_execution
        )
        for term in (*rules.required_during_scheduling_ignored_during_execution, *preferred):
            if term.namespaces or term.namespace_selector is not None:
                return True
    return False


# -- what a pod must state


def unstated_resources(pod: Pod, hard: Iterable[str]) -> dict[str, list[str]]:
    """Return the limited amounts of cpu and memory that containers leave out, with the names of those containers."""
    missing: dict[str, list[str]] = {}
    for name in sorted(hard):
        plain = name.removeprefix(REQUESTS_PREFIX).removeprefix(LIMITS_PREFIX)
        if plain not in _STATED:
            continue
        wants_limit = name.startswith(LIMITS_PREFIX)
        whole = pod.spec.resources
        if whole is not None and plain in (whole.limits if wants_limit else whole.requests):
            continue
        for container in (*pod.spec.containers, *pod.spec.init_containers):
            stated = container.resources.limits if wants_limit else container.resources.requests
            if plain not in stated:
                missing.setdefault(name, []).append(container.name)
    return missing
