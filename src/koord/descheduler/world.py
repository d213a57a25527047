"""What everything impure in the descheduler is made from."""

from __future__ import annotations

import msgspec

from koord.descheduler.metrics import Metrics
from koord.kube.client import Client
from koord.kube.informers import Informers
from koord.kube.recorder import Recorder
from koord.telemetry.clock import Clock


class World(msgspec.Struct, frozen=True, kw_only=True):
    """The clients, clock and metrics of the program. `identity` marks the jobs that this process created."""

    client: Client
    informers: Informers
    clock: Clock
    recorder: Recorder
    metrics: Metrics
    identity: str
    gates: frozenset[str] = frozenset()  # those that are on
