"""Validate ObjectMeta, which is the same for every kind but for the rule that names follow."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from koord.embedded.apiserver import refusal
from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.refusal import FieldError, invalid_value
from koord.values import names

Obj = dict[str, Any]
MAX_ANNOTATION_BYTES = 256 << 10
STANDARD_FINALIZERS = frozenset(("kubernetes", "orphan", "foregroundDeletion"))
IMMUTABLE = "field is immutable"


def path_segment(name: str) -> list[str]:
    """Return why a name cannot be one path segment; RBAC names may hold anything else."""
    if name in (".", ".."):
        return [f"may not be '{name}'"]
    return [f"may not contain '{bad}'" for bad in ("/", "%") if bad in name]


_NAME_RULES: dict[str, Callable[[str], list[str]]] = {
    "namespaces": names.dns1123_label,
    "services": names.dns1035_label,
    "roles.rbac.authorization.k8s.io": path_segment,
    "rolebindings.rbac.authorization.k8s.io": path_segment,
    "clusterroles.rbac.authorization.k8s.io": path_segment,
    "clusterrolebindings.rbac.authorization.k8s.io": path_segment,
    "apiservices.apiregistration.k8s.io": path_segment,
    "flowschemas.flowcontrol.apiserver.k8s.io": path_segment,
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io": path_segment,
}


@functools.lru_cache(maxsize=16_384)
def _key_reasons(key: str) -> tuple[str, ...]:
    return tuple(names.qualified_name(key))


@functools.lru_cache(maxsize=16_384)
def _value_reasons(value: str) -> tuple[str, ...]:
    return tuple(names.label_value(value))


def create_errors(obj: Obj, resource: ServedResource) -> list[FieldError]:
    meta = obj["metadata"]
    name, prefix = meta["name"], meta.get("generateName")
    rule = _NAME_RULES.get(resource.storage, names.dns1123_subdomain)
    errors: list[FieldError] = []
    if prefix:
        # A trailing dash is what the generated part follows, so it stands for a letter here.
        shown = prefix[:-1] + "a" if prefix.endswith("-") and len(prefix) > 1 else prefix
        errors += [invalid_value("metadata.generateName", prefix, reason) for reason in rule(shown)]
    if not name:
        errors.append(refusal.required("metadata.name", "name or generateName is required"))
    else:
        errors += [invalid_value("metadata.name", name, reason) for reason in rule(name)]
    if len(meta) > 5:  # more than what the server itself puts there
        errors += _shared_errors(meta, resource.custom)
    return errors


def update_errors(new: Obj, old: Obj, resource: ServedResource) -> list[FieldError]:
    meta, before = new["metadata"], old["metadata"]
    errors: list[FieldError] = []
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
            errors.append(refusal.forbidden_field("metadata.finalizers", detail))
    for key in ("uid", "deletionTimestamp", "deletionGracePeriodSeconds"):
        if meta.get(key) != before.get(key):
            errors.append(invalid_value(f"metadata.{key}", meta.get(key), IMMUTABLE))
    return errors


def _shared_errors(meta: Obj, custom: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    if meta.get("generation", 0) < 0:
        errors.append(invalid_value("metadata.generation", meta["generation"], "must be greater than or equal to 0"))
    for key, value in (meta.get("labels") or {}).items():
        errors += [invalid_value("metadata.labels", key, reason) for reason in _key_reasons(key)]
        errors += [invalid_value("metadata.labels", value, reason) for reason in _value_reasons(value)]
    annotations = meta.get("annotations")
    if annotations:
        for key in annotations:
            errors += [invalid_value("metadata.annotations", key, r) for r in _key_reasons(key.lower())]
        size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
        if size > MAX_ANNOTATION_BYTES:
            errors.append(refusal.too_long("metadata.annotations", MAX_ANNOTATION_BYTES))
    if meta.get("ownerReferences"):
        errors += _owner_errors(meta["ownerReferences"])
    if meta.get("finalizers"):
        errors += _finalizer_errors(meta["finalizers"], custom)
    return errors


def _owner_errors(owners: list[Obj]) -> list[FieldError]:
    errors: list[FieldError] = []
    place = "metadata.ownerReferences"
    controller = ""
    for owner in owners:
        version = owner.get("apiVersion", "")
        if not version.rpartition("/")[2]:
            errors.append(invalid_value(f"{place}.apiVersion", version, "version must not be empty"))
        errors += [
            invalid_value(f"{place}.{key}", "", "must not be empty")
            for key in ("kind", "name", "uid")
            if not owner.get(key)
        ]
        if version == "v1" and owner.get("kind") == "Event":
            errors.append(invalid_value(place, owner, "/v1, Kind=Event is disallowed from being an owner"))
        if owner.get("controller"):
            this = f"{owner.get('kind')}/{owner.get('name')}"
            if controller:
                detail = (
                    "Only one reference can have Controller set to true. "
                    f'Found "true" in references for {controller} and {this}'
                )
                errors.append(invalid_value(place, owners, detail))
            controller = controller or this
    return errors


def _finalizer_errors(finalizers: list[str], custom: bool) -> list[FieldError]:
    place = "metadata.finalizers"
    errors: list[FieldError] = []
    for finalizer in finalizers:
        errors += [invalid_value(place, finalizer, reason) for reason in _key_reasons(finalizer)]
    if "orphan" in finalizers and "foregroundDeletion" in finalizers:
        detail = "finalizer orphan and foregroundDeletion cannot be both set"
        errors.append(invalid_value(place, finalizers, detail))
    if not custom:
        errors += [
            invalid_value(
                f"{place}[{index}]", finalizer, "name is neither a standard finalizer name nor is it fully qualified"
            )
            for index, finalizer in enumerate(finalizers)
            if "/" not in finalizer and finalizer not in STANDARD_FINALIZERS
        ]
    return errors
