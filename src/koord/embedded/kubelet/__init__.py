"""Simulated nodes: any number, any shape, known to the cluster only through the Kubernetes API."""
