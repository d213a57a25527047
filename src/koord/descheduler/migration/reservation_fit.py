"""The reservation that holds a pod's next place, built from the pod, for its successor, on any node but its own; and
whether the successor of a job's pod could take the reservation of the job, else nobody is evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from koord.api.annotations import reservation_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.protocol import DESCHEDULER_NAME, L_RESERVATION_ORDER
from koord.api.koordinator.scheduling import AVAILABLE, RESTRICTED, Reservation
from koord.api.kubernetes.affinity import NodeSelector
from koord.api.kubernetes.meta import OwnerReference
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import pod_requests, resource_amounts
from koord.descheduler.framework.snapshot import ClusterSnapshot, NodeFitChecker, placement_misfits
from koord.policy.node_match import NodeTerms, find_untolerated_taint
from koord.policy.reservation_owner import OwnerCondition
from koord.values import duration
from koord.values.selector import Selector, SelectorError

STATEFUL_SET = "StatefulSet"

CREATED_BY_LABEL = "app.kubernetes.io/created-by"
PlainObject = dict[str, Any]


def build_reservation(job: PlainObject, pod: PlainObject, now_ms: int, *, drop_claims: bool = False) -> PlainObject:
    """Build the reservation to create. `job` and `pod` are as the server has them, with every field."""
    options = job["spec"].get("reservationOptions") or {}
    given = options.get("template") or {}
    metadata: PlainObject = {**(given.get("metadata") or {})}
    spec: PlainObject = {**(given.get("spec") or {})}
    metadata.setdefault("name", job["metadata"]["uid"])
    labels = {**(metadata.get("labels") or {}), CREATED_BY_LABEL: DESCHEDULER_NAME, L_RESERVATION_ORDER: str(now_ms)}
    metadata["labels"] = labels
    if not spec.get("template"):
        spec["template"] = _pod_template(pod, drop_claims=drop_claims)
    if not spec.get("owners"):
        spec["owners"] = _owners(pod)
    spec["allocateOnce"] = True
    ttl = job["spec"].get("ttl")
    if not spec.get("ttl") and not spec.get("expires") and ttl:
        spec["ttl"] = duration.text(duration.parse(ttl))
    here = pod["spec"].get("nodeName", "")
    template = {**spec["template"], "spec": {**(spec["template"].get("spec") or {})}}
    template["spec"].pop("nodeName", None)
    if here:
        template["spec"]["affinity"] = _exclude_node(template["spec"].get("affinity") or {}, here)
    spec["template"] = template
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Reservation",
        "metadata": metadata,
        "spec": spec,
    }


def _pod_template(pod: PlainObject, *, drop_claims: bool) -> PlainObject:
    metadata = {key: value for key, value in pod["metadata"].items() if key != "managedFields"}
    spec = {**pod["spec"]}
    if drop_claims:
        spec["volumes"] = [
            v for v in spec.get("volumes") or () if "persistentVolumeClaim" not in v and "ephemeral" not in v
        ]
    return {"metadata": metadata, "spec": spec}


def _owners(pod: PlainObject) -> list[PlainObject]:
    """Return the owners of the reservation: the pod's controller; a pending pod is its own successor."""
    meta = pod["metadata"]
    if not pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase", "Pending") == "Pending":
        object_ref = {"kind": "Pod", "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}
        return [{"object": object_ref}]
    owner = next((o for o in meta.get("ownerReferences") or () if o.get("controller")), None)
    if owner is None:
        return [{"object": {"kind": "Pod", "namespace": meta["namespace"], "name": meta["name"]}}]
    return [{"controller": {**owner, "namespace": meta["namespace"]}}]


def _exclude_node(affinity: PlainObject, node: str) -> PlainObject:
    """Add a requirement to every node selector term that excludes the pod's node."""
    node_affinity = {**(affinity.get("nodeAffinity") or {})}
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    not_here = {"key": "metadata.name", "operator": "NotIn", "values": [node]}
    terms = (node_affinity.get(key) or {}).get("nodeSelectorTerms") or [{}]
    node_affinity[key] = {
        "nodeSelectorTerms": [{**term, "matchFields": [*(term.get("matchFields") or ()), not_here]} for term in terms]
    }
    return {**affinity, "nodeAffinity": node_affinity}


class _Successor(msgspec.Struct, frozen=True, kw_only=True):
    """The pod that is to own the reservation, as far as it is known before the eviction: of its identity only what it
    has in common with the pod that it replaces. A pod that has no node yet is its own successor.
    """

    uid: str
    namespace: str
    name: str
    labels: Mapping[str, str]
    owners: tuple[OwnerReference, ...]


def is_created_by_descheduler(reservation: Reservation) -> bool:
    return CREATED_BY_LABEL in reservation.metadata.labels


def reservation_misfit(
    pod: Pod, reservation: Reservation, snapshot: ClusterSnapshot, others: Iterable[Reservation]
) -> str | None:
    """Return why the successor of the pod could not take the reservation; None when it could.

    `snapshot` holds the node of the reservation with its pods, `others` are the reservations on that node. Where the
    scheduler placed a reservation of ours, it has looked at the node, and only the owners are asked about.
    """
    why = _owner_misfit(pod, reservation) or _affinity_misfit(pod, reservation, snapshot)
    if why is not None or is_created_by_descheduler(reservation) or not reservation.status.node_name:
        return why
    node = snapshot.nodes.get(reservation.status.node_name)
    if node is None:
        return f"its node {reservation.status.node_name} does not exist"
    return _node_misfit(pod, reservation, node, snapshot, others)


def _successor(pod: Pod) -> _Successor:
    meta, waits = pod.metadata, not pod.spec.node_name
    controller = next((owner for owner in meta.owner_references if owner.controller), None)
    keeps_name = waits or controller is None or controller.kind == STATEFUL_SET
    return _Successor(
        uid=meta.uid if waits else "",
        namespace=meta.namespace,
        name=meta.name if keeps_name else "",
        labels=meta.labels,
        owners=meta.owner_references,
    )


def _owner_misfit(pod: Pod, reservation: Reservation) -> str | None:
    successor, broken = _successor(pod), ""
    for owner in reservation.spec.owners:
        try:
            if OwnerCondition.from_spec(owner).matches(successor):
                return None
        except SelectorError as error:
            broken = f", and one of them is broken: {error}"
    return f"its owners do not select the pod{'' if not pod.spec.node_name else ' that will replace it'}{broken}"


def _affinity_misfit(pod: Pod, reservation: Reservation, snapshot: ClusterSnapshot) -> str | None:
    """Return why the pod's own demands on reservations exclude this one."""
    meta, spec = reservation.metadata, reservation.spec
    if meta.deletion_timestamp is not None:
        return "it is being deleted"
    if reservation_codecs.ignores_reservations(pod.metadata.labels):
        return "the pod ignores reservations"
    affinity = reservation_codecs.parse_reservation_affinity(pod.metadata.annotations)
    if isinstance(affinity, MalformedAnnotation):
        return f"the pod's reservation affinity cannot be read: {affinity}"
    if affinity is not None and affinity.name:
        return None if affinity.name == meta.name else f"the pod asks for reservation {affinity.name}"
    if spec.unschedulable:
        return "it is unschedulable"
    if affinity is None:
        return None
    node = snapshot.nodes.get(reservation.status.node_name)
    labels = {**(node.metadata.labels if node is not None else {}), **meta.labels}
    required = affinity.required_during_scheduling_ignored_during_execution
    terms = required.reservation_selector_terms if required is not None else None
    if find_untolerated_taint(affinity.tolerations, spec.taints) is not None:
        return "the pod does not tolerate its taints"
    if not Selector.from_labels(affinity.reservation_selector).matches(labels) or (
        terms is not None and not NodeTerms(NodeSelector(node_selector_terms=terms)).matches_object(meta.name, labels)
    ):
        return "the pod's reservation affinity does not select it"
    return None


def _node_misfit(
    pod: Pod, reservation: Reservation, node: Node, snapshot: ClusterSnapshot, others: Iterable[Reservation]
) -> str | None:
    reasons = placement_misfits(pod, node)
    if reasons:
        return f"its node {node.metadata.name} does not take the pod: {', '.join(reasons)}"
    fit_checker = NodeFitChecker(snapshot)
    free = dict(fit_checker.free(node))
    for other in others:
        if other.metadata.uid != reservation.metadata.uid:
            for name, amount in _unallocated(other).items():
                free[name] = free.get(name, 0) - max(amount, 0)
    requests, left = fit_checker.requests(pod), _unallocated(reservation)
    short = [name for name, amount in sorted(requests.items()) if amount > free.get(name, 0)]
    if not short and reservation.spec.allocate_policy == RESTRICTED:
        short = [n for n in _restricted_names(reservation, left) if requests.get(n, 0) > left[n]]
    return f"there is not enough {', '.join(short)} in it" if short else None


def _unallocated(reservation: Reservation) -> dict[str, int]:
    """Return what a reservation still holds; what is not placed, or has ended, holds nothing."""
    status, template = reservation.status, reservation.spec.template
    if status.phase != AVAILABLE:
        return {}
    held = resource_amounts(status.allocatable) or (pod_requests(template.spec) if template is not None else {})
    taken = resource_amounts(status.allocated)
    return {name: amount - taken.get(name, 0) for name, amount in held.items()}


def _restricted_names(reservation: Reservation, held: Mapping[str, int]) -> list[str]:
    options = reservation_codecs.parse_restricted_options(reservation.metadata.annotations)
    stated = options.resources if options is not None and not isinstance(options, MalformedAnnotation) else ()
    return sorted(name for name in held if name in stated) or sorted(held)
