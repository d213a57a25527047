"""The context that everything with I/O in the descheduler is given, and the program's metrics."""

from __future__ import annotations

import random

import msgspec

from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.factory import InformerFactory
from koord.policy.eviction import EvictionLedger
from koord.telemetry.clock import Clock
from koord.telemetry.metrics import MetricRegistry

SUCCESS, ERROR = "success", "error"


class DeschedulerMetrics:
    """The metrics of koord-descheduler."""

    def __init__(self, registry: MetricRegistry) -> None:
        self.registry = registry
        self._evicted = registry.counter(
            "descheduler_pods_evicted",
            "Pods evicted, by result, by the strategy that wanted it, by namespace and by node.",
            ("result", "strategy", "namespace", "node"),
        )
        self.rounds = registry.counter(
            "koord_descheduler_rounds_total",
            "Rounds of the descheduler over the cluster, by result: success, error.",
            ("result",),
        )
        self.proposed = registry.counter(
            "koord_descheduler_proposals_total",
            "Evictions that rounds asked for, by plugin; dry_run is true for those that are only logged.",
            ("strategy", "dry_run"),
        )
        self.round_seconds = registry.histogram(
            "koord_descheduler_round_duration_seconds", "Time of one round, without the evictions that follow.", ()
        )

    def evicted(self, result: str, strategy: str, namespace: str, node: str) -> None:
        self._evicted.labels(result, strategy, namespace, node).inc()


class DeschedulerContext(msgspec.Struct, frozen=True, kw_only=True):
    """The clients, clock and metrics of the program. `identity` marks the jobs that this process created."""

    client: Client
    informers: InformerFactory
    clock: Clock
    recorder: EventRecorder
    metrics: DeschedulerMetrics
    identity: str
    gates: frozenset[str] = frozenset()  # those that are on
    rng: random.Random = msgspec.field(default_factory=random.Random)  # for names
    ledger: EvictionLedger = msgspec.field(default_factory=EvictionLedger)
