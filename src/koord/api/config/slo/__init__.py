"""This package holds the slo-controller-config ConfigMap: one JSON document per data key, each with a cluster
strategy and per-node overrides.
"""
