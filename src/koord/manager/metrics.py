"""The numbers that koord-manager publishes, under Koordinator's names; ours beside them begin with the same prefix."""

from __future__ import annotations

from koord.telemetry.metrics.buckets import exponential
from koord.telemetry.metrics.registry import Registry

_WEBHOOK = "koord_manager_webhook"
_SLO = "slo_controller"


class Metrics:
    """One instance for a program: made from its registry, handed to whoever counts."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        outcome = ("status", "reason")
        self.node_resource_reconciles = registry.counter(
            f"{_SLO}_node_resource_reconcile_count", "Reconciliations of a node's extended resources.", outcome
        )
        self.node_metric_reconciles = registry.counter(
            f"{_SLO}_nodemetric_reconcile_count", "Reconciliations of NodeMetric specs.", outcome
        )
        self.node_metric_parses = registry.counter(
            f"{_SLO}_nodemetric_spec_parse_count", "Readings of what NodeMetric specs are made from.", outcome
        )
        self.node_slo_reconciles = registry.counter(
            f"{_SLO}_nodeslo_reconcile_count", "Reconciliations of NodeSLO specs.", outcome
        )
        self.node_slo_parses = registry.counter(
            f"{_SLO}_nodeslo_spec_parse_count", "Readings of what NodeSLO specs are made from.", outcome
        )
        self.plugin_runs = registry.counter(
            f"{_SLO}_node_resource_run_plugin_status",
            "Steps of the plugins that compute a node's extended resources.",
            ("plugin", "status", "reason"),
        )
        self.extended_allocatable = registry.gauge(
            f"{_SLO}_node_extended_resource_allocatable_internal",
            "Extended resources as they were last computed for a node.",
            ("node", "resource", "unit"),
        )
        self.webhook_duration_ms = registry.histogram(
            f"{_WEBHOOK}_webhook_duration_milliseconds",
            "Time that an admission decision took.",
            ("webhook_type", "object_type", "operation", "plugin_name", "status"),
            exponential(0.001, 2, 20),
        )
        self.quota_shared_weight = registry.gauge(
            f"{_WEBHOOK}_quota_shared_weight",
            "Shared weight of a quota as admitted.",
            ("elasticquota_name", "resource_name"),
        )
        self.binding_decisions = registry.counter(
            f"{_WEBHOOK}_binding_admission_decisions_total", "Decisions about bindings.", ("decision",)
        )
        # Beyond upstream: a fault that a failure policy of Ignore would hide has a number here.
        self.malformed_reviews = registry.counter(
            f"{_WEBHOOK}_malformed_reviews_total", "Requests that were no AdmissionReview.", ("path",)
        )
        self.failed_decisions = registry.counter(
            f"{_WEBHOOK}_failed_decisions_total", "Decisions that ended in an error of this program.", ("path",)
        )
        self.certificate_not_after = registry.gauge(
            f"{_WEBHOOK}_certificate_not_after_seconds",
            "Unix time at which the certificate that is served, and the authority that signed it, run out.",
            ("part",),
        )
        self.certificate_syncs = registry.counter(
            f"{_WEBHOOK}_certificate_syncs_total", "Checks of certificate and webhook configurations.", ("status",)
        )
        self.trusted_authorities = registry.gauge(
            f"{_WEBHOOK}_trusted_authorities", "Authorities in the caBundle: 2 while one replaces another."
        )
        self.reachable = registry.gauge(
            f"{_WEBHOOK}_reachable",
            "1 when a review sent the way an API server sends it was answered, 0 when not.",
            ("path",),
        )
        self.bypassed_pods = registry.counter(
            f"{_WEBHOOK}_bypassed_pods_total", "Pods that a profile selects and that were admitted without it."
        )
