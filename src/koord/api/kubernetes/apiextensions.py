"""This module holds apiextensions.k8s.io/v1 CustomResourceDefinition with unstructured schemas."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import field

from koord.api.kubernetes.admission import WebhookClientConfig
from koord.api.kubernetes.meta import Object
from koord.api.model import Submodel


class CustomResourceDefinitionNames(Submodel, frozen=True, kw_only=True):
    plural: str = ""
    singular: str = ""
    short_names: tuple[str, ...] = ()
    kind: str = ""
    list_kind: str = ""
    categories: tuple[str, ...] = ()


class CustomResourceValidation(Submodel, frozen=True, kw_only=True):
    open_api_v3_schema: dict[str, Any] | None = field(default=None, name="openAPIV3Schema")


class CustomResourceSubresourceScale(Submodel, frozen=True, kw_only=True):
    spec_replicas_path: str = ""
    status_replicas_path: str = ""
    label_selector_path: str | None = None


class CustomResourceSubresources(Submodel, frozen=True, kw_only=True):
    status: dict[str, Any] | None = None  # present, and empty, when the subresource is served
    scale: CustomResourceSubresourceScale | None = None


class CustomResourceColumn(Submodel, frozen=True, kw_only=True):
    name: str = ""
    type: str = ""
    format: str = ""
    description: str = ""
    priority: int = 0
    json_path: str = ""


class SelectableField(Submodel, frozen=True, kw_only=True):
    json_path: str = ""


class CustomResourceDefinitionVersion(Submodel, frozen=True, kw_only=True):
    name: str = ""
    served: bool = False
    storage: bool = False
    deprecated: bool = False
    deprecation_warning: str | None = None
    schema: CustomResourceValidation | None = None
    subresources: CustomResourceSubresources | None = None
    additional_printer_columns: tuple[CustomResourceColumn, ...] = ()
    selectable_fields: tuple[SelectableField, ...] = ()


class WebhookConversion(Submodel, frozen=True, kw_only=True):
    client_config: WebhookClientConfig | None = None
    conversion_review_versions: tuple[str, ...] = ()


class CustomResourceConversion(Submodel, frozen=True, kw_only=True):
    strategy: str = ""  # None, Webhook
    webhook: WebhookConversion | None = None


class CustomResourceDefinitionSpec(Submodel, frozen=True, kw_only=True):
    group: str = ""
    names: CustomResourceDefinitionNames = CustomResourceDefinitionNames()
    scope: str = ""  # Namespaced, Cluster
    versions: tuple[CustomResourceDefinitionVersion, ...] = ()
    conversion: CustomResourceConversion | None = None
    preserve_unknown_fields: bool = False


class CustomResourceDefinitionCondition(Submodel, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    observed_generation: int = 0
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


class CustomResourceDefinitionStatus(Submodel, frozen=True, kw_only=True):
    conditions: tuple[CustomResourceDefinitionCondition, ...] = ()
    accepted_names: CustomResourceDefinitionNames = CustomResourceDefinitionNames()
    stored_versions: tuple[str, ...] = ()
    observed_generation: int = 0


class CustomResourceDefinition(Object, frozen=True, kw_only=True):
    spec: CustomResourceDefinitionSpec = CustomResourceDefinitionSpec()
    status: CustomResourceDefinitionStatus = CustomResourceDefinitionStatus()
