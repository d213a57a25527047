"""The validating admission of slo-controller-config: changed documents must be readable, in range and
unambiguous.

Only the documents that upstream checks are checked, so that what one accepts the other does. `koord config
check`
inspects all of them, offline. A node may match one strategy of a document only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from koord.api.config.field_error import FieldError
from koord.api.config.lenient import read
from koord.api.config.slo import colocation, keys, strategies
from koord.api.protocol import REASON_NODE_CONFLICT
from koord.values.quotation import in_json
from koord.values.selector import Selector, SelectorError

_MODELS: dict[str, type[Any]] = {
    keys.COLOCATION: colocation.ColocationConfig,
    keys.RESOURCE_THRESHOLD: strategies.ThresholdConfig,
    keys.RESOURCE_QOS: strategies.QOSConfig,
    keys.SYSTEM: strategies.SystemConfig,
    keys.CPU_BURST: strategies.CPUBurstConfig,
}


class Group(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    strategies: tuple[tuple[str, Selector], ...]  # name and nodes

    def picking(self, labels: Mapping[str, str]) -> list[str]:
        """Return the names of the strategies that match a node with these labels."""
        return [name for name, selector in self.strategies if selector.matches(labels)]


def groups(data: Mapping[str, str]) -> list[Group]:
    """Return the groups in the order of checking; a document that cannot be read is left out."""
    found = []
    for key in keys.CHECKED:
        document = read(data.get(key, ""), _MODELS[key])
        if isinstance(document, FieldError):
            continue
        if key == keys.RESOURCE_QOS and isinstance(read(data.get(keys.SYSTEM, ""), _MODELS[keys.SYSTEM]), FieldError):
            continue  # upstream reads the two together
        entries = document.node_configs if key == keys.COLOCATION else document.node_strategies
        made = _group(key, entries)
        if made is not None:
            found.append(made)
    return found


def _group(key: str, entries: Iterable[Any]) -> Group | None:
    made = []
    for entry in entries:
        given = entry.node_selector
        if given is None or not (given.match_labels or given.match_expressions):
            return None
        try:
            expressions = [(e.key, e.operator, e.values) for e in given.match_expressions]
            made.append((entry.name, Selector.of(given.match_labels, expressions)))
        except SelectorError:
            return None
    return Group(key=key, strategies=tuple(made))


def conflict_text(key: str, names: list[str], node: str) -> str:
    """Return the refusal for a node that several strategies match, in the frame that upstream's consoles look for."""
    message = f'{{"config":{in_json(key)},"strategies":{in_json(names)},"exampleNodes":{in_json([node])}}}'
    return f'___{{"reason":{in_json(REASON_NODE_CONFLICT)},"message":{message}}}___'
