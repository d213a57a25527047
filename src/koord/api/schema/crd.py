"""This module generates the CustomResourceDefinitions of every kind in koord.api.koordinator.custom_kinds from
its models. Types that belong to Kubernetes have the schemas that controller-gen writes for them.
"""

from __future__ import annotations

from typing import Any

from koord.api.koordinator.custom_kinds import CUSTOM_KINDS, SIGS_SCHEDULING_GROUP, TOPOLOGY_GROUP
from koord.api.koordinator.scheduling import ReservationControllerReference
from koord.api.kubernetes.affinity import Taint
from koord.api.kubernetes.meta import Condition, DeleteOptions, LabelSelector
from koord.api.kubernetes.resource import Resource
from koord.api.model import ObjectReference
from koord.api.schema.structural import Schema, root_schema

_TEXT: Schema = {"type": "string"}
_TEXTS: Schema = {"type": "array", "items": _TEXT, "x-kubernetes-list-type": "atomic"}
_TIME: Schema = {"type": "string", "format": "date-time"}

_CONDITION_TYPE = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)

KUBERNETES_SCHEMAS: dict[type, Schema] = {
    LabelSelector: {
        "type": "object",
        "properties": {
            "matchLabels": {"type": "object", "additionalProperties": _TEXT},
            "matchExpressions": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"key": _TEXT, "operator": _TEXT, "values": _TEXTS},
                    "required": ["key", "operator"],
                },
                "x-kubernetes-list-type": "atomic",
            },
        },
        "x-kubernetes-map-type": "atomic",
    },
    ObjectReference: {
        "type": "object",
        "properties": dict.fromkeys(
            ("apiVersion", "fieldPath", "kind", "name", "namespace", "resourceVersion", "uid"), _TEXT
        ),
        "x-kubernetes-map-type": "atomic",
    },
    ReservationControllerReference: {
        "type": "object",
        "properties": {
            **dict.fromkeys(("apiVersion", "kind", "name", "namespace", "uid"), _TEXT),
            "blockOwnerDeletion": {"type": "boolean"},
            "controller": {"type": "boolean"},
        },
        "required": ["apiVersion", "kind", "name", "uid"],
        "x-kubernetes-map-type": "atomic",
    },
    Taint: {
        "type": "object",
        "properties": {"key": _TEXT, "value": _TEXT, "effect": _TEXT, "timeAdded": _TIME},
        "required": ["effect", "key"],
    },
    Condition: {
        "type": "object",
        "properties": {
            "type": {"type": "string", "maxLength": 316, "pattern": _CONDITION_TYPE},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            "lastTransitionTime": _TIME,
            "reason": {
                "type": "string",
                "maxLength": 1024,
                "minLength": 1,
                "pattern": r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            },
            "message": {"type": "string", "maxLength": 32768},
        },
        "required": ["lastTransitionTime", "message", "reason", "status", "type"],
    },
    DeleteOptions: {
        "type": "object",
        "properties": {
            "apiVersion": _TEXT,
            "kind": _TEXT,
            "dryRun": _TEXTS,
            "gracePeriodSeconds": {"type": "integer", "format": "int64"},
            "ignoreStoreReadErrorWithClusterBreakingPotential": {"type": "boolean"},
            "orphanDependents": {"type": "boolean"},
            "preconditions": {"type": "object", "properties": {"resourceVersion": _TEXT, "uid": _TEXT}},
            "propagationPolicy": _TEXT,
        },
    },
}


# Groups below k8s.io are protected: a CRD in one has to name the review that allowed it.
_APPROVAL = "api-approved.kubernetes.io"
_APPROVED_BY = {
    SIGS_SCHEDULING_GROUP: "https://github.com/kubernetes-sigs/scheduler-plugins/pull/52",
    TOPOLOGY_GROUP: "https://github.com/kubernetes/enhancements/pull/1870",
}


def crd_manifests() -> list[dict[str, Any]]:
    """Return one manifest per kind, in the table's order; a kind with several versions stores the last."""
    kinds: dict[tuple[str, str], list[Resource[Any]]] = {}
    for resource in CUSTOM_KINDS:
        kinds.setdefault((resource.group, resource.kind), []).append(resource)
    return [_manifest(versions) for versions in kinds.values()]


def _manifest(versions: list[Resource[Any]]) -> dict[str, Any]:
    stored = versions[-1]
    metadata: dict[str, Any] = {"name": f"{stored.plural}.{stored.group}"}
    if approved := _APPROVED_BY.get(stored.group):
        metadata["annotations"] = {_APPROVAL: approved}
    names: dict[str, Any] = {
        "kind": stored.kind,
        "listKind": f"{stored.kind}List",
        "plural": stored.plural,
        "singular": stored.singular,
    }
    if stored.short_names:
        names["shortNames"] = list(stored.short_names)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": stored.group,
            "names": names,
            "scope": "Namespaced" if stored.namespaced else "Cluster",
            "versions": [_version(resource, stored=resource is stored) for resource in versions],
        },
    }


def _version(resource: Resource[Any], *, stored: bool) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": resource.version,
        "served": True,
        "storage": stored,
        "schema": {"openAPIV3Schema": root_schema(resource.model, KUBERNETES_SCHEMAS)},
    }
    if resource.columns:
        made["additionalPrinterColumns"] = [
            {"name": c.name, "type": c.type, "jsonPath": c.json_path} for c in resource.columns
        ]
    if resource.status_subresource:
        made["subresources"] = {"status": {}}
    return made
