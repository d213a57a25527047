"""Simulated nodes: any number of kubelets with any hardware, known to the cluster only through the Kubernetes API."""
