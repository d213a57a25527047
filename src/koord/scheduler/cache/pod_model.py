"""Model the parts of a Pod that placement can depend on; nothing else is decoded, because fifty thousand are held.

Also normalises what is read differently from how it is written: deprecated resource names, and a scheduler chosen by a
label. A Reservation takes part as a reserve pod of the same form. Pods are transformed as informers deliver them:
everything in the scheduler sees what labels and annotations ask for. Each transform is behind a feature gate, and
nothing of it is written back. Reservations are not transformed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar, cast

import msgspec

from koord.api.annotations.pod_codecs import parse_replace_resources
from koord.api.koordinator.protocol import L_SCHEDULER_NAME
from koord.api.koordinator.resource_name import DEPRECATED_BATCH, DEPRECATED_DEVICES
from koord.api.koordinator.scheduling import Reservation
from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes import pod as api_pod
from koord.api.kubernetes.affinity import Affinity, Toleration, TopologySpreadConstraint
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.pod import (
    ContainerPort,
    PodCondition,
    PodResourceClaim,
    PodResourceClaimStatus,
    PodSchedulingGate,
    ResourceRequirements,
)
from koord.api.kubernetes.pod_resources import compute_qos_class
from koord.api.kubernetes.resource import Resource
from koord.api.kubernetes.volume import Volume
from koord.api.model import ResourceList, Submodel, convert
from koord.policy.qos import apply_default_priority, replace_in_list, replace_resources
from koord.scheduler.cache.reserve_pod import build_reserve_pod


class SchedulerContainer(Submodel, frozen=True, kw_only=True):
    name: str = ""
    image: str = ""
    ports: tuple[ContainerPort, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None


class SchedulerPodSpec(Submodel, frozen=True, kw_only=True):
    """Hold the spec fields that placement reads; pods of one template differ only in node and gates."""

    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    containers: tuple[SchedulerContainer, ...] = ()
    init_containers: tuple[SchedulerContainer, ...] = ()
    resources: ResourceRequirements | None = None
    overhead: ResourceList | None = None
    volumes: tuple[Volume, ...] = ()
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    host_network: bool = False
    termination_grace_period_seconds: int | None = None


class SchedulerContainerStatus(Submodel, frozen=True, kw_only=True):
    """Hold what a resize in progress has admitted and what runs now; nothing else of the status matters here."""

    name: str = ""
    allocated_resources: ResourceList | None = None
    resources: ResourceRequirements | None = None


class SchedulerPodStatus(Submodel, frozen=True, kw_only=True):
    phase: str = ""
    nominated_node_name: str = ""
    conditions: tuple[PodCondition, ...] = ()
    start_time: datetime | None = None
    container_statuses: tuple[SchedulerContainerStatus, ...] = ()
    init_container_statuses: tuple[SchedulerContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()


class Pod(Object, frozen=True, kw_only=True):
    spec: SchedulerPodSpec = SchedulerPodSpec()
    status: SchedulerPodStatus = SchedulerPodStatus()
    shape: Any = None  # not on the wire: put there by `Shapes.interned`, and alive as long as a pod has it


PODS: Resource[Pod] = builtin_kinds.PODS.with_model(Pod)


def is_terminal(pod: Pod) -> bool:
    """Return whether the pod has ended: it holds nothing, wherever it is."""
    return pod.status.phase in ("Succeeded", "Failed")


def deterministic_bytes(value: Any) -> bytes:
    """Encode a value so that equal values give equal bytes and equal specs can share what is derived from them."""
    return msgspec.msgpack.encode(value, order="deterministic")


V = TypeVar("V")

_DEPRECATED_NAMES = {**DEPRECATED_BATCH, **DEPRECATED_DEVICES}


def with_current_resource_names(amounts: Mapping[str, V]) -> Mapping[str, V]:
    """Return the amounts under current resource names; where both names are present the old one is left alone."""
    if _DEPRECATED_NAMES.keys().isdisjoint(amounts):
        return amounts
    return {
        _DEPRECATED_NAMES[name] if name in _DEPRECATED_NAMES and _DEPRECATED_NAMES[name] not in amounts else name: v
        for name, v in amounts.items()
    }


def normalised_spec(pod: Pod) -> SchedulerPodSpec:
    """Return the spec as the scheduler reads it; the very same object for nearly every pod."""
    spec = pod.spec
    labels = pod.metadata.labels
    chosen = labels.get(L_SCHEDULER_NAME) if labels else None
    if chosen and chosen != spec.scheduler_name:
        spec = msgspec.structs.replace(spec, scheduler_name=chosen)
    if (
        any(map(_uses_deprecated_names, spec.containers))
        or any(map(_uses_deprecated_names, spec.init_containers))
        or _has_deprecated_names(spec.overhead)
    ):
        spec = msgspec.structs.replace(
            spec,
            containers=tuple(map(_normalised_container, spec.containers)),
            init_containers=tuple(map(_normalised_container, spec.init_containers)),
            overhead=None if spec.overhead is None else dict(with_current_resource_names(spec.overhead)),
        )
    return spec


def _uses_deprecated_names(container: SchedulerContainer) -> bool:
    resources = container.resources
    return _has_deprecated_names(resources.requests) or _has_deprecated_names(resources.limits)


def _has_deprecated_names(amounts: Mapping[str, object] | None) -> bool:
    return amounts is not None and not _DEPRECATED_NAMES.keys().isdisjoint(amounts)


def _normalised_container(container: SchedulerContainer) -> SchedulerContainer:
    given = container.resources
    resources = ResourceRequirements(
        requests=dict(with_current_resource_names(given.requests)),
        limits=dict(with_current_resource_names(given.limits)),
        claims=given.claims,
    )
    return msgspec.structs.replace(container, resources=resources)


def reserve_pod_of(reservation: Reservation) -> Pod:
    """Return the reserve pod of a Reservation in the scheduler's pod model."""
    return convert(msgspec.to_builtins(build_reserve_pod(reservation)), Pod)


