"""The functions and structures of libnvidia-ml. A function that an older driver does not have answers that it is not
there, as the library does for a card that cannot do something.
"""

from __future__ import annotations

import ctypes
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
TEXT_BYTES = 96
SUCCESS, NOT_SUPPORTED, NOT_FOUND, TOO_SMALL, TIMEOUT = 0, 3, 6, 7, 10
FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, UNKNOWN = 13, 15, 16, 999
UNREACHABLE = frozenset({GPU_IS_LOST, RESET_REQUIRED, UNKNOWN})  # the driver cannot talk to the card


class NvmlMemory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class PciInfo(ctypes.Structure):
    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device", ctypes.c_uint),
        ("subsystem", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class ProcessInfo(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class ProcessUtilization(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("at_us", ctypes.c_ulonglong),
        ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    )


class EventData(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class FieldValue(ctypes.Structure):
    """`value` is a union of eight bytes; the fields that are asked for here are unsigned numbers."""

    _fields_ = (
        ("field_id", ctypes.c_uint),
        ("scope_id", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("value_type", ctypes.c_int),
        ("code", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    )


class NvmlLibrary:
    """The loaded library. Every call returns NVML's code."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def call(self, name: str, *arguments: Any) -> int:
        function = getattr(self._library, name, None)
        if function is None:
            return FUNCTION_NOT_FOUND
        code: int = function(*arguments)
        return code

    def text(self, name: str, *arguments: Any) -> tuple[int, str]:
        """Call a function that fills a buffer with text; return the code and the text."""
        buffer = ctypes.create_string_buffer(TEXT_BYTES)
        code = self.call(name, *arguments, buffer, ctypes.c_uint(TEXT_BYTES))
        return code, buffer.value.decode("utf-8", "replace")

    def number(self, name: str, *arguments: Any, size: Any = ctypes.c_uint) -> int | None:
        """Call a function that fills in one number; return it, or None where the card or the driver has none."""
        value = size()
        code = self.call(name, *arguments, ctypes.byref(value))
        return int(value.value) if code == SUCCESS else None
