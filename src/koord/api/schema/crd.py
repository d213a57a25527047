"""This module generates the CustomResourceDefinitions of every kind in koord.api.custom from its models."""

from __future__ import annotations

from typing import Any

from koord.api.koordinator.custom_kinds import CUSTOM_KINDS, SIGS_SCHEDULING_GROUP, TOPOLOGY_GROUP
from koord.api.kubernetes.resource import Resource
from koord.api.schema.k8s_schemas import KUBERNETES_SCHEMAS
from koord.api.schema.structural import root_schema

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
