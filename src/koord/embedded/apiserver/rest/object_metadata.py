"""ObjectMeta: the fields that the server owns, which are set on create and restored on update, its
validation, and deep copies of objects.

Bodies and stored objects are shared: whoever wants to change one copies it first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from koord.api.model import Obj
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.api_errors import ApiFieldError, invalid_value
from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.kinds.strategy import copy_or_drop
from koord.embedded.apiserver.kinds.validators import label_value_reasons, qualified_name_reasons
from koord.values import names

# The order in which kube-apiserver writes them. resourceVersion is filled in by the store.
_FIELD_ORDER = (
    *("name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation", "creationTimestamp"),
    *("deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations", "ownerReferences", "finalizers"),
    "managedFields",
)
MAX_GENERATE_NAME_CHARS = 63 - 5


def ordered_metadata(meta: Obj) -> Obj:
    return {key: meta[key] for key in _FIELD_ORDER if key in meta}


def new_object_metadata(meta: Obj, name: str, namespace: str, uid: str, now: str) -> Obj:
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


def restore_system_fields(new: Obj, old: Obj) -> Obj:
    """Return the metadata of an update with what a client cannot change taken from the stored object."""
    made = dict(new)
    if not made.get("uid"):
        made["uid"] = old["uid"]
    made["creationTimestamp"] = old["creationTimestamp"]
    made["resourceVersion"] = old["resourceVersion"]
    made.pop("selfLink", None)
    copy_or_drop(made, old, "generation")
    if "deletionTimestamp" in old:
        made["deletionTimestamp"] = old["deletionTimestamp"]
    if "deletionGracePeriodSeconds" in old and made.get("deletionGracePeriodSeconds") is None:
        made["deletionGracePeriodSeconds"] = old["deletionGracePeriodSeconds"]
    for key in ("labels", "annotations", "ownerReferences", "finalizers"):
        if key in made and not made[key]:
            del made[key]
    return ordered_metadata(made)


# Kinds whose creator may set the status: kubelets register nodes with it.
_STATUS_ON_CREATE = frozenset(("nodes",))
# Kinds whose status subresource does not change labels.
_STATUS_KEEPS_LABELS = frozenset(("deployments.apps",))


def label_namespace(meta: Obj, name: str) -> None:
    meta["labels"] = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": name}


def prepare_namespace(obj: Obj) -> None:
    """Make a new namespace active, with the finalizer under which its content is deleted."""
    obj["spec"] = {"finalizers": ["kubernetes"]}
    obj["status"] = {"phase": "Active"}


def reset_status(obj: Obj, resource: ServedResource) -> None:
    """Reset the status of a new object to what Go writes for an empty status: a creator does not set it."""
    if not resource.has_status or resource.storage in _STATUS_ON_CREATE:
        return
    empty = _empty_status(resource)
    if empty is None:
        obj.pop("status", None)
    else:
        obj["status"] = deep_copy(empty)


@functools.lru_cache(maxsize=1024)
def _empty_status(resource: ServedResource) -> Obj | None:
    if resource.custom:
        return None
    status: Obj | None = resource.decode({}).value.get("status")
    return status


def keep_old_status(new: Obj, old: Obj, resource: ServedResource) -> None:
    """Restore the status after a write to the main path."""
    if resource.has_status:
        copy_or_drop(new, old, "status")


def keep_all_but_status(new: Obj, old: Obj, resource: ServedResource) -> None:
    """Restore everything but the status (and, for built-in kinds, metadata) after a write to the status subresource."""
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
        copy_or_drop(new["metadata"], meta, "managedFields")
    elif resource.storage in _STATUS_KEEPS_LABELS:
        copy_or_drop(meta, old["metadata"], "labels")
    elif resource.storage == "pods":
        copy_or_drop(meta, old["metadata"], "ownerReferences")


MAX_ANNOTATION_BYTES = 256 << 10
STANDARD_FINALIZERS = frozenset(("kubernetes", "orphan", "foregroundDeletion"))
IMMUTABLE_FIELD = "field is immutable"


def path_segment_name(name: str) -> list[str]:
    """Return why a name cannot be one path segment; RBAC names may hold anything else."""
    if name in (".", ".."):
        return [f"may not be '{name}'"]
    return [f"may not contain '{bad}'" for bad in ("/", "%") if bad in name]


_NAME_RULES: dict[str, Callable[[str], list[str]]] = {
    "namespaces": names.dns1123_label,
    "services": names.dns1035_label,
    "roles.rbac.authorization.k8s.io": path_segment_name,
    "rolebindings.rbac.authorization.k8s.io": path_segment_name,
    "clusterroles.rbac.authorization.k8s.io": path_segment_name,
    "clusterrolebindings.rbac.authorization.k8s.io": path_segment_name,
    "apiservices.apiregistration.k8s.io": path_segment_name,
    "flowschemas.flowcontrol.apiserver.k8s.io": path_segment_name,
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io": path_segment_name,
}


def validate_metadata_on_create(obj: Obj, resource: ServedResource) -> list[ApiFieldError]:
    meta = obj["metadata"]
    name, prefix = meta["name"], meta.get("generateName")
    rule = _NAME_RULES.get(resource.storage, names.dns1123_subdomain)
    errors: list[ApiFieldError] = []
    if prefix:
        # A trailing dash is what the generated part follows, so it stands for a letter here.
        shown = prefix[:-1] + "a" if prefix.endswith("-") and len(prefix) > 1 else prefix
        errors += [invalid_value("metadata.generateName", prefix, reason) for reason in rule(shown)]
    if not name:
        errors.append(api_errors.required("metadata.name", "name or generateName is required"))
    else:
        errors += [invalid_value("metadata.name", name, reason) for reason in rule(name)]
    if len(meta) > 5:  # more than what the server itself puts there
        errors += _shared_errors(meta, resource.custom)
    return errors


def validate_metadata_on_update(new: Obj, old: Obj, resource: ServedResource) -> list[ApiFieldError]:
    meta, before = new["metadata"], old["metadata"]
    errors: list[ApiFieldError] = []
    for key in ("labels", "annotations", "ownerReferences", "finalizers"):
        if meta.get(key) != before.get(key):
            errors += _shared_errors(meta, resource.custom)
            break
    if "deletionTimestamp" in before and meta.get("finalizers"):
        added = sorted(set(meta["finalizers"]) - set(before.get("finalizers", ())))
        if added:
            listed = ", ".join(f'"{name}"' for name in added)
            detail = (
                "no new finalizers can be added if the object is being deleted, found new finalizers "
                f"[]string{{{listed}}}"
            )
            errors.append(api_errors.forbidden_field("metadata.finalizers", detail))
    for key in ("uid", "deletionTimestamp", "deletionGracePeriodSeconds"):
        if meta.get(key) != before.get(key):
            errors.append(invalid_value(f"metadata.{key}", meta.get(key), IMMUTABLE_FIELD))
    return errors


def _shared_errors(meta: Obj, custom: bool) -> Iterator[ApiFieldError]:
    if meta.get("generation", 0) < 0:
        yield invalid_value("metadata.generation", meta["generation"], "must be greater than or equal to 0")
    for key, value in (meta.get("labels") or {}).items():
        yield from [invalid_value("metadata.labels", key, reason) for reason in qualified_name_reasons(key)]
        yield from [invalid_value("metadata.labels", value, reason) for reason in label_value_reasons(value)]
    annotations = meta.get("annotations")
    if annotations:
        for key in annotations:
            yield from [invalid_value("metadata.annotations", key, r) for r in qualified_name_reasons(key.lower())]
        size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
        if size > MAX_ANNOTATION_BYTES:
            yield api_errors.too_long("metadata.annotations", MAX_ANNOTATION_BYTES)
    if meta.get("ownerReferences"):
        yield from _owner_errors(meta["ownerReferences"])
    if meta.get("finalizers"):
        yield from _finalizer_errors(meta["finalizers"], custom)


def _owner_errors(owners: list[Obj]) -> Iterator[ApiFieldError]:
    place = "metadata.ownerReferences"
    controller = ""
    for owner in owners:
        version = owner.get("apiVersion", "")
        if not version.rpartition("/")[2]:
            yield invalid_value(f"{place}.apiVersion", version, "version must not be empty")
        yield from [
            invalid_value(f"{place}.{key}", "", "must not be empty")
            for key in ("kind", "name", "uid")
            if not owner.get(key)
        ]
        if version == "v1" and owner.get("kind") == "Event":
            yield invalid_value(place, owner, "/v1, Kind=Event is disallowed from being an owner")
        if owner.get("controller"):
            this = f"{owner.get('kind')}/{owner.get('name')}"
            if controller:
                detail = (
                    "Only one reference can have Controller set to true. "
                    f'Found "true" in references for {controller} and {this}'
                )
                yield invalid_value(place, owners, detail)
            controller = controller or this


def _finalizer_errors(finalizers: list[str], custom: bool) -> Iterator[ApiFieldError]:
    place = "metadata.finalizers"
    for finalizer in finalizers:
        yield from [invalid_value(place, finalizer, reason) for reason in qualified_name_reasons(finalizer)]
    if "orphan" in finalizers and "foregroundDeletion" in finalizers:
        detail = "finalizer orphan and foregroundDeletion cannot be both set"
        yield invalid_value(place, finalizers, detail)
    if not custom:
        yield from [
            invalid_value(
                f"{place}[{index}]", finalizer, "name is neither a standard finalizer name nor is it fully qualified"
            )
            for index, finalizer in enumerate(finalizers)
            if "/" not in finalizer and finalizer not in STANDARD_FINALIZERS
        ]


def deep_copy(obj: dict[str, Any]) -> dict[str, Any]:
    """Return a deep copy. Scalars are tested for before the recursive call, which is slow."""
    return {
        key: deep_copy(value) if value.__class__ is dict else _copy_list(value) if value.__class__ is list else value
        for key, value in obj.items()
    }


def _copy_list(values: list[Any]) -> list[Any]:
    return [
        deep_copy(value) if value.__class__ is dict else _copy_list(value) if value.__class__ is list else value
        for value in values
    ]


def update_completes_deletion(new: Obj, old: Obj) -> bool:
    """Return whether an update removes the last finalizer of an object that is being deleted."""
    before = old["metadata"]
    if "deletionTimestamp" not in before or new["metadata"].get("finalizers"):
        return False
    if old.get("kind") == "Namespace" and new.get("spec", {}).get("finalizers"):
        return False
    return not before.get("deletionGracePeriodSeconds")
