"""The admission of pods/binding: which users may bind pods. Off unless users are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from koord.api.koordinator.protocol import L_BINDING_ADMISSION_BYPASS
from koord.api.kubernetes.admission import AdmissionRequest
from koord.api.kubernetes.pod import Pod
from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDecision, AdmissionDenied

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
    decision = _decide(request, settings, pod)
    if decision != "denied":
        return BindingRuling(AdmissionAllowed(), decision)
    return BindingRuling(AdmissionDenied(403, "binding denied: username is not in the allowed list"), decision)


def _decide(
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
