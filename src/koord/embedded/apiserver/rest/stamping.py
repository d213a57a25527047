"""ObjectMeta: the fields that the server owns, which are set on create and restored on update, its
validation, and deep copies of objects.

Bodies and stored objects are shared: whoever wants to change one copies it first.
"""

from __future__ import annotations

import functools
from typing import Any

from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.rest.copying import clone

Obj = dict[str, Any]

# The order in which kube-apiserver writes them. resourceVersion is filled in by the store.
_ORDER = (
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
)
MAX_GENERATED_BASE = 63 - 5


def in_order(meta: Obj) -> Obj:
    return {key: meta[key] for key in _ORDER if key in meta}


def stamp_new(meta: Obj, name: str, namespace: str, uid: str, now: str) -> Obj:
    """Return the metadata of an object that is about to be created; the strategy sets `generation`."""
    made: Obj = {"name": name}
    if meta.get("generateName"):
        made["generateName"] = meta["generateName"]
    if namespace:
        made["namespace"] = namespace
    made["uid"] = uid
    made["resourceVersion"] = ""
    if meta.get("generation"):
        made["generation"] = meta["generation"]
    made["creationTimestamp"] = now
    for key in ("labels", "annotations", "ownerReferences", "finalizers", "managedFields"):
        if meta.get(key):
            made[key] = meta[key]
    return made


def restore(new: Obj, old: Obj) -> Obj:
    """Return the metadata of an update with what a client cannot change taken from the stored object."""
    made = dict(new)
    if not made.get("uid"):
        made["uid"] = old["uid"]
    made["creationTimestamp"] = old["creationTimestamp"]
    made["resourceVersion"] = old["resourceVersion"]
    made.pop("selfLink", None)
    _copy(made, old, "generation")
    if "deletionTimestamp" in old:
        made["deletionTimestamp"] = old["deletionTimestamp"]
    if "deletionGracePeriodSeconds" in old and made.get("deletionGracePeriodSeconds") is None:
        made["deletionGracePeriodSeconds"] = old["deletionGracePeriodSeconds"]
    for key in ("labels", "annotations", "ownerReferences", "finalizers"):
        if key in made and not made[key]:
            del made[key]
    return in_order(made)


def _copy(into: Obj, source: Obj, key: str) -> None:
    if key in source:
        into[key] = source[key]
    else:
        into.pop(key, None)


# Kinds whose creator may set the status: kubelets register nodes with it.
_STATUS_ON_CREATE = frozenset(("nodes",))
# Kinds whose status subresource does not change labels.
_LABELS_KEPT = frozenset(("deployments.apps",))


def label_namespace(meta: Obj, name: str) -> None:
    meta["labels"] = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": name}


def prepare_namespace(obj: Obj) -> None:
    """Make a new namespace active, with the finalizer under which its content is deleted."""
    obj["spec"] = {"finalizers": ["kubernetes"]}
    obj["status"] = {"phase": "Active"}


def drop_status(obj: Obj, resource: ServedResource) -> None:
    """Reset the status of a new object to what Go writes for an empty status: a creator does not set it."""
    if not resource.has_status or resource.storage in _STATUS_ON_CREATE:
        return
    empty = _empty_status(resource)
    if empty is None:
        obj.pop("status", None)
    else:
        obj["status"] = clone(empty)


@functools.lru_cache(maxsize=1024)
def _empty_status(resource: ServedResource) -> Obj | None:
    if resource.custom:
        return None
    status: Obj | None = resource.decode({}).value.get("status")
    return status


def keep_status(new: Obj, old: Obj, resource: ServedResource) -> None:
    """Restore the status after a write to the main path."""
    if resource.has_status:
        _copy(new, old, "status")


def keep_but_status(new: Obj, old: Obj, resource: ServedResource) -> None:
    """Restore everything but the status (and, for built-in kinds, metadata) after a write to the status
    subresource.
    """
    status = new.get("status")
    for key in list(new):
        if key not in old and key != "status":
            del new[key]
    for key, value in old.items():
        if key not in ("status", "metadata"):
            new[key] = value
    if status is not None:
        new["status"] = new.pop("status")
    meta = new["metadata"]
    if resource.custom:
        new["metadata"] = {**old["metadata"]}
        _copy(new["metadata"], meta, "managedFields")
    elif resource.storage in _LABELS_KEPT:
        _copy(meta, old["metadata"], "labels")
    elif resource.storage == "pods":
        _copy(meta, old["metadata"], "ownerReferences")
