"""The kinds of series, named as in Koordinator's metric cache, and how long each is kept.

After the kind, a key carries what identifies its series: a pod's uid, a container's id, a NUMA node, an application.
CPU is in cores (milli-cores in NODE_BE), memory in bytes, throttling a share from 0 to 1.
"""

from __future__ import annotations

NODE_CPU = "node_cpu_usage"
NODE_MEMORY = "node_memory_usage"
NODE_MEMORY_WITH_PAGE_CACHE = "node_memory_usage_with_page_cache"
NODE_MEMORY_WITH_HOT_PAGES = "node_memory_with_hot_page_usage"
NODE_MEMORY_COLD_PAGES = "node_memory_cold_page_size"
SYSTEM_CPU = "sys_cpu_usage"
SYSTEM_MEMORY = "sys_memory_usage"
NUMA_CPU = "node_numa_cpu_usage"
NUMA_MEMORY = "node_numa_memory_usage"
NUMA_SYSTEM_CPU = "sys_numa_cpu_usage"
NUMA_SYSTEM_MEMORY = "sys_numa_memory_usage"
NODE_GPU_CORE = "node_gpu_core_usage"
NODE_GPU_MEMORY = "node_gpu_memory_usage"
NODE_GPU_MEMORY_TOTAL = "node_gpu_memory_total"
NODE_BE = "node_be"  # then one of the three below
BE_USAGE = "usage"
BE_REAL_LIMIT = "real-limit"
BE_REQUEST = "request"

POD_CPU = "pod_cpu_usage"
POD_MEMORY = "pod_memory_usage"
POD_MEMORY_WITH_PAGE_CACHE = "pod_memory_usage_with_page_cache"
POD_MEMORY_WITH_HOT_PAGES = "pod_memory_with_hot_page_usage"
POD_MEMORY_COLD_PAGES = "pod_memory_cold_page_size"
POD_THROTTLED = "pod_cpu_throttled"
POD_GPU_CORE = "pod_gpu_core_usage"
POD_GPU_MEMORY = "pod_gpu_memory_usage"

CONTAINER_CPU = "container_cpu_usage"
CONTAINER_MEMORY = "container_memory_usage"
CONTAINER_THROTTLED = "container_cpu_throttled"
CONTAINER_MEMORY_WITH_PAGE_CACHE = "container_memory_usage_with_page_cache"
CONTAINER_MEMORY_WITH_HOT_PAGES = "container_memory_with_hot_page_usage"
CONTAINER_MEMORY_COLD_PAGES = "container_memory_cold_page_size"
CONTAINER_GPU_CORE = "container_gpu_core_usage"
CONTAINER_GPU_MEMORY = "container_gpu_memory_usage"
CONTAINER_CPI = "container_cpi"  # then cycle or instruction
CONTAINER_PSI = "container_psi"  # then the resource, the seconds and the degree; as for pods
POD_PSI = "pod_psi"
POD_PSI_CPU_FULL_SUPPORTED = "pod_psi_cpu_full_supported"
CONTAINER_PSI_CPU_FULL_SUPPORTED = "container_psi_cpu_full_supported"

CACHE_OCCUPANCY = "resctrl_resource_llc"  # by class and cache
MEMORY_BANDWIDTH = "resctrl_resource_mb"  # by class, cache and whether local or total

APPLICATION_CPU = "host_application_cpu_usage"
APPLICATION_MEMORY = "host_application_memory_usage"
APPLICATION_MEMORY_WITH_PAGE_CACHE = "host_application_memory_usage_with_page_cache"
APPLICATION_MEMORY_WITH_HOT_PAGES = "host_application_memory_with_hot_page_usage"
APPLICATION_MEMORY_COLD_PAGES = "host_application_memory_cold_page_size"

THIRD_PARTY_CPU = "third_party_container_cpu_usage"  # of containers of other orchestrators, by uid
THIRD_PARTY_MEMORY = "third_party_container_memory_usage"

HALF_HOUR_S = 1800

_KEPT_LONGEST = (
    NODE_CPU,
    NODE_MEMORY,
    NODE_MEMORY_WITH_PAGE_CACHE,
    NODE_MEMORY_WITH_HOT_PAGES,
    SYSTEM_CPU,
    SYSTEM_MEMORY,
    NODE_BE,
)
_AVERAGED = (
    NUMA_CPU,
    NUMA_MEMORY,
    NUMA_SYSTEM_CPU,
    NUMA_SYSTEM_MEMORY,
    NODE_GPU_CORE,
    NODE_GPU_MEMORY,
    POD_CPU,
    POD_MEMORY,
    POD_MEMORY_WITH_PAGE_CACHE,
    POD_MEMORY_WITH_HOT_PAGES,
    POD_GPU_CORE,
    POD_GPU_MEMORY,
    APPLICATION_CPU,
    APPLICATION_MEMORY,
    APPLICATION_MEMORY_WITH_PAGE_CACHE,
    APPLICATION_MEMORY_WITH_HOT_PAGES,
)


def retention_s(*, aggregate_s: int = 300, longest_s: int = HALF_HOUR_S) -> dict[str, int]:
    """Return how long to keep each kind when reports average over `aggregate_s` and look back `longest_s` at most.

    Kinds that are not listed serve decisions about the last few seconds only; a store's default is enough for them.
    """
    return {kind: max(longest_s, aggregate_s) for kind in _KEPT_LONGEST} | dict.fromkeys(_AVERAGED, aggregate_s)
