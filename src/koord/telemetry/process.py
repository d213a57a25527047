"""Metrics of this process from the system and the interpreter, under the names that every dashboard has, and the
settings of its garbage collector and of its allocator.

By default the cyclic collector scans every object again and again while a big answer is being made: listing 20,000
pods as a table took 2.8 s of CPU with it and 1.0 s without. What a cluster's state holds is not cyclic garbage.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path

from koord.telemetry.metrics import MetricDeclaration, MetricReading, MetricRegistry
from koord.version import build_info

_PROC = Path("/proc")
_START_FIELD, _CPU_FIELDS, _VIRTUAL_FIELD, _RESIDENT_FIELD = 19, (11, 12), 20, 21  # of stat, after the command's name

CPU_SECONDS = MetricDeclaration(
    "process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", "counter"
)
OPEN_FDS = MetricDeclaration("process_open_fds", "Number of open file descriptors.")
MAX_FDS = MetricDeclaration("process_max_fds", "Maximum number of open file descriptors.")
VIRTUAL_MEMORY = MetricDeclaration("process_virtual_memory_bytes", "Virtual memory size in bytes.")
MAX_VIRTUAL_MEMORY = MetricDeclaration(
    "process_virtual_memory_max_bytes", "Maximum amount of virtual memory available in bytes."
)
RESIDENT_MEMORY = MetricDeclaration("process_resident_memory_bytes", "Resident memory size in bytes.")
START_TIME = MetricDeclaration("process_start_time_seconds", "Start time of the process since unix epoch in seconds.")
PYTHON_INFO = MetricDeclaration(
    "python_info", "Version and implementation of the interpreter.", "gauge", ("version", "implementation")
)
# By the key of the collector's statistics.
PYTHON_GC = {
    "collected": MetricDeclaration(
        "python_gc_objects_collected_total", "Objects that the cycle collector freed.", "counter", ("generation",)
    ),
    "uncollectable": MetricDeclaration(
        "python_gc_objects_uncollectable_total",
        "Objects that the cycle collector could not free.",
        "counter",
        ("generation",),
    ),
    "collections": MetricDeclaration(
        "python_gc_collections_total", "How often each generation was collected.", "counter", ("generation",)
    ),
}
BUILD_INFO = MetricDeclaration(
    "koord_build_info",
    "A metric with a constant '1' value, labeled by the version, commit and time of the build that runs.",
    "gauge",
    ("git_version", "git_commit", "git_tree_state", "build_date", "python_version", "platform"),
)
PROCESS_METRICS = (
    *(CPU_SECONDS, OPEN_FDS, MAX_FDS, VIRTUAL_MEMORY, MAX_VIRTUAL_MEMORY, RESIDENT_MEMORY, START_TIME),
    *(PYTHON_INFO, *PYTHON_GC.values(), BUILD_INFO),
)


def register_process_metrics(registry: MetricRegistry, proc: Path = _PROC) -> None:
    """Register process_* metrics (where there is a /proc), python_* metrics and koord_build_info."""
    registry.source(lambda: (*_process(proc), *_python(), _build()))


def _process(proc: Path) -> Iterator[MetricReading]:
    try:
        # The command's name may hold spaces and brackets; what follows its last bracket does not.
        fields = (proc / "self" / "stat").read_text().rpartition(")")[2].split()
        boot = _boot_time(proc)
        descriptors = len(os.listdir(proc / "self" / "fd"))
    except OSError:
        return  # no /proc on this system: these numbers are absent, not zero
    ticks = os.sysconf("SC_CLK_TCK")
    cpu = sum(int(fields[at]) for at in _CPU_FIELDS) / ticks
    yield _single(CPU_SECONDS, cpu)
    yield _single(OPEN_FDS, descriptors)
    yield _single(MAX_FDS, _limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    yield _single(VIRTUAL_MEMORY, int(fields[_VIRTUAL_FIELD]))
    yield _single(MAX_VIRTUAL_MEMORY, _limit(resource.getrlimit(resource.RLIMIT_AS)[0]))
    yield _single(RESIDENT_MEMORY, int(fields[_RESIDENT_FIELD]) * resource.getpagesize())
    if boot is not None:
        yield _single(START_TIME, boot + int(fields[_START_FIELD]) / ticks)


def _python() -> Iterator[MetricReading]:
    yield PYTHON_INFO.reading((((platform.python_version(), platform.python_implementation()), 1.0),))
    stats = gc.get_stats()
    for key, declared in PYTHON_GC.items():
        yield declared.reading(tuple(((str(generation),), float(one[key])) for generation, one in enumerate(stats)))


def _build() -> MetricReading:
    """Return the build as labels. Its name is koord's own: alerts compare all versions in kubernetes_build_info, which
    components of Kubernetes serve, and one that is no version of Kubernetes would set them off.
    """
    info = build_info()
    values = (
        *(f"v{info.version}", info.commit, info.tree_state, info.date),
        *(platform.python_version(), f"{platform.system().lower()}/{platform.machine()}"),
    )
    return BUILD_INFO.reading(((values, 1.0),))


def _boot_time(proc: Path) -> float | None:
    for line in (proc / "stat").read_text().splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return None


def _limit(value: int) -> float:
    return float(2**64 - 1) if value == resource.RLIM_INFINITY else float(value)


def _single(declared: MetricDeclaration, value: float) -> MetricReading:
    return declared.reading((((), float(value)),))


YOUNG_THRESHOLD, MIDDLE_THRESHOLD, OLD_THRESHOLD = 50_000, 20, 100


# Of programs that others wait for: a collection of 50,000 young objects stops a program for more than 10 ms.
PROMPT_YOUNG_THRESHOLD, PROMPT_MIDDLE_THRESHOLD = 5_000, 200


def relax_gc() -> None:
    """Collect cycles rarely. Call once, early in a long-running program."""
    gc.set_threshold(YOUNG_THRESHOLD, MIDDLE_THRESHOLD, OLD_THRESHOLD)


def shorten_gc_pauses() -> None:
    """Collect young objects in smaller parts, which costs the same in all, and the older ones as rarely as before."""
    gc.set_threshold(PROMPT_YOUNG_THRESHOLD, PROMPT_MIDDLE_THRESHOLD, OLD_THRESHOLD)


def freeze_imports() -> None:
    """Freeze what importing made, so that the collection after start-up scans only what was read of the cluster.

    Modules, classes and functions live as long as the program, and are most of its objects beside a small cluster.
    """
    gc.freeze()


# Each TLS connection of uvloop and of asyncio has a buffer of this size. Arrays of fewer nodes than 32,768 are smaller.
LARGE_BLOCK_BYTES = 256 * 1024
_M_MMAP_THRESHOLD = -3  # glibc's mallopt


def map_large_blocks() -> None:
    """Keep blocks of LARGE_BLOCK_BYTES and more out of the heap. Call once, early in a long-running program.

    glibc maps such blocks only until the first of them is freed; from then on they lie in the heap. There the buffer of
    each new connection touches other pages than the one before it, so that resident memory grows with every restart of
    an API server, though nothing more is allocated. Mapped, a buffer has the pages that it uses, and gives them back.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none, or take no notice
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


def freeze_after_startup() -> None:
    """Freeze the objects that live after start-up, so that they are not scanned again, and trim the heap."""
    gc.collect()
    gc.freeze()
    trim_heap()


def trim_heap() -> None:
    """Return freed memory to the system: glibc keeps it, and after reading a cluster that is a fifth of a program."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none, and need none
    if trim is not None:
        trim(0)
