"""Everything that flags and gates decide about the agent, as one value."""

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
    """`gates` are the names of those that are on, the runtime hooks' among them."""

    node: str
    gates: frozenset[str]
    state_dir: str = "/var/run/koordlet"  # gone after a reboot, as cgroups are
    address: tuple[str, int] | None = ("", PORT)
    kubepods: str = ""  # the cgroup of all pods, where it cannot be found by itself
    refresh_s: float = 60.0  # after that a file is looked at again, whatever is known of it
    safe_mode: bool = False
    audit: AuditSettings = AuditSettings()
    collect: CollectSettings = CollectSettings()
    round: RoundSettings = RoundSettings()
    pods: PodSettings = PodSettings()
    prediction: PredictionSettings = PredictionSettings()
    topology: TopologySettings = TopologySettings()
    devices: DeviceSettings = DeviceSettings()
    reports_node_metric: bool = True
    interference: InterferenceSettings | None = None  # None: nobody looks for disturbed pods

    @property
    def audits(self) -> bool:
        return "AuditEvents" in self.gates


def default_gates() -> frozenset[str]:
    both = {**gates.defaults(KOORDLET), **gates.defaults(RUNTIME_HOOKS)}
    return frozenset(name for name, on in both.items() if on)
