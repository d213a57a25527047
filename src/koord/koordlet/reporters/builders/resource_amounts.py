"""Resource amounts as reports carry them. Only numbers that a machine can have used pass."""

from __future__ import annotations

from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.koordinator.slo import ResourceMap
from koord.api.model import ResourceList
from koord.koordlet.reporters.builders.reclaimable import ResourceAmount
from koord.koordlet.series.store import LARGEST_VALUE
from koord.values.quantity import Quantity
from koord.values.quantity_syntax import Format


def is_usable(value: float | None) -> bool:
    return value is not None and 0 <= value <= LARGEST_VALUE


def resource_list(cores: float, memory_bytes: float) -> ResourceList:
    return {CPU: milli_quantity(int(cores * 1000)), MEMORY: bytes_quantity(int(memory_bytes))}


def usage_map(cores: float | None, memory_bytes: float | None) -> ResourceMap | None:
    """Return the usage, or None unless both numbers are usable: half a report would be read as a whole one."""
    if cores is None or memory_bytes is None or not (is_usable(cores) and is_usable(memory_bytes)):
        return None
    return ResourceMap(resources=resource_list(cores, memory_bytes))


def resource_map_of_amount(amount: ResourceAmount) -> ResourceMap:
    return ResourceMap(resources={CPU: milli_quantity(amount.cpu_milli), MEMORY: bytes_quantity(amount.memory_bytes)})


def milli_quantity(milli: int) -> str:
    return str(Quantity.from_milli(milli))


def bytes_quantity(count: int) -> str:
    return str(Quantity.from_value(count, Format.BINARY_SI))
