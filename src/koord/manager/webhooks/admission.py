"""The admission decision, the excluded namespaces, and copy-on-write changes to plain objects.

The admission of pods/binding says which users may bind pods; it is off unless users are named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import msgspec

from koord.api.koordinator.protocol import L_BINDING_ADMISSION_BYPASS, NAMESPACE
from koord.api.kubernetes.admission import AdmissionRequest
from koord.api.kubernetes.pod import Pod
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


ALL_NAMESPACES = "*"

# As the decision metric names them.
BindingDecision = Literal[
    "allowed_username", "denied", "dry_run", "bypass_label", "bypass_annotation", "excluded_ns", "out_of_scope"
]


class BindingAdmissionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The --binding-admission-* flags. Without users or without namespaces nothing is enforced."""

    users: tuple[str, ...] = ()  # a user whose name contains one of these may bind
    namespaces: tuple[str, ...] = ()
    exclude_namespaces: tuple[str, ...] = ("kube-system",)
    bypass_labels: tuple[str, ...] = (L_BINDING_ADMISSION_BYPASS,)
    bypass_annotations: tuple[str, ...] = ()
    dry_run: bool = False


class BindingRuling(msgspec.Struct, frozen=True):
    verdict: AdmissionDecision
    decision: BindingDecision | None  # None: the request is not looked at and not counted


def validate_binding(
    request: AdmissionRequest, settings: BindingAdmissionSettings, enabled: bool, pod: Callable[[str, str], Pod | None]
) -> BindingRuling:
    """Decide on a binding. `enabled` is the gate BindingAdmissionWebhook; `pod` looks one up by namespace and name."""
    ours = request.resource.resource == "pods" and request.sub_resource == "binding" and request.operation == "CREATE"
    if not enabled or not settings.users or not ours:
        return BindingRuling(AdmissionAllowed(), None)
    decision = _decide_binding(request, settings, pod)
    if decision != "denied":
        return BindingRuling(AdmissionAllowed(), decision)
    return BindingRuling(AdmissionDenied(403, "binding denied: username is not in the allowed list"), decision)


def _decide_binding(
    request: AdmissionRequest, settings: BindingAdmissionSettings, pod: Callable[[str, str], Pod | None]
) -> BindingDecision:
    if any(user in request.user_info.username for user in settings.users):
        return "allowed_username"
    if request.namespace in settings.exclude_namespaces:
        return "excluded_ns"
    if ALL_NAMESPACES not in settings.namespaces and request.namespace not in settings.namespaces:
        return "out_of_scope"
    found = pod(request.namespace, request.name)
    if found is None:  # it is gone, or newer than the cache: the binding fails or succeeds without us
        return "out_of_scope"
    if any(key in found.metadata.labels for key in settings.bypass_labels):
        return "bypass_label"
    if any(key in found.metadata.annotations for key in settings.bypass_annotations):
        return "bypass_annotation"
    return "dry_run" if settings.dry_run else "denied"
