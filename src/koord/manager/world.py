"""The context that every controller and webhook is given: clients, clock, recorder and the program's settings."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.kube.client import Client
from koord.kube.informers import Informers
from koord.kube.recorder import Recorder
from koord.telemetry.clock import Clock

NAMESPACE = "koordinator-system"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The flags and feature gates that more than one part reads."""

    namespace: str = NAMESPACE  # where this program lives: its lease, its certificate
    config_namespace: str = NAMESPACE
    config_name: str = "slo-controller-config"
    gates: Mapping[str, bool] = {}
    plugins: tuple[str, ...] = ("*",)  # of the noderesource controller; "-Name" leaves one out
    sync_period_s: float = 0.0  # 0: only changes are looked at

    def gate(self, name: str) -> bool:
        """Return whether the feature gate is on. An unknown gate is a programming error and raises."""
        return self.gates[name]


class World(msgspec.Struct, frozen=True, kw_only=True):
    client: Client
    informers: Informers
    clock: Clock
    recorder: Recorder
    settings: Settings
