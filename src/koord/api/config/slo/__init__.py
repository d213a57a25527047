"""slo-controller-config: one JSON document per data key, each with a cluster strategy and per-node overrides."""
