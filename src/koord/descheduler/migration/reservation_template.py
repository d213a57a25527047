"""The reservation that holds a pod's next place: built from the pod, for its successor, on any node but its own."""

from __future__ import annotations

from typing import Any

from koord.api.koordinator.protocol import DESCHEDULER_NAME, L_RESERVATION_ORDER
from koord.values import duration

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