PodTransform = Callable[[Pod], Pod]


def set_default_priority(pod: Pod) -> Pod:
    """Give a pod without a priority the default of its priority class."""
    if pod.spec.priority:
        return pod
    # The slim spec has all that the class is computed from. The server's answer, status.qosClass, is the same.
    return apply_default_priority(pod, compute_qos_class(cast(api_pod.PodSpec, pod.spec)))


def replace_pod_resources(pod: Pod) -> Pod:
    """Replace resources as the annotation says, in the spec under current names and in what the kubelet reports.

    While a pod runs, the larger of spec and report counts: reported under its old name, a resource would count twice.
    """
    names = parse_replace_resources(pod.metadata.annotations)
    if not names:
        return pod
    replaced = replace_resources(msgspec.structs.replace(pod, spec=normalised_spec(pod)))
    status = msgspec.structs.replace(
        pod.status,
        container_statuses=tuple(_replace_in_status(one, names) for one in pod.status.container_statuses),
        init_container_statuses=tuple(_replace_in_status(one, names) for one in pod.status.init_container_statuses),
    )
    return msgspec.structs.replace(replaced, status=status)


def _replace_in_status(reported: SchedulerContainerStatus, names: Mapping[str, str]) -> SchedulerContainerStatus:
    allocated, running = reported.allocated_resources, reported.resources
    return msgspec.structs.replace(
        reported,
        allocated_resources=None if allocated is None else replace_in_list(allocated, names),
        resources=None
        if running is None
        else ResourceRequirements(
            requests=replace_in_list(running.requests, names),
            limits=replace_in_list(running.limits, names),
            claims=running.claims,
        ),
    )


def chain_transforms(transforms: tuple[PodTransform, ...]) -> PodTransform | None:
    """Return one transform that applies these in turn; None where there are none, so that pods are left alone."""
    if not transforms:
        return None

    def transform(pod: Pod) -> Pod:
        for each in transforms:
            pod = each(pod)
        return pod

    return transform
