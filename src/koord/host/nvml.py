"""NVIDIA GPUs through NVML: which cards there are, how they are linked, and which process uses how much of them.

The library comes with the driver; a machine without it has no usable cards. Structures are those of NVML 11 and later.
Which cards failed is watched by `koord.host.nvml_health`.
"""

from __future__ import annotations

import ctypes

from koord.host.hardware import GpuCard, GpuHealth, GpuProcessUsage, MigInstance
from koord.host.io_error import IoError, malformed, unsupported
from koord.host.nvml_health import DEFAULT_TIMING, GpuHealthMonitor, HealthTiming
from koord.host.nvml_library import (
    LIBRARY,
    NOT_FOUND,
    NOT_SUPPORTED,
    SUCCESS,
    TOO_SMALL,
    UNREACHABLE,
    NvmlLibrary,
    NvmlMemory,
    PciInfo,
    ProcessInfo,
    ProcessUtilization,
)

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
