"""GangManager keeps the gangs of all profiles and the scheduling round that is under way.

It follows the watches of pods, PodGroups and Reservations, and activates a member when its group can
proceed.
"""

from __future__ import annotations

from koord.api.annotations.gang import is_from_pod_group
from koord.api.annotations.network_topology import parse_index
from koord.policy.gang.declaration import Member, gang_of, stated_by_pod
from koord.scheduler.state.wire import Pod, is_terminal


def member_of(pod: Pod) -> Member | None:
    """Return the gang member that the pod is; None for a pod that is in no gang."""
    meta = pod.metadata
    labels, annotations = meta.labels or {}, meta.annotations or {}
    gang = gang_of(meta.namespace, labels, annotations)
    if gang is None:
        return None
    labelled = is_from_pod_group(labels)
    index = parse_index(annotations)
    return Member(
        uid=meta.uid,
        key=f"{meta.namespace}/{meta.name}",
        gang=gang,
        labelled=labelled,
        stated=None if labelled else stated_by_pod(gang, labels, annotations),
        created=meta.creation_timestamp.timestamp() if meta.creation_timestamp is not None else 0.0,
        node=pod.spec.node_name,
        free=not pod.spec.scheduling_gates and meta.deletion_timestamp is None,
        ended=is_terminal(pod),
        index=index if isinstance(index, int) else None,
    )
