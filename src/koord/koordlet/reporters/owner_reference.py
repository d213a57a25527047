"""Build the metadata of objects that a Node owns: they bear its name, and are deleted with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koord.api.kubernetes.node import Node


def owned_metadata(node: Node, labels: Mapping[str, str], annotations: Mapping[str, str]) -> dict[str, Any]:
    """Return the metadata of an object owned by the Node."""
    owner = {
        "apiVersion": "v1",
        "kind": "Node",
        "name": node.metadata.name,
        "uid": node.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": node.metadata.name,
        "labels": dict(labels),
        "annotations": dict(annotations),
        "ownerReferences": [owner],
    }
