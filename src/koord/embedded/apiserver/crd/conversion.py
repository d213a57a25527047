"""These functions convert an object between the versions of its CRD."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koord.embedded.apiserver.catalog import Conversion
from koord.embedded.apiserver.rest.copying import clone
from koord.embedded.apiserver.schema.defaulting import apply_defaults
from koord.embedded.apiserver.schema.node import Node
from koord.embedded.apiserver.schema.prune import prune

Obj = dict[str, Any]


def conversion(nodes: Mapping[str, Node], served: str, stored: str) -> Conversion:
    """Return the conversion between two versions; `nodes` is by apiVersion, `served` and `stored` are apiVersions."""

    def to_storage(obj: Obj) -> Obj:
        new = _moved(obj, stored)
        apply_defaults(new, nodes[stored])  # so that it is stored as it is served
        return new

    def from_storage(obj: Obj) -> Obj:
        return _moved(obj, served)

    def _moved(obj: Obj, target: str) -> Obj:
        new = clone(obj)
        was = nodes.get(new.get("apiVersion", ""))
        if was is not None:
            apply_defaults(new, was)
        new["apiVersion"] = target
        prune(new, nodes[target])
        return new

    return Conversion(to_storage, from_storage)


def is_settled(obj: Obj, node: Node, api_version: str) -> bool:
    """Return whether a stored object can be served as it is stored."""
    if obj.get("apiVersion") != api_version:
        return False
    new = clone(obj)
    apply_defaults(new, node)
    return not prune(new, node) and new == obj
