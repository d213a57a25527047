"""The slo-controller-config ConfigMap: one JSON document per data key, a cluster strategy and per-node overrides."""
