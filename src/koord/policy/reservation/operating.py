"""Read an operating pod: a real pod that acts as a reservation (label operating-mode)."""

from __future__ import annotations

from koord.api.annotations import operating_pod, reservation_options
from koord.api.annotations.codec import Malformed
from koord.api.koord_scheduling import ALIGNED
from koord.api.pod import Pod
from koord.api.pod_resources import pod_requests
from koord.policy.reservation.holding import Holding, compiled, restricted_names
from koord.policy.reservation.register import Occupant

RUNNING = "Running"


def holding_of(pod: Pod) -> Holding | None:
    """Read the pod as a reservation; None for an ordinary pod.

    It is always Aligned and for one owner, and available while it runs and is ready.
    """
    meta = pod.metadata
    if not operating_pod.is_reservation(meta.labels):
        return None
    faults: list[str] = []
    owners = operating_pod.parse_owners(meta.annotations)
    if isinstance(owners, Malformed):
        faults.append(str(owners))
        owners = None
    options = reservation_options.parse_restricted(meta.annotations)
    if isinstance(options, Malformed):
        faults.append(str(options))
        options = None
    reserved = pod_requests(pod.spec, pod.status)
    deleting = meta.deletion_timestamp is not None
    return Holding(
        uid=meta.uid,
        name=meta.name,
        node=pod.spec.node_name,
        available=pod.status.phase == RUNNING and _is_ready(pod),
        labels=meta.labels,
        owners=compiled(owners or (), faults),
        reserved=reserved,
        policy=ALIGNED,
        restricted=restricted_names(reserved, options.resources if options is not None else ()),
        once=True,
        unschedulable=deleting,
        terminating=deleting,
        fault="; ".join(faults),
        is_pod=True,
    )


def occupant_of(pod: Pod) -> Occupant | Malformed | None:
    """Return the current owner by the annotation. There is only one, so it has all of the reservation."""
    owner = operating_pod.parse_current_owner(pod.metadata.annotations)
    if owner is None or isinstance(owner, Malformed):
        return owner
    return Occupant(
        uid=owner.uid or f"{owner.namespace}/{owner.name}",
        reservation=pod.metadata.uid,
        node=pod.spec.node_name,
        requests=pod_requests(pod.spec, pod.status),
    )


def _is_ready(pod: Pod) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions)
