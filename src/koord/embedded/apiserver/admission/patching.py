"""A hook's JSON patch on the object that it was shown. Unlike a client's, a patch that does not apply is explained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from koord.api.merge.outcome import PatchFailed
from koord.embedded.apiserver.merge.json_patch import json_patch

Obj = dict[str, Any]


class PatchRefused(Exception):
    """The patch does not apply, or what it makes is no object of the kind."""


def patched(obj: Obj, operations: Sequence[Obj]) -> Obj:
    """A private object; the given one is shared. Raises PatchRefused."""
    whole = json_patch(obj, list(operations))
    if not isinstance(whole, PatchFailed):
        return whole
    made = obj
    for operation in operations:  # the second try finds the one to blame
        step = json_patch(made, [operation])
        if isinstance(step, PatchFailed):
            raise PatchRefused(_words(operation))
        made = step
    raise PatchRefused(whole.message)


def _words(operation: Obj) -> str:
    action, path = str(operation.get("op", "")), str(operation.get("path", ""))
    if action == "test":
        return f"testing value {path} failed: test failed"
    if action in ("add", "remove", "replace", "move", "copy"):
        where = str(operation.get("from", "")) if action in ("move", "copy") else path
        return f'{action} operation does not apply: doc is missing path: "{where}": missing value'
    return f"Unexpected kind: {action or 'unknown'}"
