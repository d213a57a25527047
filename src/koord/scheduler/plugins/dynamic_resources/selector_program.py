"""Apply the selectors of device classes and requests to the devices of slices, with the words of kube-scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from koord.api.kubernetes.dynamic_resources import DeviceAttribute, SliceDevice
from koord.cel.device_reads import DeviceName, driver_required, names_read
from koord.cel.device_selector import AttributeValue, DeviceSelector, cel_device, compile_selector
from koord.cel.semantic_version import parse_version
from koord.cel.syntax import CelError
from koord.values.quantity import ZERO, Quantity, QuantityError

_PROGRAMS_KEPT = 1024


class SelectorProgram:
    """A compiled selector, or why it does not compile. There is one of each expression, so that it is a cheap key."""

    __slots__ = ("_compiled", "driver", "names")

    def __init__(self, expression: str) -> None:
        self._compiled: DeviceSelector | CelError = compile_selector(expression)
        # What it reads of a device; None where that may be anything.
        self.names: frozenset[DeviceName] | None = frozenset()
        self.driver: str | None = None  # of all devices that it takes, where it says so
        if not isinstance(self._compiled, CelError):
            self.names = names_read(self._compiled.tree)
            self.driver = driver_required(self._compiled.tree)

    def matches(self, device: Mapping[str, Any]) -> bool | str:
        """Return whether a device is selected, or in words why that cannot be said."""
        if isinstance(self._compiled, CelError):
            return f"CEL compile error: {self._compiled.message}"
        found = self._compiled.matches(device)
        return f"CEL runtime error: {found.message}" if isinstance(found, CelError) else found


@lru_cache(maxsize=_PROGRAMS_KEPT)
def selector_program(expression: str) -> SelectorProgram:
    return SelectorProgram(expression)


def attribute_value(attribute: DeviceAttribute) -> AttributeValue:
    """Return the value of an attribute in CEL's types; a version that is none stays text."""
    if attribute.int_value is not None:
        return attribute.int_value
    if attribute.bool_value is not None:
        return attribute.bool_value
    if attribute.version_value is not None:
        return parse_version(attribute.version_value) or attribute.version_value
    return attribute.string_value or ""


def selected_device(device: SliceDevice, driver: str) -> Mapping[str, Any]:
    """Return what a selector sees of a device."""
    return cel_device(
        driver,
        {name: attribute_value(given) for name, given in device.attributes.items()},
        {name: quantity_or_zero(given.value) for name, given in device.capacity.items()},
        allow_multiple_allocations=bool(device.allow_multiple_allocations),
    )


def quantity_or_zero(text: str | int | float) -> Quantity:
    """Return a quantity. No server stores one that cannot be read, so nothing is lost with zero."""
    try:
        return Quantity.parse(text)
    except QuantityError:
        return ZERO
