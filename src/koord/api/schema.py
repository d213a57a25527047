"""This module converts models to structural OpenAPI v3 schemas, and generates the CustomResourceDefinitions of every
kind in koord.api.koordinator.custom_kinds from them.

Everything is inlined (a structural schema has no $ref), and every value states its type. Types that belong to
Kubernetes have the schemas that controller-gen writes for them.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from koord.api.koordinator.custom_kinds import CUSTOM_KINDS, SIGS_SCHEDULING_GROUP, TOPOLOGY_GROUP
from koord.api.koordinator.scheduling import ReservationControllerReference
from koord.api.kubernetes.affinity import Taint
from koord.api.kubernetes.meta import Condition, DeleteOptions, LabelSelector, Object
from koord.api.kubernetes.resource import Resource
from koord.api.model import ObjectReference
from koord.api.schema_markers import SchemaRule

Schema = dict[str, Any]

QUANTITY_PATTERN = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_INT_OR_STRING: Schema = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
_SCALARS: dict[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    datetime: {"type": "string", "format": "date-time"},
}
_PLAIN_RULES = {
    "description": "description",
    "format": "format",
    "minimum": "minimum",
    "maximum": "maximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_items": "minItems",
    "pattern": "pattern",
    "nullable": "nullable",
    "map_type": "x-kubernetes-map-type",
    "list_type": "x-kubernetes-list-type",
}


def root_schema(model: type[Object], known_schemas: Mapping[type, Schema]) -> Schema:
    """Return the schema of a whole object; its metadata is validated by the server."""
    made = _object(model, known_schemas)
    made["properties"] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        **{k: v for k, v in made["properties"].items() if k not in ("apiVersion", "kind", "metadata")},
    }
    return made


def value_schema(tp: Any, known_schemas: Mapping[type, Schema]) -> Schema:
    """Return the schema of one value of type `tp`."""
    plain, rule = unwrap_annotated(tp)
    if rule.schemaless:
        return {"x-kubernetes-preserve-unknown-fields": True}
    if rule.preserve_unknown:
        made: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    elif rule.quantity:
        made = {**_INT_OR_STRING, "pattern": QUANTITY_PATTERN}
    elif rule.int_or_string:
        made = {**_INT_OR_STRING}
    else:
        made = _by_type(plain, known_schemas)
    for attribute, keyword in _PLAIN_RULES.items():
        stated = getattr(rule, attribute)
        if stated is not None:
            made[keyword] = stated
    if rule.enum is not None:
        made["enum"] = list(rule.enum)
    if rule.default is not msgspec.UNSET:
        made["default"] = rule.default
    return made


def unwrap_annotated(tp: Any) -> tuple[Any, SchemaRule]:
    """Return the type below Annotated and Optional, and all the rules met on the way down, outer ones winning."""
    stated: list[SchemaRule] = []
    while True:
        if get_origin(tp) is Annotated:
            tp, *marks = get_args(tp)
            stated = [m for m in marks if isinstance(m, SchemaRule)] + stated
        elif get_origin(tp) in (Union, types.UnionType) and len(some := _not_none(tp)) == 1:
            tp = some[0]
        else:
            break
    merged: dict[str, Any] = {}
    for rule in stated:
        merged.update(
            {k: v for k in rule.__struct_fields__ if (v := getattr(rule, k)) is not None and v is not msgspec.UNSET}
        )
    return tp, SchemaRule(**merged)


def _not_none(tp: Any) -> list[Any]:
    return [a for a in get_args(tp) if a is not type(None)]


def _by_type(tp: Any, known_schemas: Mapping[type, Schema]) -> Schema:
    if tp in _SCALARS:
        return {**_SCALARS[tp]}
    if tp is Any:
        return {"x-kubernetes-preserve-unknown-fields": True}
    origin, args = get_origin(tp), get_args(tp)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return {"type": "array", "items": value_schema(args[0], known_schemas)}
    if origin is dict and args[0] is str:
        if args[1] is Any:
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        return {"type": "object", "additionalProperties": value_schema(args[1], known_schemas)}
    if isinstance(tp, type) and issubclass(tp, msgspec.Struct):
        return _copied(known_schemas[tp]) if tp in known_schemas else _object(tp, known_schemas)
    raise TypeError(f"no structural schema for {tp!r}")


def _object(model: type[msgspec.Struct], known_schemas: Mapping[type, Schema]) -> Schema:
    made: Schema = {"type": "object"}
    if own := model.__dict__.get("__doc__"):
        made["description"] = " ".join(own.split())
    properties: Schema = {}
    required = []
    for described in msgspec.structs.fields(model):
        properties[described.encode_name] = value_schema(described.type, known_schemas)
        if unwrap_annotated(described.type)[1].required:
            required.append(described.encode_name)
    if properties:
        made["properties"] = properties
    if required:
        made["required"] = required
    return made


def _copied(value: Any) -> Any:
    """Copy a schema. Table entries are shared; each use gets its own so that a caller may change it."""
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_copied(v) for v in value]
    return value


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
