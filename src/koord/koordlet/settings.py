"""The agent's settings as one value; flags and feature gates are turned into it by the CLI."""

from __future__ import annotations

import msgspec

from koord.api.config import gates
from koord.api.config.gate_tables import KOORDLET, RUNTIME_HOOKS
from koord.koordlet.collect.settings import Settings as CollectSettings
from koord.koordlet.observe.scene import Settings as RoundSettings
from koord.koordlet.pods.settings import Settings as PodSettings
from koord.koordlet.reporting.device import Settings as DeviceSettings
from koord.koordlet.reporting.interference import Settings as InterferenceSettings
from koord.koordlet.reporting.prediction import Settings as PredictionSettings
from koord.koordlet.reporting.topology import Settings as TopologySettings

PORT = 9316


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    folder: str = "/var/log/koordlet"
    verbose: int = 3
    max_mb: int = 16
    readers: int = 4
    page_limit: int = 2048


class Settings(msgspec.Struct, frozen=True, kw_only=True):
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
    round: RoundSettings = RoundSettings()
    pods: PodSettings = PodSettings()
    prediction: PredictionSettings = PredictionSettings()
    topology: TopologySettings = TopologySettings()
    devices: DeviceSettings = DeviceSettings()
    reports_node_metric: bool = True
    interference: InterferenceSettings | None = None  # None: interference is not detected

    @property
    def audits(self) -> bool:
        return "AuditEvents" in self.gates


def default_gates() -> frozenset[str]:
    """Return the names of the gates that are on by default."""
    both = {**gates.defaults(KOORDLET), **gates.defaults(RUNTIME_HOOKS)}
    return frozenset(name for name, on in both.items() if on)
