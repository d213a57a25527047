"""Recommend resource requests for workloads: from NodeMetrics to the status of Recommendations. Beyond upstream."""
