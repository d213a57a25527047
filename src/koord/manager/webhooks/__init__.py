"""Admission decisions: pure functions from a request and a view of the cluster to a verdict."""
