"""NVIDIA GPUs through NVML: which cards there are, which of them failed, and which process uses how much of them.

The library comes with the driver; a machine without it has no usable cards. Structures are those of NVML 11 and later.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import msgspec

from koord.host.io_error import IoError, malformed, unsupported

LIBRARY = "libnvidia-ml.so.1"
_TEXT = 96
_SUCCESS, _NOT_SUPPORTED, _NOT_FOUND, _TOO_SMALL = 0, 3, 6, 7
_XID_CRITICAL_ERROR = 0x8
# Errors of the application, not of the card: it works on.
_APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
_MOST_EVENTS = 64  # that are taken in at once
_UNKNOWN = 2**64 - 1  # memory of a process, where the driver does not report it
_MOST_PROCESSES = 4096


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Pci(ctypes.Structure):
    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device", ctypes.c_uint),
        ("subsystem", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Utilization(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("at_us", ctypes.c_ulonglong),
        ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    )


class _EventData(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class GpuCard(msgspec.Struct, frozen=True, kw_only=True):
    uuid: str
    minor: int
    total_bytes: int
    address: str  # as sysfs names it, such as 0000:3b:00.0
    model: str


class GpuHealth(msgspec.Struct, frozen=True):
    """Whether a card works. `code` names the error, or why errors are not told; "" where there is neither."""

    healthy: bool = True
    code: str = ""
    message: str = ""


class GpuInventory(msgspec.Struct, frozen=True):
    """The NVIDIA cards of a machine, the version of their driver, and their health by uuid."""

    cards: tuple[GpuCard, ...] = ()
    driver: str = ""
    health: Mapping[str, GpuHealth] = {}


NO_HEALTH_CHECK = GpuHealth(True, "DeviceHealthCheckNotSupported", "the driver does not report errors of this card")


class GpuProcessUsage(msgspec.Struct, frozen=True):
    """GpuProcessUsage is what one process uses of one card; `core_percent` is of all its cores."""

    pid: int
    core_percent: int
    memory_bytes: int


class Nvml:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._handles: dict[str, ctypes.c_void_p] = {}  # by uuid
        self._seen_us: dict[str, int] = {}
        self._events: ctypes.c_void_p | None = None
        self._health: dict[str, GpuHealth] = {}  # by uuid

    @staticmethod
    def open(name: str = LIBRARY) -> Nvml | IoError:
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            return unsupported(name, str(error))
        code = library.nvmlInit_v2()
        return Nvml(library) if code == _SUCCESS else unsupported(name, f"the driver does not answer (code {code})")

    def driver(self) -> str:
        text = ctypes.create_string_buffer(_TEXT)
        code = self._library.nvmlSystemGetDriverVersion(text, ctypes.c_uint(_TEXT))
        return text.value.decode("utf-8", "replace") if code == _SUCCESS else ""

    def cards(self) -> list[GpuCard] | IoError:
        """Return the cards by minor. One that fails makes it an error: half of the cards would look like all."""
        count = ctypes.c_uint()
        code = self._library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        if code != _SUCCESS:
            return _refused("nvmlDeviceGetCount", code)
        found: list[GpuCard] = []
        for index in range(count.value):
            card = self._card(index)
            if isinstance(card, IoError):
                return card
            found.append(card)
        return sorted(found, key=lambda card: card.minor)

    def uses(self, card: GpuCard) -> list[GpuProcessUsage] | IoError:
        """Return the processes on the card now, each with its share of the cores since the last call."""
        handle = self._handles.get(card.uuid)
        if handle is None:
            return malformed(LIBRARY, f"card {card.uuid} was not listed")
        memory = self._memory(handle)
        if isinstance(memory, IoError):
            return memory
        cores = self._cores(card.uuid, handle)
        if isinstance(cores, IoError):
            return cores
        return [GpuProcessUsage(pid, cores.get(pid, 0), held) for pid, held in sorted(memory.items())]

    def health(self) -> dict[str, GpuHealth]:
        """Return the health of every listed card by uuid. A card with a critical error (XID) stays unhealthy."""
        for uuid in self._handles.keys() - self._health.keys():
            self._health[uuid] = GpuHealth() if self._register(uuid) else NO_HEALTH_CHECK
        event = _EventData()
        for _ in range(_MOST_EVENTS if self._events is not None else 0):
            if self._library.nvmlEventSetWait_v2(self._events, ctypes.byref(event), ctypes.c_uint(0)) != _SUCCESS:
                break  # none is waiting
            if event.type == _XID_CRITICAL_ERROR and event.data not in _APPLICATION_XIDS:
                self._fail(event)
        return dict(self._health)

    def close(self) -> None:
        if self._events is not None:
            self._library.nvmlEventSetFree(self._events)
        self._library.nvmlShutdown()

    def _register(self, uuid: str) -> bool:
        """Let the driver report critical errors of a card; return whether it does."""
        if self._events is None:
            events = ctypes.c_void_p()
            if self._library.nvmlEventSetCreate(ctypes.byref(events)) != _SUCCESS:
                return False
            self._events = events
        kinds = ctypes.c_ulonglong(_XID_CRITICAL_ERROR)
        code: int = self._library.nvmlDeviceRegisterEvents(self._handles[uuid], kinds, self._events)
        return code == _SUCCESS

    def _fail(self, event: _EventData) -> None:
        text = ctypes.create_string_buffer(_TEXT)
        code = self._library.nvmlDeviceGetUUID(ctypes.c_void_p(event.device), text, ctypes.c_uint(_TEXT))
        uuid = text.value.decode("utf-8", "replace")
        failed = GpuHealth(False, f"Xid{event.data}", f"the driver reported the critical error XID {event.data}")
        # A card that cannot be named any more (it fell off the bus) may be any of them.
        for one in [uuid] if code == _SUCCESS and uuid in self._health else list(self._health):
            if self._health[one].healthy:
                self._health[one] = failed

    def _card(self, index: int) -> GpuCard | IoError:
        library, handle = self._library, ctypes.c_void_p()
        code = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
        if code != _SUCCESS:
            return _refused(f"nvmlDeviceGetHandleByIndex {index}", code)
        uuid, name = ctypes.create_string_buffer(_TEXT), ctypes.create_string_buffer(_TEXT)
        minor, memory, pci = ctypes.c_uint(), _Memory(), _Pci()
        for what, code in (
            ("UUID", library.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(_TEXT))),
            ("Name", library.nvmlDeviceGetName(handle, name, ctypes.c_uint(_TEXT))),
            ("MinorNumber", library.nvmlDeviceGetMinorNumber(handle, ctypes.byref(minor))),
            ("MemoryInfo", library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))),
            ("PciInfo", library.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci))),
        ):
            if code != _SUCCESS:
                return _refused(f"nvmlDeviceGet{what} of card {index}", code)
        identity = uuid.value.decode("utf-8", "replace")
        self._handles[identity] = handle
        # NVML writes the domain with eight digits, sysfs with four.
        domain, _, rest = pci.bus_id.decode("utf-8", "replace").lower().partition(":")
        return GpuCard(
            uuid=identity,
            minor=minor.value,
            total_bytes=memory.total,
            address=f"{domain[-4:]}:{rest}",
            model=name.value.decode("utf-8", "replace"),
        )

    def _memory(self, handle: ctypes.c_void_p) -> dict[int, int] | IoError:
        room = 64
        while room <= _MOST_PROCESSES:
            count, processes = ctypes.c_uint(room), (_Process * room)()
            code = self._library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), processes)
            if code == _SUCCESS:
                listed = processes[: count.value]
                return {one.pid: 0 if one.used == _UNKNOWN else one.used for one in listed}
            if code != _TOO_SMALL:
                return _refused("nvmlDeviceGetComputeRunningProcesses", code)
            room *= 4
        return malformed(LIBRARY, f"more than {_MOST_PROCESSES} processes on one card")

    def _cores(self, uuid: str, handle: ctypes.c_void_p) -> dict[int, int] | IoError:
        since, count = ctypes.c_ulonglong(self._seen_us.get(uuid, 0)), ctypes.c_uint(0)
        ask = self._library.nvmlDeviceGetProcessUtilization
        code = ask(handle, None, ctypes.byref(count), since)
        if code in (_NOT_FOUND, _NOT_SUPPORTED) or (code == _SUCCESS and not count.value):
            return {}  # no process computed since the last call, or the card does not report it
        if code not in (_SUCCESS, _TOO_SMALL):
            return _refused("nvmlDeviceGetProcessUtilization", code)
        samples = (_Utilization * count.value)()
        code = ask(handle, samples, ctypes.byref(count), since)
        if code == _NOT_FOUND:
            return {}
        if code != _SUCCESS:
            return _refused("nvmlDeviceGetProcessUtilization", code)
        found: dict[int, int] = {}
        for one in sorted(samples[: count.value], key=lambda one: int(one.at_us)):  # the newest of a process counts
            found[one.pid] = min(one.sm, 100)
            self._seen_us[uuid] = max(self._seen_us.get(uuid, 0), one.at_us)
        return found


def _refused(what: str, code: int) -> IoError:
    return malformed(LIBRARY, f"{what} answered {code}")
