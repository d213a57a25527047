"""This module holds apiextensions.k8s.io/v1 CustomResourceDefinition as programs read it. Schemas stay
unstructured; koord.api.crd generates ours.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import field

from koord.api.admission import WebhookClientConfig
from koord.api.meta import Object
from koord.api.part import Part


class CustomResourceDefinitionNames(Part, frozen=True, kw_only=True):
    plural: str = ""
    singular: str = ""
    short_names: tuple[str, ...] = ()
    kind: str = ""
    list_kind: str = ""
    categories: tuple[str, ...] = ()


class CustomResourceValidation(Part, frozen=True, kw_only=True):
    open_api_v3_schema: dict[str, Any] | None = field(default=None, name="openAPIV3Schema")


class CustomResourceSubresourceScale(Part, frozen=True, kw_only=True):
    spec_replicas_path: str = ""
    status_replicas_path: str = ""
    label_selector_path: str | None = None


class CustomResourceSubresources(Part, frozen=True, kw_only=True):
    status: dict[str, Any] | None = None  # present, and empty, when the subresource is served
    scale: CustomResourceSubresourceScale | None = None


class CustomResourceColumn(Part, frozen=True, kw_only=True):
    name: str = ""
    type: str = ""
    format: str = ""
    description: str = ""
    priority: int = 0
    json_path: str = ""


class SelectableField(Part, frozen=True, kw_only=True):
    json_path: str = ""


class CustomResourceDefinitionVersion(Part, frozen=True, kw_only=True):
    name: str = ""
    served: bool = False
    storage: bool = False
    deprecated: bool = False
    deprecation_warning: str | None = None
    schema: CustomResourceValidation | None = None
    subresources: CustomResourceSubresources | None = None
    additional_printer_columns: tuple[CustomResourceColumn, ...] = ()
    selectable_fields: tuple[SelectableField, ...] = ()


class WebhookConversion(Part, frozen=True, kw_only=True):
    client_config: WebhookClientConfig | None = None
    conversion_review_versions: tuple[str, ...] = ()


class CustomResourceConversion(Part, frozen=True, kw_only=True):
    strategy: str = ""  # None, Webhook
    webhook: WebhookConversion | None = None


class CustomResourceDefinitionSpec(Part, frozen=True, kw_only=True):
    group: str = ""
    names: CustomResourceDefinitionNames = CustomResourceDefinitionNames()
    scope: str = ""  # Namespaced, Cluster
    versions: tuple[CustomResourceDefinitionVersion, ...] = ()
    conversion: CustomResourceConversion | None = None
    preserve_unknown_fields: bool = False


class CustomResourceDefinitionCondition(Part, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    observed_generation: int = 0
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


class CustomResourceDefinitionStatus(Part, frozen=True, kw_only=True):
    conditions: tuple[CustomResourceDefinitionCondition, ...] = ()
    accepted_names: CustomResourceDefinitionNames = CustomResourceDefinitionNames()
    stored_versions: tuple[str, ...] = ()
    observed_generation: int = 0


class CustomResourceDefinition(Object, frozen=True, kw_only=True):
    spec: CustomResourceDefinitionSpec = CustomResourceDefinitionSpec()
    status: CustomResourceDefinitionStatus = CustomResourceDefinitionStatus()
