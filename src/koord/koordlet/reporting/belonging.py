"""Objects that belong to a node: they bear its name, and go when it goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koord.api.node import Node


def metadata_of(node: Node, labels: Mapping[str, str], annotations: Mapping[str, str]) -> dict[str, Any]:
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
