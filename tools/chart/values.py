"""Read values.yaml with its comments, and make of it the schema of the chart and the table of docs/install.md.

A key is described by the comment above it, which begins with `# --`. A line `# @schema` holds JSON for what the default
cannot tell; without it the schema is that of the default: a mapping has the keys it has and no other.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import yaml

Obj = dict[str, Any]

_NUMBER: Obj = {"type": ["integer", "string"], "pattern": "^[0-9]+$"}  # charts are given numbers in quotes, too
_AMOUNTS: Obj = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
DEFINITIONS: Obj = {
    "resources": {
        "type": "object",
        "properties": {"requests": _AMOUNTS, "limits": _AMOUNTS},
        "additionalProperties": False,
    },
    "tolerations": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "key": {"type": "string"},
                "operator": {"enum": ["Exists", "Equal", "Lt", "Gt"]},
                "value": {"type": "string"},
                "effect": {"enum": ["", "NoSchedule", "PreferNoSchedule", "NoExecute"]},
                "tolerationSeconds": {"type": "integer"},
            },
            "additionalProperties": False,
        },
    },
    "extraArgs": {"type": "array", "items": {"type": "string", "pattern": "^--[a-z]"}},
}


class IgnoredValue(msgspec.Struct, frozen=True):
    """A value of Koordinator's chart that a file may have and that changes nothing; the release notes say so."""

    path: str
    schema: Obj
    reason: str


IGNORED = (
    IgnoredValue("installation.roleListGroups", {"type": "array"}, "roles hold what the programs do, and no more"),
    IgnoredValue(
        "koordlet.hostDirs.kubeletConfigDir", {"type": "string"}, "koordlet asks the kubelet with its own account"
    ),
    IgnoredValue("koordlet.hostDirs.koordletTSDBDir", {"type": "string"}, "samples are kept in memory"),
    IgnoredValue(
        "koordYarnOperator.resyncPeriod", {"type": ["string", "integer"]}, "every round looks at every NodeManager"
    ),
    IgnoredValue("scheduler.compatible122FeatureGates", {"type": "string"}, "Kubernetes 1.32 and later are supported"),
    IgnoredValue(
        "scheduler.compatibleBelow122FeatureGates", {"type": "string"}, "Kubernetes 1.32 and later are supported"
    ),
)


class ChartValue(msgspec.Struct, frozen=True):
    path: tuple[str, ...]
    default: Any
    help: str
    schema: Obj | None  # as a comment states it


def read_values(text: str) -> list[ChartValue]:
    """Return the described values in their order; raise for a value that nobody described."""
    found: list[ChartValue] = []
    lines = text.splitlines()
    _collect(yaml.compose(text), (), lines, found)
    return found


def _collect(node: Any, path: tuple[str, ...], lines: list[str], found: list[ChartValue]) -> None:
    for key, value in node.value:
        here = (*path, key.value)
        comment = _comment_above(lines, key.start_mark.line)
        if not comment and isinstance(value, yaml.MappingNode) and value.value:
            _collect(value, here, lines, found)
            continue
        stated = [line.removeprefix("@schema ") for line in comment if line.startswith("@schema ")]
        said = " ".join(line for line in comment if not line.startswith("@schema "))
        if not said.startswith("-- "):
            raise ValueError(f"values.yaml: nothing says what {'.'.join(here)} is")
        default = yaml.safe_load(yaml.serialize(value))
        schema = json.loads(stated[0]) if stated else None
        found.append(ChartValue(here, default, said.removeprefix("-- "), schema))


def _comment_above(lines: list[str], number: int) -> list[str]:
    """Return the comment that ends right above a line."""
    block: list[str] = []
    while number > 0 and (match := re.match(r"\s*# ?(.*)", lines[number - 1])):
        block.insert(0, match[1].strip())
        number -= 1
    return block


def values_schema(values: list[ChartValue]) -> str:
    root = _closed()
    root["properties"]["global"] = {"type": "object"}  # Helm adds it where the chart is a part of another
    for value in values:
        _place(root, value.path, {"description": value.help, **(value.schema or _schema_of(value.default))})
    for ignored in IGNORED:
        note = f"Accepted without effect: {ignored.reason}."
        _place(root, tuple(ignored.path.split(".")), {"description": note, **ignored.schema})
    whole = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of koord", **root}
    return json.dumps({**whole, "$defs": DEFINITIONS}, indent=2) + "\n"


def _place(root: Obj, path: tuple[str, ...], schema: Obj) -> None:
    *parents, last = path
    here = root
    for name in parents:
        here = here["properties"].setdefault(name, _closed())
    here["properties"][last] = schema


def _closed() -> Obj:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def _schema_of(default: Any) -> Obj:
    if isinstance(default, bool):
        return {"type": "boolean"}
    if isinstance(default, int) or (isinstance(default, str) and default.isdecimal()):
        return _NUMBER
    if isinstance(default, str):
        return {"type": "string"}
    return {"type": "array" if isinstance(default, list) else "object"}


def values_table(values: list[ChartValue]) -> str:
    """Return the values as a table of Markdown, then those that change nothing."""
    rows = ["| value | default | meaning |", "|---|---|---|"]
    rows += [
        f"| `{'.'.join(one.path)}` | {_shown(one.default)} | {one.help.replace('|', chr(92) + '|')} |" for one in values
    ]
    rows += ["", "Values of Koordinator's chart that are accepted and change nothing; `helm install` says so:", ""]
    rows += ["| value | why |", "|---|---|"]
    rows += [f"| `{one.path}` | {one.reason} |" for one in IGNORED]
    return "\n".join(rows) + "\n"


def _shown(default: Any) -> str:
    return f"`{json.dumps(default)}`" if default not in ("", None) else ""


def ignored_file() -> str:
    return yaml.safe_dump([{"path": one.path, "reason": one.reason} for one in IGNORED], sort_keys=False, width=160)
