"""These functions build the resources that a CRD makes the server serve, one for each served version."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from koord.embedded.apiserver import refusal
from koord.embedded.apiserver.catalog import ScalePaths, ServedResource
from koord.embedded.apiserver.crd.columns import printer_columns
from koord.embedded.apiserver.crd.conversion import conversion, is_settled
from koord.embedded.apiserver.crd.strategy import custom_strategy
from koord.embedded.apiserver.refusal import Refusal
from koord.embedded.apiserver.schema.builtin import OBJECT_META, Subresource, builtin
from koord.embedded.apiserver.schema.custom import decode_custom
from koord.embedded.apiserver.schema.node import Node
from koord.embedded.apiserver.schema.structural import compile_schema

Obj = dict[str, Any]

VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
_PART_VERBS = ("get", "patch", "update")


def served_resources(definition: Obj, stored: Iterable[Obj]) -> list[ServedResource]:
    """Build the resources of an established CRD, the storage version first.

    `stored` are the objects in its collection.
    """
    spec = definition["spec"]
    group, versions = spec["group"], spec["versions"]
    nodes = {f"{group}/{v['name']}": compile_schema(v["schema"]["openAPIV3Schema"]) for v in versions}
    storage = next(v for v in versions if v["storage"])
    storage_version = f"{group}/{storage['name']}"
    settled = all(is_settled(obj, nodes[storage_version], storage_version) for obj in stored)
    found = []
    for version in sorted(versions, key=lambda v: not v["storage"]):
        if not version["served"]:
            continue
        resource = _resource(definition, version, nodes[f"{group}/{version['name']}"])
        resource.storage_hash = storage_hash(group, storage["name"], resource.kind)
        if not (settled and version is storage):
            resource.conversion = conversion(nodes, resource.api_version, storage_version)
        found.append(resource)
    return found


def _resource(definition: Obj, version: Obj, node: Node) -> ServedResource:
    spec = definition["spec"]
    names = definition["status"]["acceptedNames"]
    parts = version.get("subresources") or {}
    scale = parts.get("scale")
    subresources = {}
    if parts.get("status") is not None:
        subresources["status"] = Subresource("status", names["kind"], _PART_VERBS)
    if scale is not None:
        subresources["scale"] = Subresource("scale", "Scale", _PART_VERBS, "autoscaling", "v1")
    ending = definition["metadata"].get("deletionTimestamp")
    return ServedResource(
        group=spec["group"],
        version=version["name"],
        kind=names["kind"],
        plural=names["plural"],
        singular=names.get("singular", ""),
        list_kind=names.get("listKind", ""),
        namespaced=spec["scope"] == "Namespaced",
        verbs=VERBS,
        short_names=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        subresources=subresources,
        node=whole(node),
        strategy=custom_strategy(
            node,
            status="status" in subresources,
            selectable=[field["jsonPath"] for field in version.get("selectableFields", ())],
            refuse_create=functools.partial(_ending, names["plural"], spec["group"]) if ending else None,
        ),
        decode=functools.partial(decode_custom, node=node, preserve=bool(spec.get("preserveUnknownFields"))),
        custom=True,
        schema=version["schema"]["openAPIV3Schema"],
        columns=printer_columns(version.get("additionalPrinterColumns") or ()),
        scale=_scale_paths(scale) if scale is not None else ScalePaths(),
        warning=_warning(version, spec["group"], names["kind"]),
    )


def whole(node: Node) -> Node:
    """Return the schema with the fields of every object, which a CRD leaves out, for merging."""
    typed = {"apiVersion": Node(kind="string"), "kind": Node(kind="string")}
    fields = {**node.fields, **typed, "metadata": builtin().definition(OBJECT_META)}
    return msgspec.structs.replace(node, fields=fields)


def _ending(plural: str, group: str, obj: Obj) -> Refusal:
    why = "create not allowed while custom resource definition is terminating"
    return refusal.forbidden(plural, group, obj["metadata"].get("name", ""), why)


def _scale_paths(scale: Obj) -> ScalePaths:
    return ScalePaths(scale["specReplicasPath"], scale["statusReplicasPath"], scale.get("labelSelectorPath") or "")


def _warning(version: Obj, group: str, kind: str) -> str:
    if not version.get("deprecated"):
        return ""
    return version.get("deprecationWarning") or f"{group}/{version['name']} {kind} is deprecated"


def storage_hash(group: str, version: str, kind: str) -> str:
    """Return the hash by which clients notice that objects are stored in another version."""
    digest = hashlib.sha256(f"{group}/{version}/{kind}".encode()).digest()
    return base64.b64encode(digest[:8]).decode()
