"""Write objects as YAML that holds Helm's actions: conditional fields, inserted blocks, and expressions for scalars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import yaml

Obj = dict[str, Any]

HEADER = "{{- /* Written by tools/chart: change the declarations of `koord manifests` and run `make chart`. */ -}}\n"
CHECK = '{{- include "koord.checkValues" . -}}\n'  # first of all: without the defaults nothing below means what it says


class When(msgspec.Struct, frozen=True):
    """A field or an item that is there under a condition; with `otherwise`, another value is there else."""

    condition: str
    value: Any
    otherwise: Any = None


class Insert(msgspec.Struct, frozen=True):
    """A block that a pipeline renders. As a value it is the field's block; as a key it adds fields to its mapping."""

    pipeline: str


class Lines(msgspec.Struct, frozen=True):
    """Items of a list as template text; each line is indented like an item."""

    lines: tuple[str, ...]


class Block(msgspec.Struct, frozen=True):
    """A file inside of a ConfigMap: template text that is indented, below a `|`."""

    text: str


def document(obj: Obj, condition: str = "") -> str:
    """Return one object as a document of a template file."""
    text = "---\n" + "\n".join(fields(obj, 0)) + "\n"
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n" if condition else text


def template(documents: Sequence[str], condition: str = "") -> str:
    body = "".join(documents)
    return HEADER + CHECK + (f"{{{{- if {condition} }}}}\n{body}{{{{- end }}}}\n" if condition else body)


def fields(obj: Obj, indent: int) -> list[str]:
    lines: list[str] = []
    for key, value in obj.items():
        lines += _field(key, value, indent)
    return lines


def _field(key: Any, value: Any, indent: int) -> list[str]:
    pad = " " * indent
    if isinstance(key, Insert):
        return [f"{pad}{{{{- {key.pipeline} | nindent {indent} }}}}"]
    if isinstance(value, When):
        lines = [f"{pad}{{{{- if {value.condition} }}}}", *_field(key, value.value, indent)]
        if value.otherwise is not None:
            lines += [f"{pad}{{{{- else }}}}", *_field(key, value.otherwise, indent)]
        return [*lines, f"{pad}{{{{- end }}}}"]
    if isinstance(value, Insert):
        return [f"{pad}{key}:", f"{pad}  {{{{- {value.pipeline} | nindent {indent + 2} }}}}"]
    if isinstance(value, Block):
        return [f"{pad}{key}: |", *(f"{pad}  {line}".rstrip() for line in value.text.splitlines())]
    if isinstance(value, dict) and value:
        return [f"{pad}{key}:", *fields(value, indent + 2)]
    if isinstance(value, list) and value:
        return [f"{pad}{key}:", *(line for item in value for line in _item(item, indent))]
    return [f"{pad}{scalar(key)}: {scalar(value)}"]


def _item(item: Any, indent: int) -> list[str]:
    pad = " " * indent
    if isinstance(item, When):
        return [f"{pad}{{{{- if {item.condition} }}}}", *_item(item.value, indent), f"{pad}{{{{- end }}}}"]
    if isinstance(item, Lines):
        return [f"{pad}{line}" for line in item.lines]
    if isinstance(item, dict):
        first, *rest = fields(item, indent + 2)
        return [f"{pad}- {first.lstrip()}", *rest]
    return [f"{pad}- {scalar(item)}"]


def scalar(value: Any) -> str:
    """Return a scalar as YAML writes it. Text with an action in it is left as it is, with or without quotes."""
    if isinstance(value, str) and "{{" in value:
        return value
    return yaml.safe_dump(value, width=10**6, default_flow_style=True).removesuffix("\n").removesuffix("\n...")
