"""Read an operating pod: a real pod that acts as a reservation (label operating-mode)."""

from __future__ import annotations

from koord.api.annotations import reservation_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.scheduling import ALIGNED
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import pod_requests
from koord.scheduler.plugins.reservation.reservation_index import ReservationOwnerPod
from koord.scheduler.plugins.reservation.reservation_info import (
    ReservationInfo,
    compile_owners,
    restricted_resource_names,
)

RUNNING = "Running"


def reservation_info_of_pod(pod: Pod) -> ReservationInfo | None:
    """Read the pod as a reservation; None for an ordinary pod.

    It is always Aligned and for one owner, and available while it runs and is ready.
    """
    meta = pod.metadata
    if not reservation_codecs.is_in_reservation_mode(meta.labels):
        return None
    faults: list[str] = []
    owners = reservation_codecs.parse_reservation_owners(meta.annotations)
    if isinstance(owners, MalformedAnnotation):
        faults.append(str(owners))
        owners = None
    options = reservation_codecs.parse_restricted_options(meta.annotations)
    if isinstance(options, MalformedAnnotation):
        faults.append(str(options))
        options = None
    reserved = pod_requests(pod.spec, pod.status)
    deleting = meta.deletion_timestamp is not None
    return ReservationInfo(
        uid=meta.uid,
        name=meta.name,
        node=pod.spec.node_name,
        available=pod.status.phase == RUNNING and _is_ready(pod),
        labels=meta.labels,
        owners=compile_owners(owners or (), faults),
        reserved=reserved,
        policy=ALIGNED,
        restricted=restricted_resource_names(reserved, options.resources if options is not None else ()),
        allocate_once=True,
        unschedulable=deleting,
        terminating=deleting,
        parse_error="; ".join(faults),
        is_operating_pod=True,
    )


def current_owner_of(pod: Pod) -> ReservationOwnerPod | MalformedAnnotation | None:
    """Return the current owner by the annotation. There is only one, so it has all of the reservation."""
    owner = reservation_codecs.parse_reservation_current_owner(pod.metadata.annotations)
    if owner is None or isinstance(owner, MalformedAnnotation):
        return owner
    return ReservationOwnerPod(
        uid=owner.uid or f"{owner.namespace}/{owner.name}",
        reservation=pod.metadata.uid,
        node=pod.spec.node_name,
        requests=pod_requests(pod.spec, pod.status),
    )


def _is_ready(pod: Pod) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions)
