"""The time for which a thread could run and had no CPU, by the kernel's count."""

from __future__ import annotations

import os


class CpuWait:
    """CpuWait tells it for the thread that makes it, so that a measure of memory or of a disk can leave it out."""

    def __init__(self) -> None:
        self._descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def ms(self) -> float:
        return int(os.pread(self._descriptor, 64, 0).split()[1]) / 1e6
