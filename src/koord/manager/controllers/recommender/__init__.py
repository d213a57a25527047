"""Tells how much workloads should ask for: from NodeMetrics to the status of Recommendations. Beyond upstream."""
