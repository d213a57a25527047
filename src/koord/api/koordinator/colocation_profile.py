"""This module holds config.koordinator.sh/v1alpha1: profiles that the pod webhook applies to matching pods."""

from __future__ import annotations

from typing import Annotated, Any

from koord.api.kubernetes.meta import LabelSelector, Object
from koord.api.model import Submodel
from koord.api.schema_markers import PRESERVE_UNKNOWN, Int32, IntOrString, SchemaRule


class ClusterColocationProfileSpec(Submodel, frozen=True, kw_only=True):
    """An absent or empty selector matches every pod: here null does not mean nothing, as it does elsewhere."""

    namespace_selector: LabelSelector | None = None
    selector: LabelSelector | None = None
    probability: IntOrString | None = None
    qos_class: Annotated[str, SchemaRule(enum=("LSE", "LSR", "LS", "BE", "SYSTEM"))] = ""
    priority_class_name: str = ""
    koordinator_priority: Int32 | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    label_keys_mapping: dict[str, str] = {}  # source key -> destination key
    annotation_keys_mapping: dict[str, str] = {}
    label_suffixes: dict[str, str] = {}
    scheduler_name: str = ""
    patch: Annotated[dict[str, Any], PRESERVE_UNKNOWN] | None = None


class ClusterColocationProfileStatus(Submodel, frozen=True, kw_only=True):
    """Empty upstream."""


class ClusterColocationProfile(Object, frozen=True, kw_only=True):
    """What matching pods get at creation: a QoS class, a priority, labels, a scheduler, a patch."""

    spec: ClusterColocationProfileSpec = ClusterColocationProfileSpec()
    status: ClusterColocationProfileStatus = ClusterColocationProfileStatus()
