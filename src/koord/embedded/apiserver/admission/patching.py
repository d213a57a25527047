"""Apply the JSON patch of a hook. Unlike with a client's patch, the failing operation is explained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from koord.api.merge.outcome import PatchFailed
from koord.embedded.apiserver.merge.json_patch import json_patch

Obj = dict[str, Any]


class PatchRefused(Exception):
    """Raised when a patch does not apply, or its result is not an object of the kind."""


def patched(obj: Obj, operations: Sequence[Obj]) -> Obj:
    """Apply the patch and return a private object; the given one is shared. Raises HookPatchError."""
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
