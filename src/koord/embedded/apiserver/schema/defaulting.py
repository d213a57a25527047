"""These functions apply the defaults of a custom object's schema.

Built-in kinds have their defaults in `kinds`.
"""

from __future__ import annotations

import copy
from typing import Any

from koord.embedded.apiserver.schema.node import Node
from koord.embedded.apiserver.schema.structural import has_default


def apply_defaults(value: Any, node: Node | None) -> None:
    """Apply defaults in place, where a value is absent, or null where the schema does not allow it.

    Values that come from a default are defaulted in turn.
    """
    if node is None:
        return
    if isinstance(value, dict):
        for key, field in node.fields.items():
            if has_default(field) and (key not in value or (value[key] is None and not field.nullable)):
                value[key] = copy.deepcopy(field.default)
        for key, item in value.items():
            known = node.fields.get(key)
            if known is None and node.values is not None:
                known = node.values
                if item is None and not known.nullable and has_default(known):
                    value[key] = copy.deepcopy(known.default)
            apply_defaults(value[key], known)
    elif isinstance(value, list) and node.items is not None:
        for at, item in enumerate(value):
            if item is None and not node.items.nullable and has_default(node.items):
                value[at] = copy.deepcopy(node.items.default)
            apply_defaults(value[at], node.items)
