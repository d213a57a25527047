"""The proxy's metrics: calls that passed, hook calls, and the checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from koord.telemetry.metrics import MetricDeclaration, MetricReading, MetricRegistry, exponential_buckets
from koord.telemetry.process import register_process_metrics

_PREFIX = "koord_runtime_proxy_"
CHECKPOINT_RECORDS = MetricDeclaration(
    f"{_PREFIX}checkpoint_records", "Pods and containers that the proxy keeps a record of.", "gauge", ("kind",)
)


class RuntimeProxyMetrics:
    def __init__(self) -> None:
        self.registry = registry = MetricRegistry()
        register_process_metrics(registry)
        self.requests = registry.counter(
            f"{_PREFIX}requests_total", "CRI calls that passed, by method and gRPC code.", ("method", "code")
        )
        self.hook_s = registry.histogram(
            f"{_PREFIX}hook_duration_seconds",
            "Time of one call of a hook server, by stage and outcome: ok, error, timeout, malformed.",
            ("stage", "outcome"),
            exponential_buckets(0.001, 2, 14),
        )
        self.refused = registry.counter(
            f"{_PREFIX}refused_calls_total",
            "CRI calls that were refused because a hook server with the failure policy Fail failed.",
            ("stage",),
        )
        self.checkpoint_errors = registry.counter(
            f"{_PREFIX}checkpoint_errors_total",
            "Records of pods and containers that could not be written to or removed from the disk.",
        )

    def show_checkpoint(self, pods: Callable[[], int], containers: Callable[[], int]) -> None:
        def read() -> tuple[MetricReading, ...]:
            values = ((("pod",), float(pods())), (("container",), float(containers())))
            return (CHECKPOINT_RECORDS.reading(values),)

        self.registry.source(read)
