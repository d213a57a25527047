"""Watch NVIDIA cards: critical errors (XID) as the driver reports them, memory that failed, cards that are lost.

A thread waits for errors and looks at every card about once a second; what follows from it is decided in
`koord.host.hardware`.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Mapping

import msgspec

from koord.host.hardware import LOST, GpuHealth, GpuReading, GpuRecord, decide_gpu_health, next_record
from koord.host.nvml_library import (
    NOT_SUPPORTED,
    SUCCESS,
    TIMEOUT,
    UNREACHABLE,
    EventData,
    FieldValue,
    NvmlLibrary,
    NvmlMemory,
)

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
