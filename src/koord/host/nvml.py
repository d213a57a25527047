"""NVIDIA GPUs through NVML: which cards there are, how they are linked, and which process uses how much of them.

The library comes with the driver; a machine without it has no usable cards. Structures are those of NVML 11 and later.
A function that an older driver does not have answers that it is not there, as the library does for a card that cannot
do something.

Cards are watched for critical errors (XID) as the driver reports them, memory that failed, and cards that are lost. A
thread waits for errors and looks at every card about once a second; what follows from it is decided in
`koord.host.hardware`.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from koord.host.hardware import (
    LOST,
    GpuCard,
    GpuHealth,
    GpuProcessUsage,
    GpuReading,
    GpuRecord,
    MigInstance,
    decide_gpu_health,
    next_record,
)
from koord.host.io_error import IoError, malformed, unsupported

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


_XID_CRITICAL_ERROR = 0x8
# Errors of the application, not of the card: it works on.
_APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
_UNCORRECTED, _VOLATILE = 1, 0
_RECOVERY_ACTION_FIELD = 230


class HealthTiming(msgspec.Struct, frozen=True):
    """The time that the thread waits for errors between two looks, and that a card must be without errors to heal."""

    look_s: float = 1.0
    quiet_s: float = 60.0


DEFAULT_TIMING = HealthTiming()


class GpuHealthMonitor:
    """Watches the cards that it is given. `health` never waits for the driver."""

    def __init__(self, library: NvmlLibrary, timing: HealthTiming = DEFAULT_TIMING) -> None:
        self._library = library
        self._timing = timing
        self._lock = threading.Lock()  # of the three below
        self._records: dict[str, GpuRecord] = {}  # by uuid
        self._health: dict[str, GpuHealth] = {}
        self._gone: frozenset[str] = frozenset()  # cards that were not listed any more
        self._handles: Mapping[str, ctypes.c_void_p] = {}
        self._events: ctypes.c_void_p | None = None
        self._registered: set[str] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def lost(self) -> bool:
        """Return whether any card is lost."""
        with self._lock:
            return any(one.code == LOST.code for one in self._health.values())

    def health(self) -> dict[str, GpuHealth]:
        with self._lock:
            return dict(self._health)

    def watch(self, handles: Mapping[str, ctypes.c_void_p], gone: frozenset[str]) -> None:
        """Watch these cards, and count the others as lost. New cards are looked at before this returns."""
        for uuid, handle in handles.items():
            if uuid not in self._registered:
                told = self._register(handle)
                self._registered.add(uuid)
                with self._lock:
                    before = self._records.get(uuid, GpuRecord())
                    self._records[uuid] = msgspec.structs.replace(before, told=told)
        with self._lock:
            self._handles, self._gone = dict(handles), gone
        self._look()
        if self._thread is None and handles:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._run, name="nvml-health", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread and give up the registrations; what is known of the cards stays."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._events is not None:
            self._library.call("nvmlEventSetFree", self._events)
            self._events = None
        self._registered.clear()
        self._handles = {}

    def _run(self) -> None:
        looked_s = time.monotonic()
        while not self._stopping.is_set():
            code = self._take_event(round(self._timing.look_s * 1000))
            if code not in (SUCCESS, TIMEOUT):
                self._stopping.wait(self._timing.look_s)  # no card tells errors, or one is lost: only looks are left
            if code != SUCCESS or time.monotonic() - looked_s >= self._timing.look_s:
                self._look()
                looked_s = time.monotonic()

    def _take_event(self, wait_ms: int) -> int:
        if self._events is None:
            return NOT_SUPPORTED
        event = EventData()
        code = self._library.call("nvmlEventSetWait_v2", self._events, ctypes.byref(event), ctypes.c_uint(wait_ms))
        if code == SUCCESS and event.type == _XID_CRITICAL_ERROR and event.data not in _APPLICATION_XIDS:
            self._fail(event)
        return code

    def _register(self, handle: ctypes.c_void_p) -> bool:
        """Let the driver report critical errors of a card; return whether it does."""
        if self._events is None:
            events = ctypes.c_void_p()
            if self._library.call("nvmlEventSetCreate", ctypes.byref(events)) != SUCCESS:
                return False
            self._events = events
        kinds = ctypes.c_ulonglong(_XID_CRITICAL_ERROR)
        return self._library.call("nvmlDeviceRegisterEvents", handle, kinds, self._events) == SUCCESS

    def _fail(self, event: EventData) -> None:
        now_s = time.monotonic()
        with self._lock:
            failed = [uuid for uuid, handle in self._handles.items() if handle.value == event.device]
            # An error that the driver gives to no card that is known may be of any of them.
            for one in failed or list(self._records):
                record = msgspec.structs.replace(self._records[one], xid=int(event.data), xid_at_s=now_s)
                self._records[one] = record
                self._health[one] = decide_gpu_health(record, GpuReading())

    def _look(self) -> None:
        with self._lock:
            handles, gone = self._handles, self._gone
        readings = {uuid: self._read(handle) for uuid, handle in handles.items()}
        readings |= {uuid: GpuReading(lost=True) for uuid in gone}
        now_s = time.monotonic()
        with self._lock:
            for uuid, reading in readings.items():
                record = next_record(self._records.get(uuid, GpuRecord()), reading, now_s, self._timing.quiet_s)
                self._records[uuid] = record
                self._health[uuid] = decide_gpu_health(record, reading)

    def _read(self, handle: ctypes.c_void_p) -> GpuReading:
        library, memory = self._library, NvmlMemory()
        if library.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory)) in UNREACHABLE:
            return GpuReading(lost=True)
        pending, failed = self._remapped_rows(handle)
        retiring = library.number("nvmlDeviceGetRetiredPagesPendingStatus", handle)
        errors = library.number(
            "nvmlDeviceGetTotalEccErrors",
            handle,
            ctypes.c_uint(_UNCORRECTED),
            ctypes.c_uint(_VOLATILE),
            size=ctypes.c_ulonglong,
        )
        return GpuReading(
            recovery=self._recovery(handle),
            remap_pending=pending,
            remap_failed=failed,
            retirement_pending=bool(retiring),
            uncorrected_errors=errors,
        )

    def _remapped_rows(self, handle: ctypes.c_void_p) -> tuple[bool, bool]:
        corrected, uncorrected, pending, failed = (ctypes.c_uint() for _ in range(4))
        places = map(ctypes.byref, (corrected, uncorrected, pending, failed))
        code = self._library.call("nvmlDeviceGetRemappedRows", handle, *places)
        return (bool(pending.value), bool(failed.value)) if code == SUCCESS else (False, False)

    def _recovery(self, handle: ctypes.c_void_p) -> int | None:
        field = FieldValue(field_id=_RECOVERY_ACTION_FIELD)
        code = self._library.call("nvmlDeviceGetFieldValues", handle, ctypes.c_int(1), ctypes.byref(field))
        return int(field.value) & 0xFFFFFFFF if code == SUCCESS and field.code == SUCCESS else None


_LINKS = 18  # NVLinks of a card, of all generations
_REMOTE_GPU, _REMOTE_SWITCH = 0, 2
_UNKNOWN = 2**64 - 1  # memory of a process, where the driver does not report it
_MOST_PROCESSES = 4096


class Nvml:
    """The cards of this machine. Cards that were listed once stay listed: those that are lost are unhealthy."""

    def __init__(self, library: NvmlLibrary, timing: HealthTiming = DEFAULT_TIMING) -> None:
        self._library = library
        self._handles: dict[str, ctypes.c_void_p] = {}  # by uuid
        self._known: dict[str, GpuCard] = {}  # by uuid
        self._seen_us: dict[str, int] = {}
        self._monitor = GpuHealthMonitor(library, timing)
        self._initialized = True
        self.unidentified = 0  # cards that did not answer in the last listing and are not known

    @staticmethod
    def open(name: str = LIBRARY, timing: HealthTiming = DEFAULT_TIMING) -> Nvml | IoError:
        try:
            library = NvmlLibrary(ctypes.CDLL(name))
        except OSError as error:
            return unsupported(name, str(error))
        code = library.call("nvmlInit_v2")
        if code != SUCCESS:
            return unsupported(name, f"the driver does not answer (code {code})")
        return Nvml(library, timing)

    def driver(self) -> str:
        code, text = self._library.text("nvmlSystemGetDriverVersion")
        return text if code == SUCCESS else ""

    def cards(self) -> list[GpuCard] | IoError:
        """Return the cards by minor. One that fails makes it an error: half of the cards would look like all. One that
        is lost is not: it is listed as it was.

        The driver finds a card again after a reset only for who begins anew, so that is done while one is lost.
        """
        if self.unidentified or self._monitor.lost or not self._initialized:
            refused = self._initialize_again()
            if refused is not None:
                return refused
        count = ctypes.c_uint()
        code = self._library.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        if code != SUCCESS:
            return _refused("nvmlDeviceGetCount", code)
        answering: dict[str, GpuCard] = {}
        for index in range(count.value):
            card = self._card(index)
            if isinstance(card, IoError):
                return card
            if card is not None:
                answering[card.uuid] = card
        self._known |= answering
        missing = self._known.keys() - answering.keys()
        for uuid in missing:
            self._handles.pop(uuid, None)
        self.unidentified = max(count.value - len(answering) - len(missing), 0)
        self._monitor.watch(self._handles, frozenset(missing))
        return sorted(self._known.values(), key=lambda card: card.minor)

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
        """Return the health of every listed card by uuid, as the monitor last found it."""
        return self._monitor.health()

    def close(self) -> None:
        self._monitor.stop()
        self._library.call("nvmlShutdown")

    def _initialize_again(self) -> IoError | None:
        self._monitor.stop()
        self._handles.clear()
        if self._initialized:
            self._library.call("nvmlShutdown")
        code = self._library.call("nvmlInit_v2")
        self._initialized = code == SUCCESS
        return None if self._initialized else _refused("nvmlInit", code)

    def _card(self, index: int) -> GpuCard | IoError | None:
        """Return a card, or None for one that is lost."""
        library, handle = self._library, ctypes.c_void_p()
        code = library.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        if code != SUCCESS:
            return None if code in UNREACHABLE else _refused(f"nvmlDeviceGetHandleByIndex {index}", code)
        minor, memory, pci = ctypes.c_uint(), NvmlMemory(), PciInfo()
        uuid_code, uuid = library.text("nvmlDeviceGetUUID", handle)
        name_code, name = library.text("nvmlDeviceGetName", handle)
        for what, code in (
            ("UUID", uuid_code),
            ("Name", name_code),
            ("MinorNumber", library.call("nvmlDeviceGetMinorNumber", handle, ctypes.byref(minor))),
            ("MemoryInfo", library.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))),
            ("PciInfo", library.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))),
        ):
            if code in UNREACHABLE:
                return None
            if code != SUCCESS:
                return _refused(f"nvmlDeviceGet{what} of card {index}", code)
        self._handles[uuid] = handle
        links, switch_links = self._links(handle)
        mig_enabled, instances = self._mig(handle)
        return GpuCard(
            uuid=uuid,
            minor=minor.value,
            total_bytes=memory.total,
            address=_address(pci),
            model=name,
            mig_enabled=mig_enabled,
            mig_instances=instances,
            links=links,
            switch_links=switch_links,
        )

    def _links(self, handle: ctypes.c_void_p) -> tuple[dict[str, int], int]:
        """Return the active NVLinks of a card: how many to each other card, and how many to switches."""
        library, links, switch_links = self._library, dict[str, int](), 0
        for number in range(_LINKS):
            link, active, kind, pci = ctypes.c_uint(number), ctypes.c_uint(), ctypes.c_uint(), PciInfo()
            if library.call("nvmlDeviceGetNvLinkState", handle, link, ctypes.byref(active)) != SUCCESS:
                break  # it has no more, or none
            if not active.value:
                continue
            known = library.call("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link, ctypes.byref(kind))
            if known == SUCCESS and kind.value == _REMOTE_SWITCH:
                switch_links += 1
            elif known != SUCCESS or kind.value == _REMOTE_GPU:
                code = library.call("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, link, ctypes.byref(pci))
                if code == SUCCESS:
                    links[_address(pci)] = links.get(_address(pci), 0) + 1
        return links, switch_links

    def _mig(self, handle: ctypes.c_void_p) -> tuple[bool, tuple[MigInstance, ...]]:
        """Return whether the card is divided by MIG, and its instances."""
        library, current, pending, most = self._library, ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
        code = library.call("nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
        if code != SUCCESS or not current.value:
            return False, ()
        library.call("nvmlDeviceGetMaxMigDeviceCount", handle, ctypes.byref(most))
        found: list[MigInstance] = []
        for index in range(most.value):
            instance = ctypes.c_void_p()
            arguments = (handle, ctypes.c_uint(index), ctypes.byref(instance))
            if library.call("nvmlDeviceGetMigDeviceHandleByIndex", *arguments) != SUCCESS:
                continue  # there are fewer instances than there may be
            _, uuid = library.text("nvmlDeviceGetUUID", instance)
            _, name = library.text("nvmlDeviceGetName", instance)  # such as NVIDIA A100-SXM4-40GB MIG 1g.5gb
            found.append(MigInstance(uuid, name.rpartition("MIG ")[2]))
        return True, tuple(found)

    def _memory(self, handle: ctypes.c_void_p) -> dict[int, int] | IoError:
        room = 64
        while room <= _MOST_PROCESSES:
            count, processes = ctypes.c_uint(room), (ProcessInfo * room)()
            code = self._library.call("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(count), processes)
            if code == SUCCESS:
                listed = processes[: count.value]
                return {one.pid: 0 if one.used == _UNKNOWN else one.used for one in listed}
            if code != TOO_SMALL:
                return _refused("nvmlDeviceGetComputeRunningProcesses", code)
            room *= 4
        return malformed(LIBRARY, f"more than {_MOST_PROCESSES} processes on one card")

    def _cores(self, uuid: str, handle: ctypes.c_void_p) -> dict[int, int] | IoError:
        since, count = ctypes.c_ulonglong(self._seen_us.get(uuid, 0)), ctypes.c_uint(0)
        ask = "nvmlDeviceGetProcessUtilization"
        code = self._library.call(ask, handle, None, ctypes.byref(count), since)
        if code in (NOT_FOUND, NOT_SUPPORTED) or (code == SUCCESS and not count.value):
            return {}  # no process computed since the last call, or the card does not report it
        if code not in (SUCCESS, TOO_SMALL):
            return _refused(ask, code)
        samples = (ProcessUtilization * count.value)()
        code = self._library.call(ask, handle, samples, ctypes.byref(count), since)
        if code == NOT_FOUND:
            return {}
        if code != SUCCESS:
            return _refused(ask, code)
        found: dict[int, int] = {}
        for one in sorted(samples[: count.value], key=lambda one: int(one.at_us)):  # the newest of a process counts
            found[one.pid] = min(one.sm, 100)
            self._seen_us[uuid] = max(self._seen_us.get(uuid, 0), one.at_us)
        return found


def _address(pci: PciInfo) -> str:
    """Return the address as sysfs writes it: NVML writes the domain with eight digits, sysfs with four."""
    domain, _, rest = pci.bus_id.decode("utf-8", "replace").lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _refused(what: str, code: int) -> IoError:
    return malformed(LIBRARY, f"{what} answered {code}")
