"""Select the victims of an eviction: what each rule wants freed, which pods it may evict in which order, and who goes.

One selection serves all rules. What leaving pods will free counts first, so a victim that hangs does not cause others.
Nobody is evicted who would free nothing that is missing. The same pods in any order give the same ranking.
"""

from __future__ import annotations

BE_CPU_EVICT = "BECPUEvict"
CPU_ALLOCATABLE_EVICT = "CPUAllocatableEvict"
CPU_EVICT = "CPUEvict"
BE_MEMORY_EVICT = "BEMemoryEvict"
MEMORY_ALLOCATABLE_EVICT = "MemoryAllocatableEvict"
MEMORY_EVICT = "MemoryEvict"
