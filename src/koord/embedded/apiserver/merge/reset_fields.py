"""This module defines the fields that a write to a resource or subresource cannot change or own.

It is a table of facts about the built-in kinds (GetResetFields in kube-apiserver), plus the rule for custom
ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from koord.embedded.apiserver.merge.fieldset import MEMBER, SELF, FieldSet, from_paths, without_subtrees

FieldFilter = Callable[[FieldSet], FieldSet]

_STATUS_RESETS_METADATA = frozenset(
    {
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"),
        ("apiextensions.k8s.io", "CustomResourceDefinition"),
        ("flowcontrol.apiserver.k8s.io", "FlowSchema"),
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"),
        ("internal.apiserver.k8s.io", "StorageVersion"),
        ("resource.k8s.io", "DeviceTaintRule"),
        ("resource.k8s.io", "ResourceClaim"),
        ("storage.k8s.io", "VolumeAttachment"),
        ("storagemigration.k8s.io", "StorageVersionMigration"),
        ("apiregistration.k8s.io", "APIService"),
    }
)
# (group, kind, subresource) -> dotted paths, where they differ from the rule in `_reset_paths`.
_SPECIAL_RESET_PATHS: dict[tuple[str, str, str], tuple[str, ...]] = {
    ("", "Pod", "status"): ("spec", "metadata.deletionTimestamp", "metadata.ownerReferences"),
    ("apps", "Deployment", "status"): ("spec", "metadata.labels"),
    ("certificates.k8s.io", "CertificateSigningRequest", ""): ("spec", "status"),
    ("certificates.k8s.io", "CertificateSigningRequest", "status"): ("spec", "status.conditions"),
    ("certificates.k8s.io", "CertificateSigningRequest", "approval"): ("spec", "status.certificate"),
    ("", "Namespace", "finalize"): ("status",),
    # The real server lists its fields under a group that does not exist, so it resets none.
    ("networking.k8s.io", "ServiceCIDR", ""): (),
    ("networking.k8s.io", "ServiceCIDR", "status"): (),
}


def keep_all_fields(fields: FieldSet) -> FieldSet:
    """Return the fields unchanged: the filter that keeps all fields."""
    return fields


@lru_cache(maxsize=4096)
def ownable(group: str, kind: str, subresource: str = "", *, has_status: bool = True) -> FieldFilter:
    """Return the filter of a resource or subresource.

    `has_status` is False for a custom kind without that subresource.
    """
    paths = _reset_paths(group, kind, subresource) if has_status or subresource else ()
    if not paths:
        return keep_all_fields
    reset = from_paths(tuple(f"f:{part}" for part in path.split(".")) for path in paths)
    return lambda fields: without_subtrees(fields, reset)


def _reset_paths(group: str, kind: str, subresource: str) -> tuple[str, ...]:
    special = _SPECIAL_RESET_PATHS.get((group, kind, subresource))
    if special is not None:
        return special
    if not subresource:
        return ("status",)
    if subresource == "status":
        return ("metadata", "spec") if (group, kind) in _STATUS_RESETS_METADATA else ("spec",)
    # The real server also means to limit pods/resize and pods/ephemeralcontainers, but its limits are never asked for:
    # a write to these subresources owns all that was sent, stored or not.
    return ()


STRIPPED_FIELDS: FieldSet = {
    "f:apiVersion": MEMBER,
    "f:kind": MEMBER,
    "f:metadata": {
        SELF: MEMBER,
        "f:clusterName": MEMBER,
        "f:creationTimestamp": MEMBER,
        "f:generation": MEMBER,
        "f:managedFields": MEMBER,
        "f:name": MEMBER,
        "f:namespace": MEMBER,
        "f:resourceVersion": MEMBER,
        "f:selfLink": MEMBER,
        "f:uid": MEMBER,
    },
}
