"""Find out what a device selector reads of a device, so that devices that agree in it need not be asked twice."""

from __future__ import annotations

from typing import Any

import msgspec

from koord.cel.syntax import Call, Comprehension, Identifier, Literal, Node, Presence, Select

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
