"""This module holds the admissionregistration.k8s.io/v1 webhook configurations and the admission.k8s.io/v1
review.

The objects inside a review stay unstructured: a webhook patches what it was sent, unknown fields included.
"""

from __future__ import annotations

from typing import Any

from koord.api.kubernetes.meta import LabelSelector, Object, Status
from koord.api.model import Submodel


class WebhookService(Submodel, frozen=True, kw_only=True):
    namespace: str = ""
    name: str = ""
    path: str | None = None
    port: int | None = None


class WebhookClientConfig(Submodel, frozen=True, kw_only=True):
    """WebhookClientConfig has either a URL or a service."""

    url: str | None = None
    service: WebhookService | None = None
    ca_bundle: str = ""  # base64 of PEM


class RuleWithOperations(Submodel, frozen=True, kw_only=True):
    operations: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    api_versions: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    scope: str | None = None


class MatchCondition(Submodel, frozen=True, kw_only=True):
    name: str = ""
    expression: str = ""


class ValidatingWebhook(Submodel, frozen=True, kw_only=True):
    name: str = ""
    client_config: WebhookClientConfig = WebhookClientConfig()
    rules: tuple[RuleWithOperations, ...] = ()
    failure_policy: str | None = None  # Ignore, Fail
    match_policy: str | None = None  # Exact, Equivalent
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    side_effects: str | None = None
    timeout_seconds: int | None = None
    admission_review_versions: tuple[str, ...] = ()
    match_conditions: tuple[MatchCondition, ...] = ()


class MutatingWebhook(ValidatingWebhook, frozen=True, kw_only=True):
    reinvocation_policy: str | None = None  # Never, IfNeeded


class ValidatingWebhookConfiguration(Object, frozen=True, kw_only=True):
    webhooks: tuple[ValidatingWebhook, ...] = ()


class MutatingWebhookConfiguration(Object, frozen=True, kw_only=True):
    webhooks: tuple[MutatingWebhook, ...] = ()


class GroupVersionKind(Submodel, frozen=True, kw_only=True):
    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(Submodel, frozen=True, kw_only=True):
    group: str = ""
    version: str = ""
    resource: str = ""


class UserInfo(Submodel, frozen=True, kw_only=True):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class AdmissionRequest(Submodel, frozen=True, kw_only=True):
    uid: str = ""
    kind: GroupVersionKind = GroupVersionKind()
    resource: GroupVersionResource = GroupVersionResource()
    sub_resource: str = ""
    request_kind: GroupVersionKind | None = None
    request_resource: GroupVersionResource | None = None
    request_sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""  # CREATE, UPDATE, DELETE, CONNECT
    user_info: UserInfo = UserInfo()
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None
    dry_run: bool | None = None
    options: dict[str, Any] | None = None


class AdmissionResponse(Submodel, frozen=True, kw_only=True):
    # No default: `allowed: false` must be written out, and omit_defaults drops what equals a default.
    uid: str
    allowed: bool
    status: Status | None = None
    patch: str | None = None  # base64 of a JSON patch
    patch_type: str | None = None
    audit_annotations: dict[str, str] = {}
    warnings: tuple[str, ...] = ()


class AdmissionReview(Submodel, frozen=True, kw_only=True):
    """AdmissionReview is not an object: it has no metadata and is never stored."""

    api_version: str = ""
    kind: str = ""
    request: AdmissionRequest | None = None
    response: AdmissionResponse | None = None
