"""The agent's settings as one value, which the CLI makes of flags and feature gates, and the RBAC rules it needs.

Eviction by CRI is an interface here, by which the evictor stops a pod's containers through the container runtime: its
client needs gRPC, which is an optional dependency.
"""

from __future__ import annotations

import importlib.util
from typing import Protocol

import msgspec

from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.gpu.mps import MpsSettings
from koord.koordlet.collect.collector import CollectSettings
from koord.koordlet.hooks.hook import HookSettings
from koord.koordlet.inputs.kubelet_client import PodSourceSettings
from koord.koordlet.inputs.yarn_containers import YarnCopilotSettings
from koord.koordlet.nri.settings import HookServiceSettings
from koord.koordlet.plugin import KoordletPlugins
from koord.koordlet.pod_resources.settings import PodResourcesProxySettings
from koord.koordlet.reporters.interference_reporter import InterferenceReporterSettings
from koord.koordlet.reporters.node_metric_reporter import PredictorSettings
from koord.koordlet.reporters.object_reporter import DeviceReporterSettings, TopologyReporterSettings
from koord.koordlet.strategies.strategy import StrategySettings

PORT = 9316

CALL_TIMEOUT_S = 5.0
MAX_GRACE_S = 10  # a later victim is dropped when it had to wait for longer than its numbers are good for


class CriEvictionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The sockets at which a runtime may be, the first that has the pod counts, and the grace period of containers."""

    endpoints: tuple[str, ...]
    grace_s: int = 0
    timeout_s: float = CALL_TIMEOUT_S  # of one call, beside the grace period


class PodStopped(msgspec.Struct, frozen=True):
    containers: tuple[str, ...]


class PodNotStopped(msgspec.Struct, frozen=True):
    """PodNotStopped says why at least one container of a pod may still run."""

    reason: str


class PodStopper(Protocol):
    async def stop_pod(self, uid: str) -> PodStopped | PodNotStopped: ...

    async def close(self) -> None: ...


def missing_requirement() -> str:
    """Return what eviction by CRI lacks in this installation, or nothing."""
    if importlib.util.find_spec("grpc") is not None:
        return ""
    return (
        "--only-evict-by-api=false: eviction by CRI needs gRPC, which is not installed; it comes with the extra `hooks`"
    )


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    folder: str = "/var/log/koordlet"
    verbose: int = 3
    max_mb: int = 16
    readers: int = 4
    page_limit: int = 2048


class ThirdPartyKiller(Protocol):
    """ThirdPartyKiller kills containers of another orchestrator, by uid."""

    async def kill(self, uid: str) -> str | None:
        """Kill one. Return None when it is gone, else why not."""
        ...

    async def is_running(self, uid: str) -> bool | str:
        """Return whether it is still there, or why that is not known."""
        ...


class KoordletSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of the agent. `gates` are the names of enabled gates, those of runtime hooks included."""

    node: str
    gates: frozenset[str]
    state_dir: str = "/var/run/koordlet"  # gone after a reboot, as cgroups are
    address: tuple[str, int] | None = ("", PORT)
    kubepods: str = ""  # the cgroup of all pods, where it cannot be found by itself
    refresh_s: float = 60.0  # after that a file is read again, whatever is known of it
    safe_mode: bool = False
    audit: AuditSettings = AuditSettings()
    collect: CollectSettings = CollectSettings()
    strategies: StrategySettings = StrategySettings()
    hooks: HookServiceSettings = HookServiceSettings()
    pods: PodSourceSettings = PodSourceSettings()
    prediction: PredictorSettings = PredictorSettings()
    topology: TopologyReporterSettings = TopologyReporterSettings()
    devices: DeviceReporterSettings = DeviceReporterSettings()
    reports_node_metric: bool = True
    mps: MpsSettings = MpsSettings()
    cri_eviction: CriEvictionSettings | None = None  # None: pods are evicted through the API server
    yarn: YarnCopilotSettings = YarnCopilotSettings()
    interference: InterferenceReporterSettings = InterferenceReporterSettings()
    pod_resources: PodResourcesProxySettings | None = None  # None: pod resources are not served
    plugins: KoordletPlugins = KoordletPlugins()  # of other packages

    @property
    def hook_settings(self) -> HookSettings:
        """The flags that hooks depend on, with the hooks of other packages."""
        return self.plugins.with_hooks(self.strategies.hooks)

    @property
    def audit_enabled(self) -> bool:
        return "AuditEvents" in self.gates


RBAC_RULES: tuple[RbacRule, ...] = (
    RbacRule("", ("nodes", "pods"), READ_VERBS),
    RbacRule("", ("nodes/status",), ("patch",)),  # conditions of what the kernel supports
    RbacRule("", ("nodes/proxy",), ("get",)),  # the kubelet's /pods and /configz
    RbacRule("", ("persistentvolumeclaims",), ("get",)),  # of pods that want disk limits on their volumes
    RbacRule("", ("pods/eviction",), ("create",)),
    RbacRule("", ("events",), ("create", "patch")),
    RbacRule("slo.koordinator.sh", ("nodeslos", "nodemetrics"), READ_VERBS),
    RbacRule("slo.koordinator.sh", ("nodemetrics/status",), ("patch",)),
    RbacRule("scheduling.koordinator.sh", ("devices",), (*READ_VERBS, "create", "patch")),
    RbacRule("topology.node.k8s.io", ("noderesourcetopologies",), (*READ_VERBS, "create", "patch")),
)
# With --tell-interference: the annotation on pods that others disturb.
INTERFERENCE_RBAC_RULES: tuple[RbacRule, ...] = (RbacRule("", ("pods",), ("patch",)),)
