"""Resource amounts as reports carry them. Only numbers that a machine can have used pass."""

from __future__ import annotations

from koord.api.part import ResourceList
from koord.api.resource_name import CPU, MEMORY
from koord.api.slo import ResourceMap
from koord.koordlet.series.store import LARGEST
from koord.policy.prediction.reclaimable import Amount
from koord.values.quantity import Format, Quantity


def usable(value: float | None) -> bool:
    """Return whether a number can be an amount of a machine."""
    return value is not None and 0 <= value <= LARGEST


def resources(cores: float, memory_bytes: float) -> ResourceList:
    return {CPU: milli_text(int(cores * 1000)), MEMORY: bytes_text(int(memory_bytes))}


def usage(cores: float | None, memory_bytes: float | None) -> ResourceMap | None:
    """Return the usage, or None unless both numbers are usable: half a report would be read as a whole one."""
    if cores is None or memory_bytes is None or not (usable(cores) and usable(memory_bytes)):
        return None
    return ResourceMap(resources=resources(cores, memory_bytes))


def of_amount(amount: Amount) -> ResourceMap:
    return ResourceMap(resources={CPU: milli_text(amount.cpu_milli), MEMORY: bytes_text(amount.memory_bytes)})


def milli_text(milli: int) -> str:
    return str(Quantity.from_milli(milli))


def bytes_text(count: int) -> str:
    return str(Quantity.from_value(count, Format.BINARY_SI))
