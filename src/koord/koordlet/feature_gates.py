"""The feature gates of koordlet and its hooks: what each switches, and the module that reads it.

This table drives parsing, effect and documentation. A row of a part that is not built says so: switched on, it is
refused by name; on by default, it is told once at the start. To build the part, give its row a reader.
"""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.config.gates import ALPHA, BETA, FeatureGate, default_feature_gates


class KoordletGate(FeatureGate, frozen=True, kw_only=True):
    """A gate of koordlet. `reader` is the module that has its name."""

    reader: str = ""
    hook: bool = False  # of the runtime hooks, which upstream registers apart


_FLAGS = "koord.cli.daemons.koordlet_flags"
_REGISTRY = "koord.koordlet.strategies.registry"
_HOOKS = "koord.koordlet.hooks.registry"
_CPUSET = "koord.koordlet.hooks.cpuset"
_VICTIMS = "koord.koordlet.strategies.victim_selection"
_AT_SCRAPE = "koord.koordlet.scrape_metrics"


def _on(effect: str, reader: str, *, hook: bool = False) -> KoordletGate:
    return KoordletGate(True, BETA, effect, reader=reader, hook=hook)


def _off(effect: str, reader: str, *, hook: bool = False) -> KoordletGate:
    return KoordletGate(False, ALPHA, effect, reader=reader, hook=hook)


def _unbuilt(effect: str, why: str) -> KoordletGate:
    return KoordletGate(False, ALPHA, effect, unbuilt=True, why=why)


KOORDLET_GATES: Mapping[str, KoordletGate] = {
    "AuditEvents": _off("the audit log", "koord.koordlet.settings"),
    "AuditEventsHTTPHandler": _off("`/events`, the audit log over HTTP", "koord.koordlet.agent"),
    "BECPUSuppress": _on("hold BE work so that the node stays under its threshold", _REGISTRY),
    "BECPUManager": _off("CPUs of BE pods are managed one by one, so suppression lets go", _CPUSET),
    "BECPUEvict": _off("evict BE pods that get too little CPU", _VICTIMS),
    "CPUEvict": _off("evict when the node uses too much CPU", _VICTIMS),
    "CPUAllocatableEvict": _off("evict what is requested beyond batch and mid CPU", _VICTIMS),
    "BEMemoryEvict": _off("evict BE pods when memory is short", _VICTIMS),
    "MemoryEvict": _off("evict by priority when memory is short", _VICTIMS),
    "MemoryAllocatableEvict": _off("evict what is requested beyond batch and mid memory", _VICTIMS),
    "CPUBurst": _on("let containers run past their CPU limit for a while", _REGISTRY),
    "SystemConfig": _off("the machine's memory watermarks and scheduler switches", _REGISTRY),
    "RdtResctrl": _on("shares of cache and memory bandwidth", _REGISTRY),
    "ResctrlCollector": _off("samples of cache and memory bandwidth", _FLAGS),
    "NodeTopologyReport": _on("publish the NodeResourceTopology", _FLAGS),
    "Accelerators": _off("accelerators in the Device", _FLAGS),
    "RDMADevices": _off("RDMA cards in the Device", _FLAGS),
    "CPICollector": _off("samples of cycles per instruction", _FLAGS),
    "Libpfm4": _unbuilt("perf events by name", "cycles and instructions are counted without libpfm4"),
    "PSICollector": _off("samples of stalls", _FLAGS),
    "InterferenceDetection": _off("find pods that batch work disturbs, and the culprit; not Koordinator's", _REGISTRY),
    "BlkIOReconcile": _off("limits and weights of disks", _REGISTRY),
    "ColdPageCollector": _off("samples of memory that nobody touches", _FLAGS),
    "HugePageReport": _off("huge pages in the NodeResourceTopology", _FLAGS),
    "PodResourcesProxy": _off("serve the kubelet's pod resources with devices added", _FLAGS),
    "HamiCoreVGPUMonitor": _off(
        "what containers with a share of a GPU use by HAMi-core's own counters", "koord.koordlet.hooks.gpu_env"
    ),
    "MPSControlDaemon": _off(
        "a daemon of CUDA MPS for each GPU, which limits the shares of pods that ask for it",
        "koord.koordlet.hooks.gpu_env",
    ),
    "PerCPUMetric": _off("the CPUs of the pools, one by one, as metrics", _AT_SCRAPE),
    "NodeMetricPromMetrics": _off("the last NodeMetric as metrics", _AT_SCRAPE),
    "CgroupReconcile": _off("protection and throttling of memory", _REGISTRY),
    "GroupIdentity": _on("which groups win when tasks compete for a CPU", _REGISTRY, hook=True),
    "CPUSetAllocator": _on("write the CPUs that the scheduler chose", _HOOKS, hook=True),
    "BatchResource": _on("write shares, quota and memory of batch resources", _HOOKS, hook=True),
    "GPUEnvInject": _off("give containers their GPUs by environment", _HOOKS, hook=True),
    "RDMADeviceInject": _off("give containers their RDMA devices", _HOOKS, hook=True),
    "CPUNormalization": _off("quotas scaled by the node's CPU normalization ratio", _HOOKS, hook=True),
    "CoreSched": _off("core scheduling groups and idle classes", _HOOKS, hook=True),
    "TerwayQoS": _off("network limits by Terway", _HOOKS, hook=True),
    "TCNetworkQoS": _off("network limits by tc", _HOOKS, hook=True),
    "Resctrl": _off("cache and memory bandwidth of single pods", _HOOKS, hook=True),
    "OOMScoreAdj": _off("the OOM score of containers", _HOOKS, hook=True),
}


def default_gates() -> frozenset[str]:
    return frozenset(name for name, on in default_feature_gates(KOORDLET_GATES).items() if on)
