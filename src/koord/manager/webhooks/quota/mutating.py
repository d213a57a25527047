"""What a new ElasticQuota is given: a parent, the tree of that parent, and a weight for each resource of its max."""

from __future__ import annotations

from typing import Any

from koord.api.admission import AdmissionRequest
from koord.api.annotations import quota_resources
from koord.api.annotations.codec import Malformed
from koord.api.protocol import A_QUOTA_SHARED_WEIGHT, L_QUOTA_PARENT, L_QUOTA_TREE_ID, ROOT_QUOTA
from koord.api.sigs_scheduling import ElasticQuota
from koord.manager.webhooks.quota.info import QuotaInfo
from koord.manager.webhooks.quota.topology import Topology
from koord.manager.webhooks.quota.validating import Unreadable, read
from koord.manager.webhooks.verdict import Allowed, Denied, Verdict
from koord.values import resources as vector


def mutate(request: AdmissionRequest, tree: Topology) -> Verdict:
    """Default a new ElasticQuota: a parent, the tree of that parent, and a weight for each resource of its max."""
    if request.operation != "CREATE" or request.sub_resource:
        return Allowed()
    found = read(request.object, request)
    if isinstance(found, Unreadable):
        return Denied(400, found.why)
    quota, info = found
    if info.name == ROOT_QUOTA:
        return Allowed()
    labels, annotations = dict(quota.metadata.labels), dict(quota.metadata.annotations)
    if not labels.get(L_QUOTA_PARENT):
        labels[L_QUOTA_PARENT] = ROOT_QUOTA
    if not info.tree_id and info.parent != ROOT_QUOTA:
        parent = tree.get(info.parent)
        if parent is None:
            return Denied(400, f"fill quota {info.name} failed, parent not exist")
        if parent.tree_id:
            labels[L_QUOTA_TREE_ID] = parent.tree_id
    weights = _weights(quota, info, request.object or {})
    if isinstance(weights, Malformed):
        return Denied(400, f"fillDefaultQuotaInfo unmarshal sharedWeight failed:{weights.reason}")
    annotations[A_QUOTA_SHARED_WEIGHT] = weights
    if labels == quota.metadata.labels and annotations == quota.metadata.annotations:
        return Allowed()
    return Allowed(_with_metadata(request.object or {}, labels=labels, annotations=annotations))


def _weights(quota: ElasticQuota, info: QuotaInfo, plain: dict[str, Any]) -> str | Malformed:
    """Return the annotation's text; it stays as it is when it names exactly the resources of max."""
    text = quota.metadata.annotations.get(A_QUOTA_SHARED_WEIGHT, "")
    if not text:
        # A quota without max gets the text that Go writes for a map that is not there.
        spec = plain.get("spec") or {}
        return quota_resources.dump(vector.to_wire(info.max)) if spec.get("max") is not None else "null"
    stated = quota_resources.parse(quota.metadata.annotations, A_QUOTA_SHARED_WEIGHT)
    if isinstance(stated, Malformed):
        return stated
    weights = vector.parse(stated or {})
    if weights.keys() == info.max.keys():
        return text
    return quota_resources.dump(vector.to_wire({key: weights.get(key, most) for key, most in info.max.items()}))


def _with_metadata(plain: dict[str, Any], **parts: dict[str, str]) -> dict[str, Any]:
    return {**plain, "metadata": {**(plain.get("metadata") or {}), **parts}}
