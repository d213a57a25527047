"""The metrics of the webhooks, under Koordinator's names; own ones have the same prefix.

Controllers count for themselves and are read on demand (`readings`).
"""

from __future__ import annotations

from koord.telemetry.metrics import MetricRegistry, exponential_buckets

_METRIC_PREFIX = "koord_manager_webhook"


class WebhookMetrics:
    """The webhook metrics of a program: built from its registry, handed to whoever counts."""

    def __init__(self, registry: MetricRegistry) -> None:
        self.registry = registry
        self.webhook_duration_ms = registry.histogram(
            f"{_METRIC_PREFIX}_webhook_duration_milliseconds",
            "Time of an admission decision, by webhook, object, operation, plugin and result.",
            ("webhook_type", "object_type", "operation", "plugin_name", "status"),
            exponential_buckets(0.001, 2, 20),
        )
        self.binding_decisions = registry.counter(
            f"{_METRIC_PREFIX}_binding_admission_decisions_total",
            "Decisions of binding admission: allowed, denied and why it was not asked.",
            ("decision",),
        )
        # Beyond upstream: a fault that a failure policy of Ignore would hide has a number here.
        self.malformed_reviews = registry.counter(
            f"{_METRIC_PREFIX}_malformed_reviews_total",
            "Requests whose body is no AdmissionReview, by path.",
            ("path",),
        )
        self.failed_decisions = registry.counter(
            f"{_METRIC_PREFIX}_failed_decisions_total",
            "Admission decisions that ended in an error of koord-manager, by path.",
            ("path",),
        )
        self.certificate_not_after = registry.gauge(
            f"{_METRIC_PREFIX}_certificate_not_after_seconds",
            "Unix time at which the certificate that is served, and the authority that signed it, run out.",
            ("part",),
        )
        self.certificate_syncs = registry.counter(
            f"{_METRIC_PREFIX}_certificate_syncs_total",
            "Checks of the serving certificate and the webhook configurations, by outcome.",
            ("status",),
        )
        self.trusted_authorities = registry.gauge(
            f"{_METRIC_PREFIX}_trusted_authorities",
            "Certificate authorities in the caBundle of the webhook configurations: 2 while one replaces another.",
        )
        self.reachable = registry.gauge(
            f"{_METRIC_PREFIX}_reachable",
            "1 when a review sent the way an API server sends it was answered, 0 when not.",
            ("path",),
        )
