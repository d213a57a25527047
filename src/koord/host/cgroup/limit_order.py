"""Compare limits: which of two is looser, and whether a child's limit fits in its parent's.

Writes are ordered by this: widen parents before children, narrow children before parents.
"""

from __future__ import annotations

import enum

from koord.host.cgroup.codec import MAX, V1_UNLIMITED_BYTES
from koord.values.cpuset import CPUSet
from koord.values.go_format import parse_decimal_int


class LimitOrder(enum.Enum):
    """LimitOrder says how the values of a knob relate to those of parent groups."""

    FREE = "free"  # values do not depend on those of parents
    SIZE = "size"  # a number that may grow and shrink, whatever the parent's is
    LIMIT = "limit"  # a child without a limit has its parent's: it fits always
    SHARE = "share"  # a protection (memory.min): no protection is the least, `max` the most
    CPUS = "cpus"  # sets; version 1 takes the empty set at its word
    INHERITED_CPUS = "inherited cpus"  # sets; version 2 reads the empty set as the parent's


def loosest(order: LimitOrder, now: str, wanted: str) -> str:
    """Return the field that allows all that both allow: written on the way down, before anything narrows."""
    if order is LimitOrder.INHERITED_CPUS and not (now and wanted):
        return ""
    if order in (LimitOrder.CPUS, LimitOrder.INHERITED_CPUS):
        return str(CPUSet.parse_or_empty(now) | CPUSet.parse_or_empty(wanted))
    return wanted if order is LimitOrder.FREE or limit_size(wanted) >= limit_size(now) else now


def fits(order: LimitOrder, child: str, parent: str) -> bool:
    """Return whether a child's field fits in its parent's."""
    if order is LimitOrder.INHERITED_CPUS and not (child and parent):
        return True
    if order in (LimitOrder.CPUS, LimitOrder.INHERITED_CPUS):
        return CPUSet.parse_or_empty(child) <= CPUSet.parse_or_empty(parent)
    if order is LimitOrder.LIMIT and limit_size(child) == float("inf"):
        return True
    return order in (LimitOrder.FREE, LimitOrder.SIZE) or limit_size(child) <= limit_size(parent)


def limit_size(field: str) -> float:
    """Return the number in a field; text that is no number is no limit, so that nothing is narrowed because of it."""
    if field in (MAX, "-1"):
        return float("inf")
    number = parse_decimal_int(field)
    return float("inf") if number is None or number < 0 or number >= V1_UNLIMITED_BYTES else number
