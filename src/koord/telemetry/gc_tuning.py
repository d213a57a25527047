"""Settings of Python's cyclic garbage collector for programs that hold a cluster in memory.

By default it scans every object again and again while a big answer is being made: listing 20,000 pods as
a table took 2.8 s of CPU with it and 1.0 s without. What a cluster's state holds is not cyclic garbage.
"""

from __future__ import annotations

import ctypes
import gc

YOUNG_THRESHOLD, MIDDLE_THRESHOLD, OLD_THRESHOLD = 50_000, 20, 100


def relax_gc() -> None:
    """Collect cycles rarely. Call once, early in a long-running program."""
    gc.set_threshold(YOUNG_THRESHOLD, MIDDLE_THRESHOLD, OLD_THRESHOLD)


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
