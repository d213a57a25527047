"""Build the reserve pod that represents a Reservation in scheduling and on its node; no API server ever sees it."""

from __future__ import annotations

import msgspec

from koord.api.annotations import pod_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator import protocol
from koord.api.koordinator.scheduling import AVAILABLE, FAILED, SUCCEEDED, Reservation
from koord.api.kubernetes.meta import ObjectMeta
from koord.api.kubernetes.pod import Container, Pod, PodSpec, PodStatus, PodTemplateSpec, ResourceRequirements
from koord.api.kubernetes.pod_resources import pod_requests, resource_amounts
from koord.values.resources import materialise, to_wire

MAX_PRIORITY = 2**31 - 1
DEFAULT_SCHEDULER = "default-scheduler"
DEFAULT_NAMESPACE = "default"
FAKE_CONTAINER = "__internal_fake_container__"


def build_reserve_pod(reservation: Reservation) -> Pod:
    """Build the reserve pod, named by the Reservation's uid.

    Its node is the one that the Reservation has; the one that the template names is only requested, in an annotation.
    """
    meta, spec, status = reservation.metadata, reservation.spec, reservation.status
    template = spec.template or PodTemplateSpec()
    annotations = {
        **template.metadata.annotations,
        **meta.annotations,
        protocol.A_RESERVE_POD: protocol.TRUE,
        protocol.A_RESERVATION_NAME: meta.name,
    }
    if spec.pre_allocation:
        annotations[protocol.A_IS_PRE_ALLOCATION] = protocol.TRUE
    if template.spec.node_name:
        annotations[protocol.A_RESERVATION_NODE] = template.spec.node_name
    return Pod(
        api_version="v1",
        kind="Pod",
        metadata=ObjectMeta(
            name=meta.uid,
            uid=meta.uid,
            namespace=template.metadata.namespace or DEFAULT_NAMESPACE,
            resource_version=meta.resource_version,
            creation_timestamp=meta.creation_timestamp,
            deletion_timestamp=meta.deletion_timestamp,
            labels={**template.metadata.labels, **meta.labels},
            annotations=annotations,
            owner_references=template.metadata.owner_references,
        ),
        spec=msgspec.structs.replace(
            _spec_with_allocatable(reservation, template.spec),
            node_name=status.node_name,
            priority=_priority(reservation, template.spec),
            scheduler_name=template.spec.scheduler_name or DEFAULT_SCHEDULER,
        ),
        status=PodStatus(phase=status.phase if status.phase in (SUCCEEDED, FAILED) else ""),
    )


def _priority(reservation: Reservation, spec: PodSpec) -> int:
    """Return the priority. An unreadable label counts as none: the reservation then yields to nobody."""
    if spec.priority is not None:
        return spec.priority
    stated = pod_codecs.parse_sub_priority(reservation.metadata.labels)
    return MAX_PRIORITY if stated is None or isinstance(stated, MalformedAnnotation) else stated


def _spec_with_allocatable(reservation: Reservation, spec: PodSpec) -> PodSpec:
    """Return a spec that requests what the reservation holds rather than what was requested, once it is Available."""
    if reservation.status.phase != AVAILABLE:
        return spec
    asked, holds = pod_requests(spec), resource_amounts(reservation.status.allocatable)
    if asked == holds:
        return spec
    listed = to_wire(materialise({**asked, **holds}))
    empty = ResourceRequirements()
    return msgspec.structs.replace(
        spec,
        containers=(
            *(msgspec.structs.replace(container, resources=empty) for container in spec.containers),
            Container(name=FAKE_CONTAINER, resources=ResourceRequirements(requests=dict(listed), limits=dict(listed))),
        ),
        init_containers=tuple(msgspec.structs.replace(c, resources=empty) for c in spec.init_containers),
        resources=None,
        overhead=None,
    )
