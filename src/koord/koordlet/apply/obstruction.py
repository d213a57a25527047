"""Why the kernel may have refused a value: the parent, child or sister file that does not go with it.

The kernel says EINVAL or EBUSY and no more; operators need the other number. Read only after a refusal.
"""

from __future__ import annotations

from koord.host.cgroup.knob import CPU_BURST, CPU_IDLE, CPU_QUOTA, CPU_SHARES, Place
from koord.host.cgroup.order import Order, fits, size
from koord.host.cgroup.tree import Tree
from koord.host.fault import Fault
from koord.koordlet.apply.journal import Key
from koord.koordlet.apply.level import ancestors


def obstruction(tree: Tree, key: Key, place: Place, field: str) -> str:
    """Return which parent, child or sibling value conflicts with a refused field; "" when none can be seen.

    The kernel says EINVAL or EBUSY and no more; operators need the other number. It is read only after a refusal.
    """
    knob, group, _ = key
    if knob == CPU_SHARES and tree.value(CPU_IDLE, group) == "1":
        return "cpu.idle is 1"
    if knob in (CPU_BURST, CPU_QUOTA):
        other = CPU_QUOTA if knob == CPU_BURST else CPU_BURST
        found = tree.value(other, group)
        if isinstance(found, str):
            burst, quota = (field, found) if knob == CPU_BURST else (found, field)
            if size(burst) > size(quota):
                return f"{other} is {found}"
    if place.order in (Order.FREE, Order.SIZE):
        return ""
    for above in ancestors(group):
        limit = _field(tree, knob, place, above) if above else None
        if limit is not None and not fits(place.order, field, limit):
            return f"{above} has {limit or 'nothing'}"
    children = tree.children(group, place.subsystem)
    for below in [] if isinstance(children, Fault) else children:
        child = _field(tree, knob, place, below)
        if child is not None and not fits(place.order, child, field):
            return f"{below} has {child}"
    return ""


def _field(tree: Tree, knob: str, place: Place, group: str) -> str | None:
    text = tree.read(knob, group)
    return None if isinstance(text, Fault) else place.codec.pick(text, "")
