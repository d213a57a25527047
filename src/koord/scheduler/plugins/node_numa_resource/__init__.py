"""NodeNUMAResource binds pods to CPUs and NUMA nodes."""

from koord.scheduler.plugins.node_numa_resource.plugin import NodeNUMAResource

__all__ = ["NodeNUMAResource"]
