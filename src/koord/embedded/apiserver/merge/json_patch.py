"""This module implements RFC 6902 as kube-apiserver does: looser, and without a reason on failure.

Looser: `replace` may set a missing key, indexes may be negative, a missing `value` is null, `copy` of a missing key
adds null, and the part of a path before its first slash is ignored. The document is shared, never changed.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from koord.api.patch.merge_patch import Obj, PatchFailed, bad_patch, strictly_equal, unprocessable
from koord.values import go_format

MAX_OPERATIONS = 10_000
MAX_COPIED_BYTES = 3 * 1024 * 1024

_INDEX = re.compile(r"[+-]?[0-9]+", re.ASCII)


class _OperationFailed(Exception):
    """This exception says that the operation does not apply; the response is the same whatever the cause."""


def json_patch(doc: Obj, patch: Any) -> Obj | PatchFailed:
    """Return the document after every operation of a decoded patch."""
    wrong = _decode_problem(patch)
    if wrong is not None:
        return bad_patch(f"error decoding patch: json: cannot unmarshal {wrong}")
    operations: list[Obj] = [operation or {} for operation in patch or ()]
    if len(operations) > MAX_OPERATIONS:
        words = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        return PatchFailed(413, f"Request entity too large: {words}", "RequestEntityTooLarge")
    run = _PatchRun(doc)
    try:
        for operation in operations:
            run.run_operation(operation)
    except _OperationFailed:
        return unprocessable()
    result = run.root["root"]
    return result if isinstance(result, dict) else unprocessable()


def _decode_problem(patch: Any) -> str | None:
    if patch is None:
        return None
    if not isinstance(patch, list):
        return f"{go_format.json_kind_name(patch)} into Go value of type []handlers.jsonPatchOp"
    for operation in patch:
        if operation is None:
            continue
        if not isinstance(operation, dict):
            return f"{go_format.json_kind_name(operation)} into Go value of type handlers.jsonPatchOp"
        for name in ("op", "path", "from"):
            value = operation.get(name)
            if value is not None and not isinstance(value, str):
                return f"{go_format.json_kind_name(value)} into Go struct field jsonPatchOp.{name} of type string"
    return None


class _PatchRun:
    """A _PatchRun is one patch in progress. Containers on a changed path are copied once and then changed in place."""

    def __init__(self, doc: Any) -> None:
        self.root: dict[str, Any] = {"root": doc}
        self._copied: dict[
            int, Any
        ] = {}  # id -> container copied by this run; holding it keeps the id from being used again
        self._copied_bytes = 0

    def run_operation(self, operation: Obj) -> None:
        match operation.get("op"):
            case "add":
                self._add(self._path(operation, "path"), operation.get("value"))
            case "remove":
                self._remove(self._path(operation, "path"))
            case "replace":
                self._replace(self._path(operation, "path"), operation.get("value"))
            case "move":
                source = self._path(operation, "from")
                value = self._get(source)
                self._remove(source)
                self._add(self._path(operation, "path"), value)
            case "test":
                self._test(self._path(operation, "path"), operation.get("value"))
            case "copy":
                value = self._get(self._path(operation, "from"))
                self._copied_bytes += len(msgspec.json.encode(value)) if value is not None else 0
                if self._copied_bytes > MAX_COPIED_BYTES:
                    raise _OperationFailed
                self._copied.clear()  # what was copied is in two places now, so nothing may be changed in place
                self._add(self._path(operation, "path"), value)
            case _:
                raise _OperationFailed

    @staticmethod
    def _path(operation: Obj, name: str) -> str:
        path = operation.get(name)
        if path is None:
            raise _OperationFailed
        return str(path)

    def _find(self, path: str, *, change: bool) -> tuple[Any, str]:
        """Return the container that holds the last step of a path, and that step."""
        parts = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")]
        if len(parts) < 2:
            raise _OperationFailed
        holder: Any = self.root
        key: Any = "root"
        for part in [*parts[1:-1], None]:
            here = holder[key]
            if not isinstance(here, dict | list):
                raise _OperationFailed
            if change and id(here) not in self._copied:
                here = here.copy()
                self._copied[id(here)] = here
                holder[key] = here
            holder = here
            if part is not None:
                key = self._step_into(holder, part)
        return holder, parts[-1]

    @staticmethod
    def _step_into(holder: Any, part: str) -> Any:
        if isinstance(holder, list):
            return _parse_index(part, len(holder), len(holder) - 1)
        if part not in holder:
            raise _OperationFailed
        return part

    def _get(self, path: str) -> Any:
        holder, key = self._find(path, change=False)
        if isinstance(holder, list):
            return holder[_parse_index(key, len(holder), len(holder) - 1)]
        return holder.get(key)

    def _add(self, path: str, value: Any) -> None:
        holder, key = self._find(path, change=True)
        if isinstance(holder, list):
            size = len(holder) + 1
            holder.insert(len(holder) if key == "-" else _parse_index(key, size, size - 1), value)
        else:
            holder[key] = value

    def _remove(self, path: str) -> None:
        holder, key = self._find(path, change=True)
        if isinstance(holder, list):
            del holder[_parse_index(key, len(holder), len(holder) - 1)]
        elif key in holder:
            del holder[key]
        else:
            raise _OperationFailed

    def _replace(self, path: str, value: Any) -> None:
        if path == "":
            if not isinstance(value, dict | list):
                raise _OperationFailed
            self.root["root"] = value
            return
        holder, key = self._find(path, change=True)
        if isinstance(holder, list):
            holder[_parse_index(key, len(holder), len(holder) - 1)] = value
        else:
            holder[key] = value

    def _test(self, path: str, value: Any) -> None:
        found = self.root["root"] if path == "" else self._get(path)
        if not strictly_equal(found, value):
            raise _OperationFailed


def _parse_index(text: str, size: int, last: int) -> int:
    if not _INDEX.fullmatch(text):
        raise _OperationFailed
    index = int(text)
    if index < 0:
        index += size
    if not 0 <= index <= last:
        raise _OperationFailed
    return index
