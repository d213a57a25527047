"""Compile and evaluate the CEL selectors of dynamic resource allocation, which choose devices.

An expression sees one variable, `device`: its driver, its attributes and its capacities by domain. A name without a
domain belongs to the driver's; an unknown domain is an empty map, an unknown name in it an error.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec

from koord.cel.evaluation import evaluate, unknown_names
from koord.cel.semantic_version import SemanticVersion
from koord.cel.syntax import CelError, ListOf, Literal, MapOf, Node, parse
from koord.values.quantity import Quantity

MAX_EXPRESSION_BYTES = 10 * 1024
MAX_SELECTOR_STEPS = 100_000
_VARIABLES = frozenset(("device", "cel"))  # with the macro cel.bind, which policies do not have

AttributeValue = bool | int | str | SemanticVersion


class _Domains(dict[str, dict[str, Any]]):
    """Names by domain; a domain that is not there has no names."""

    def __missing__(self, domain: str) -> dict[str, Any]:
        return {}


class DeviceSelector(msgspec.Struct, frozen=True):
    text: str
    tree: Node

    def matches(self, device: Mapping[str, Any]) -> bool | CelError:
        """Return whether the selector takes a device, which `cel_device` made, or why it cannot be told."""
        found = evaluate(self.tree, {"device": device}, MAX_SELECTOR_STEPS)
        if isinstance(found, bool | CelError):
            return found
        return CelError(f"must evaluate to bool, got {type(found).__name__}")


@functools.lru_cache(maxsize=4096)
def compile_selector(text: str) -> DeviceSelector | CelError:
    """Compile a selector, or return why it does not compile."""
    tree = parse(text)
    if isinstance(tree, CelError):
        return tree
    unknown = unknown_names(tree, _VARIABLES)
    if unknown:
        return CelError("; ".join(unknown))
    if isinstance(tree, ListOf | MapOf) or (isinstance(tree, Literal) and not isinstance(tree.value, bool)):
        return CelError("must evaluate to bool or the unknown type")
    return DeviceSelector(text, tree)


def cel_device(
    driver: str,
    attributes: Mapping[str, AttributeValue],
    capacity: Mapping[str, Quantity],
    *,
    allow_multiple_allocations: bool = False,
) -> Mapping[str, Any]:
    """Return the value of `device` for a device with these attributes and capacities by their stated names."""
    return {
        "driver": driver,
        "attributes": _by_domain(attributes, driver),
        "capacity": _by_domain(capacity, driver),
        "allowMultipleAllocations": allow_multiple_allocations,
    }


def _by_domain(values: Mapping[str, Any], driver: str) -> _Domains:
    found = _Domains()
    for name, value in values.items():
        domain, slash, own = name.rpartition("/")
        found.setdefault(domain if slash else driver, {})[own] = value
    return found
