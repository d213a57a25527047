"""Read a configuration file as strictly as kube-scheduler does, and write the effective configuration in full.

Defaults are filled in by others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from koord.api.config import document
from koord.api.config.field_error import FieldError
from koord.api.config.scheduler.args import API_VERSION
from koord.api.config.scheduler.configuration import KIND, KubeSchedulerConfiguration

# What PyYAML lets escape from scalars with a wrong explicit tag or absurd nesting, beside its own error type.
_YAML_TROUBLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError, OverflowError)


class _Loader(yaml.SafeLoader):
    """Load safe YAML in which a date stays text, as in Kubernetes' own tools."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(source: str | bytes | Mapping[str, Any]) -> KubeSchedulerConfiguration | list[FieldError]:
    """Load a configuration from YAML or JSON text, or from parsed data. Only a file's first document counts."""
    read = source if isinstance(source, Mapping) else _parsed(source)
    if isinstance(read, list):
        return read
    errors = [
        FieldError(field, read.get(field), f"must be {wanted!r}")
        for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND))
        if read.get(field) != wanted
    ]
    return errors or document.load(_whole(read), KubeSchedulerConfiguration)


def _parsed(text: str | bytes) -> dict[str, Any] | list[FieldError]:
    try:
        loader = _Loader(text)
        node = loader.get_node() if loader.check_node() else None
        repeated = [] if node is None else _repeated(node, "", set())
        if repeated:
            return repeated
        value = {} if node is None else loader.construct_document(node)
    except _YAML_TROUBLE as error:
        return [FieldError("", None, f"is not YAML: {' '.join(str(error).split())}")]
    if not isinstance(value, dict):
        return [FieldError("", None, f"must be a map with apiVersion {API_VERSION!r} and kind {KIND!r}")]
    return value


def _repeated(node: yaml.Node, path: str, met: set[int]) -> list[FieldError]:
    """Return an error for each key that a map has twice; `met` keeps aliases from being walked for ever."""
    if id(node) in met:
        return []
    met.add(id(node))
    errors: list[FieldError] = []
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            here = f"{path}.{name}" if path else name
            if name in seen:
                errors.append(FieldError(here, None, f"is set twice, in lines {seen[name]} and {line}"))
            seen.setdefault(name, line)
            errors += _repeated(value, here, met)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            errors += _repeated(value, f"{path}[{index}]", met)
    return errors


def _whole(value: Any) -> Any:
    """Return the data with 3.0 as 3: JSON has one kind of number, and so has a configuration."""
    if isinstance(value, Mapping):
        return {key: _whole(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
