"""This module decodes custom objects: metadata, pruning of unknown fields, defaults, dropping of nulls.

It also collects the errors of strict decoding. Values are validated by `custom_validation`.
"""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.schema.node import Node
from koord.embedded.apiserver.schema.structural import has_default

META = frozenset(("apiVersion", "kind", "metadata"))


def prune(obj: Any, node: Node, *, root: bool = True) -> list[str]:
    """Prune the object in place and return the sorted paths of the removed fields.

    `root`: the object is a resource, so its apiVersion, kind and metadata stay whatever the schema says.
    """
    gone: list[str] = []
    _prune(obj, node, "", gone, resource=root or node.embedded)
    return sorted(gone)


def _prune(value: Any, node: Node | None, path: str, gone: list[str], *, resource: bool) -> None:
    if isinstance(value, dict):
        _prune_object(value, node, path, gone, resource=resource)
    elif isinstance(value, list):
        if node is not None and node.preserve_unknown:
            # Inside a free list only free items stay free: the rule is inherited one level at a time.
            for at, item in enumerate(value):
                if node.items is not None:
                    _keep(item, node.items, f"{path}[{at}]", gone)
            return
        items = node.items if node is not None else None
        for at, item in enumerate(value):
            _prune(item, items, f"{path}[{at}]", gone, resource=items is not None and items.embedded)


def _prune_object(value: dict[str, Any], node: Node | None, path: str, gone: list[str], *, resource: bool) -> None:
    free = node is not None and node.preserve_unknown
    for key in list(value):
        if resource and key in META:
            continue
        at = f"{path}.{key}" if path else key
        known = node.fields.get(key, node.values) if node is not None else None
        if known is not None:
            _prune(value[key], _or_nothing(known), at, gone, resource=known.embedded)
        elif not free:
            if path or key not in META:
                gone.append(at)
            del value[key]


def _keep(value: Any, node: Node, path: str, gone: list[str]) -> None:
    """Prune the known fields inside an item of a list that preserves unknown fields; the item keeps its own."""
    if isinstance(value, dict):
        for key, item in value.items():
            if node.embedded and key in META:
                continue
            known = node.fields.get(key, node.values)
            if known is not None:
                _prune(item, _or_nothing(known), f"{path}.{key}", gone, resource=known.embedded)
    elif isinstance(value, list) and node.items is not None:
        for at, item in enumerate(value):
            _keep(item, node.items, f"{path}[{at}]", gone)


def _or_nothing(node: Node) -> Node | None:
    """Return None for `additionalProperties: true`, which allows a value without saying what is in it."""
    blank = node.kind == "any" and not (node.preserve_unknown or node.fields or node.items or node.values)
    return None if blank else node


def drop_nulls(value: Any, node: Node | None) -> None:
    """Remove map entries that are null where the schema neither allows null nor has a default."""
    if isinstance(value, dict):
        for key in list(value):
            known = node.fields.get(key, node.values) if node is not None else None
            if value[key] is None and known is not None and not known.nullable and not has_default(known):
                if _or_nothing(known) is not None:
                    del value[key]
            else:
                drop_nulls(value[key], known)
    elif isinstance(value, list):
        for item in value:
            drop_nulls(item, node.items if node is not None else None)
