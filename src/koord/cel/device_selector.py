"""Compile and evaluate the CEL selectors of dynamic resource allocation, which choose devices.

An expression sees one variable, `device`: its driver, its attributes and its capacities by domain. A name without a
domain belongs to the driver's; an unknown domain is an empty map, an unknown name in it an error.

What a selector reads of a device is found out beforehand, so that devices that agree in it need not be asked twice.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec

from koord.cel.evaluation import evaluate, unknown_names
from koord.cel.kubernetes_functions import SemanticVersion
from koord.cel.syntax import (
    Call,
    CelError,
    Comprehension,
    Identifier,
    ListOf,
    Literal,
    MapOf,
    Node,
    Presence,
    Select,
    parse,
)
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


ATTRIBUTES, CAPACITY = "attributes", "capacity"
DeviceName = tuple[str, str]  # attributes or capacity, full name with its domain
_ALWAYS_SEEN = ("driver", "allowMultipleAllocations")
_LOOKUPS = ("_[_]", "_[?_]", "_?._")


def names_read(tree: Node) -> frozenset[DeviceName] | None:
    """Return the attributes and capacities that an expression can read; None where that cannot be told.

    What every device has, its driver and whether it may be allocated more than once, is not listed.
    """
    found: set[DeviceName] = set()
    return frozenset(found) if _collect(tree, found) else None


def driver_required(tree: Node) -> str | None:
    """Return the driver without which an expression is false, whatever else the device is; None where there is none.

    It is looked for among the operands of `&&`, where false wins over an error.
    """
    if not isinstance(tree, Call) or len(tree.arguments) != 2:
        return None
    left, right = tree.arguments
    if tree.function == "_&&_":
        return driver_required(left) or driver_required(right)
    if tree.function != "_==_":
        return None
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Select) and _is_device(one.operand) and one.field == "driver" and isinstance(other, Literal):
            return other.value if isinstance(other.value, str) else None
    return None


def _collect(node: Any, found: set[DeviceName]) -> bool:
    """Add what the tree reads; return False where it uses `device` in a way that names nothing."""
    if isinstance(node, Identifier):
        return node.name != "device"
    if isinstance(node, Comprehension) and "device" in (node.variable, node.value_variable):
        return False  # another variable of that name
    if isinstance(node, Select) and _is_device(node.operand):
        return node.field in _ALWAYS_SEEN
    name = _name_read(node)
    if name is not None:
        found.add(name)
        return True
    return all(_collect(part, found) for part in _parts(node))


def _name_read(node: Any) -> DeviceName | None:
    """Return the name that this very node looks up in a domain: by field, index, `has` or `in`."""
    if isinstance(node, Select | Presence):
        return _in_domain(node.operand, node.field)
    if isinstance(node, Call) and node.target is None and len(node.arguments) == 2:
        first, second = node.arguments
        if node.function in _LOOKUPS and isinstance(second, Literal):
            return _in_domain(first, second.value)
        if node.function == "@in" and isinstance(first, Literal):
            return _in_domain(second, first.value)
    return None


def _in_domain(domain: Node, name: Any) -> DeviceName | None:
    is_lookup = isinstance(domain, Call) and domain.function == "_[_]" and domain.target is None
    if not is_lookup or not isinstance(name, str):
        return None
    assert isinstance(domain, Call)
    kind, which = domain.arguments
    if not isinstance(kind, Select) or not _is_device(kind.operand) or kind.field not in (ATTRIBUTES, CAPACITY):
        return None
    if not isinstance(which, Literal) or not isinstance(which.value, str):
        return None
    return kind.field, f"{which.value}/{name}"


def _is_device(node: Node) -> bool:
    return isinstance(node, Identifier) and node.name == "device"


def _parts(node: Any) -> list[Any]:
    """Return the nodes right below a node, whatever kind of node it is."""
    if isinstance(node, tuple):
        return list(node)
    if isinstance(node, Literal) or not isinstance(node, msgspec.Struct):
        return []
    return [getattr(node, field) for field in node.__struct_fields__]
