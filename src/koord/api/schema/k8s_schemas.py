"""This module holds the structural schemas of Kubernetes types that appear inside our custom resources."""

from __future__ import annotations

from koord.api.koordinator.scheduling import ReservationControllerReference
from koord.api.kubernetes.affinity import Taint
from koord.api.kubernetes.meta import Condition, DeleteOptions, LabelSelector
from koord.api.model import ObjectReference
from koord.api.schema.structural import Schema

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
