"""The agent's settings as one value; flags and feature gates are turned into it by the CLI."""

from __future__ import annotations

import msgspec

from koord.api.config import gates
from koord.api.config.gates import KOORDLET_GATES, RUNTIME_HOOK_GATES
from koord.koordlet.collect.collector import CollectSettings
from koord.koordlet.inputs.kubelet_client import PodSourceSettings
from koord.koordlet.reporters.device_reporter import DeviceReporterSettings
from koord.koordlet.reporters.interference_reporter import InterferenceReporterSettings
from koord.koordlet.reporters.predictor import PredictorSettings
from koord.koordlet.reporters.topology_reporter import TopologyReporterSettings
from koord.koordlet.strategies.strategy import StrategySettings

PORT = 9316


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    folder: str = "/var/log/koordlet"
    verbose: int = 3
    max_mb: int = 16
    readers: int = 4
    page_limit: int = 2048


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
    pods: PodSourceSettings = PodSourceSettings()
    prediction: PredictorSettings = PredictorSettings()
    topology: TopologyReporterSettings = TopologyReporterSettings()
    devices: DeviceReporterSettings = DeviceReporterSettings()
    reports_node_metric: bool = True
    interference: InterferenceReporterSettings | None = None  # None: interference is not detected

    @property
    def audit_enabled(self) -> bool:
        return "AuditEvents" in self.gates


def default_gates() -> frozenset[str]:
    both = {**gates.default_feature_gates(KOORDLET_GATES), **gates.default_feature_gates(RUNTIME_HOOK_GATES)}
    return frozenset(name for name, on in both.items() if on)
