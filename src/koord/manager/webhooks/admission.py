"""The admission decision, the excluded namespaces, and copy-on-write changes to plain objects."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from koord.api.koordinator.protocol import NAMESPACE
from koord.api.model import without_nulls


class AdmissionAllowed(msgspec.Struct, frozen=True):
    """The request is allowed. `object` is the whole object to store; None leaves it as it came."""

    object: dict[str, Any] | None = None


class AdmissionDenied(msgspec.Struct, frozen=True):
    code: int
    message: str


AdmissionDecision = AdmissionAllowed | AdmissionDenied


SYSTEM_NAMESPACES = frozenset({"kube-system", NAMESPACE})


def excluded_namespaces(own_namespace: str = NAMESPACE) -> frozenset[str]:
    """Return the namespaces whose pods admission never touches. `own_namespace` is where this program runs.

    A webhook that refuses or changes the pods that it needs to run can lock a cluster up. The webhook configurations
    exclude such pods; this is the same rule for calls that come all the same. It goes by namespace, since a label that
    anybody may set would be a way around the webhooks.
    """
    return SYSTEM_NAMESPACES | {own_namespace}


PlainObject = dict[str, Any]
T = TypeVar("T")


def decode_object(obj: PlainObject, model: type[T]) -> tuple[PlainObject, T]:
    """Return the object to work on, without nulls for maps and lists, and its model. Raise msgspec.ValidationError."""
    try:
        return obj, msgspec.convert(obj, model, str_keys=True)
    except msgspec.ValidationError:
        plain: PlainObject = without_nulls(obj)
        return plain, msgspec.convert(plain, model, str_keys=True)


def writable(parent: PlainObject, *path: str) -> PlainObject:
    """Return a writable copy of the object at the path below a writable parent; create it when it is missing."""
    for key in path:
        child = dict(parent.get(key) or {})
        parent[key] = child
        parent = child
    return parent


def readable(obj: PlainObject, *path: str) -> PlainObject:
    """Return the object at the path for reading; empty when it is missing."""
    for key in path:
        obj = obj.get(key) or {}
    return obj


def allow_with_changes(before: PlainObject, after: PlainObject) -> AdmissionAllowed:
    return AdmissionAllowed(None if after == before else after)
