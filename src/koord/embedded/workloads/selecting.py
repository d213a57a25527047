"""Label selectors of workloads, and index keys that find who selects an object without asking everyone.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from koord.api.meta import LabelSelector
from koord.values.requirement import SelectorError
from koord.values.selector import NOTHING, Operator, Selector


def selector_of(spec: LabelSelector | None) -> Selector:
    """Return the selector; an absent one selects nothing. A malformed one, which servers refuse to store, does
    too.
    """
    if spec is None:
        return NOTHING
    try:
        return Selector.of(spec.match_labels, [(e.key, e.operator, e.values) for e in spec.match_expressions])
    except SelectorError:
        return NOTHING


def pin(namespace: str, selector: Selector) -> str:
    """Return the one index key under which every object that the selector can match looks for it."""
    if selector.nothing:
        return ""
    for requirement in selector.requirements:
        if requirement.operator is Operator.EQUALS and requirement.values:
            return f"{namespace} {requirement.key}={requirement.values[0]}"
    return f"{namespace} *"


def pins(namespace: str, labels: Mapping[str, str]) -> Iterator[str]:
    """Yield all index keys under which a selector that matches these labels may be stored."""
    yield f"{namespace} *"
    for key, value in labels.items():
        yield f"{namespace} {key}={value}"
