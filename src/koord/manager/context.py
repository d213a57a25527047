"""The context that every controller and webhook is given: clients, clock, recorder and the program's settings."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import msgspec

from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.factory import InformerFactory
from koord.telemetry.clock import Clock

NAMESPACE = "koordinator-system"


class ManagerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The flags and feature gates that more than one part reads."""

    namespace: str = NAMESPACE  # where this program lives: its lease, its certificate
    config_namespace: str = NAMESPACE
    config_name: str = "slo-controller-config"
    gates: Mapping[str, bool] = {}
    plugins: tuple[str, ...] = ("*",)  # of the noderesource controller; "-Name" leaves one out
    sync_period_s: float = 0.0  # 0: only changes are looked at

    def is_gate_enabled(self, name: str) -> bool:
        """Return whether the feature gate is on. An unknown gate is a programming error and raises."""
        return self.gates[name]


class ManagerContext(msgspec.Struct, frozen=True, kw_only=True):
    client: Client
    informers: InformerFactory
    clock: Clock
    recorder: EventRecorder
    settings: ManagerSettings
    rng: Random = msgspec.field(default_factory=Random)  # for pauses between tries
