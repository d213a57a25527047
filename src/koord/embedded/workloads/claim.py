"""The volume claims of a StatefulSet's pods: their names, owners and retention. Pure."""

from __future__ import annotations

from koord.api.apps import StatefulSet
from koord.api.core import Pod
from koord.api.meta import ObjectMeta
from koord.kube.verb import Plain


def claim_names(stateful_set: StatefulSet, ordinal: int) -> dict[str, str]:
    """Return the claim name for each template name."""
    name = stateful_set.metadata.name
    templates = stateful_set.spec.volume_claim_templates
    return {t["metadata"]["name"]: f"{t['metadata']['name']}-{name}-{ordinal}" for t in templates}


def claim_bodies(stateful_set: StatefulSet, ordinal: int) -> list[Plain]:
    names = claim_names(stateful_set, ordinal)
    labels = dict(stateful_set.spec.selector.match_labels) if stateful_set.spec.selector is not None else {}
    bodies = []
    for template in stateful_set.spec.volume_claim_templates:
        given = template.get("metadata") or {}
        meta: Plain = {
            "name": names[given["name"]],
            "namespace": stateful_set.metadata.namespace,
            "labels": {**(given.get("labels") or {}), **labels},
        }
        if given.get("annotations"):
            meta["annotations"] = given["annotations"]
        if _policy(stateful_set)[0]:
            meta["ownerReferences"] = [_set_reference(stateful_set)]
        bodies.append({"metadata": meta, "spec": template.get("spec") or {}})
    return bodies


def pod_volumes(stateful_set: StatefulSet, ordinal: int) -> list[Plain]:
    """Return the template's volumes, with those of claims in place of any of the same name."""
    claims = claim_names(stateful_set, ordinal)
    given = (stateful_set.spec.template.get("spec") or {}).get("volumes") or []
    kept = [volume for volume in given if volume.get("name") not in claims]
    made = [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim in claims.items()]
    return [*made, *kept]


def _policy(stateful_set: StatefulSet) -> tuple[bool, bool]:
    """Return whether claims are deleted with the StatefulSet, and with a pod that is scaled away."""
    policy = stateful_set.spec.persistent_volume_claim_retention_policy
    if policy is None:
        return False, False
    return policy.when_deleted == "Delete", policy.when_scaled == "Delete"


def _set_reference(stateful_set: StatefulSet) -> Plain:
    meta = stateful_set.metadata
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": meta.name, "uid": meta.uid, "controller": True}


def _pod_reference(pod: Pod) -> Plain:
    return {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}


def owners_patch(
    stateful_set: StatefulSet, pod: Pod | None, claim: ObjectMeta, *, condemned: bool
) -> list[Plain] | None:
    """Return the owner references that the retention policy wants; None when the claim has them already."""
    with_set, when_scaled = _policy(stateful_set)
    wanted: list[Plain] = []
    if condemned and when_scaled and pod is not None:
        wanted = [_pod_reference(pod)]
    elif with_set:
        wanted = [_set_reference(stateful_set)]
    ours = {stateful_set.metadata.uid} | ({pod.metadata.uid} if pod is not None else set())
    have = {ref.uid for ref in claim.owner_references if ref.uid in ours}
    # A reference to an earlier pod of this name is ours too: with it the claim would go the way of that pod.
    stale = [r for r in claim.owner_references if r.kind == "Pod" and pod is not None and r.name == pod.metadata.name]
    if have == {ref["uid"] for ref in wanted} and not (stale and not condemned):
        return None
    drop = ours | {ref.uid for ref in stale}
    others = [
        {"apiVersion": r.api_version, "kind": r.kind, "name": r.name, "uid": r.uid}
        | ({"controller": True} if r.controller else {})
        | ({"blockOwnerDeletion": True} if r.block_owner_deletion else {})
        for r in claim.owner_references
        if r.uid not in drop
    ]
    return [*others, *wanted]
