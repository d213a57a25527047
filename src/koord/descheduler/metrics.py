"""The context that everything with I/O in the descheduler is given, and the program's metrics."""

from __future__ import annotations

from koord.telemetry.metrics.registry import Registry

SUCCESS, ERROR = "success", "error"


class Metrics:
    """The metrics of koord-descheduler."""
    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._evicted = registry.counter(
            "descheduler_pods_evicted",
            "Pods evicted, by result, by the strategy that wanted it, by namespace and by node.",
            ("result", "strategy", "namespace", "node"),
        )
        self.rounds = registry.counter("koord_descheduler_rounds_total", "Passes over the cluster.", ("result",))
        self.proposed = registry.counter(
            "koord_descheduler_proposals_total", "Evictions that rounds asked for.", ("strategy", "dry_run")
        )
        self.round_seconds = registry.histogram(
            "koord_descheduler_round_duration_seconds", "How long one pass took to decide.", ()
        )

    def evicted(self, result: str, strategy: str, namespace: str, node: str) -> None:
        self._evicted.labels(result, strategy, namespace, node).inc()
