"""These functions migrate from client-side apply, by kubectl's last-applied-configuration annotation."""

from __future__ import annotations

import json

from koord.api.merge.outcome import Obj
from koord.embedded.apiserver.merge import entries, fieldset
from koord.embedded.apiserver.merge.compare import compare
from koord.embedded.apiserver.merge.conform import complaint
from koord.embedded.apiserver.merge.fieldset import Fields
from koord.embedded.apiserver.merge.shape import mentioned
from koord.embedded.apiserver.schema.node import Node

MANAGER = "kubectl"
ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
MAX_ANNOTATIONS_BYTES = 256 * 1024


def migrating(live: Obj, node: Node, api_version: str) -> Fields | None:
    """Return the fields of the annotation's configuration that the live object has unchanged.

    None without a usable one.
    """
    text = _annotations(live).get(ANNOTATION)
    if not text:
        return None
    try:
        config = json.loads(text)
    except ValueError:
        return None
    if not isinstance(config, dict) or config.get("apiVersion") != api_version or complaint(config, node) is not None:
        return None
    found = compare(config, entries.bare(live), node)
    fields = mentioned(config, node)
    for gone in (found.modified, found.added, found.removed):
        fields = fieldset.difference(fields, gone)
    return fields


def refresh(obj: Obj, config: Obj) -> None:
    """Update an existing annotation from the applied configuration; drop it when it exceeds the size limit."""
    annotations = _annotations(obj)
    if not annotations.get(ANNOTATION):
        return
    kept = {k: v for k, v in _annotations(config).items() if k != ANNOTATION}
    metadata = {**(config.get("metadata") or {}), "annotations": kept}
    if not kept:
        del metadata["annotations"]
    text = json.dumps({**config, "metadata": metadata}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    changed = {**annotations, ANNOTATION: text + "\n"}
    if sum(len(k.encode()) + len(v.encode()) for k, v in changed.items()) > MAX_ANNOTATIONS_BYTES:
        del changed[ANNOTATION]
    obj["metadata"]["annotations"] = changed


def _annotations(obj: Obj) -> dict[str, str]:
    found: dict[str, str] = (obj.get("metadata") or {}).get("annotations") or {}
    return found
