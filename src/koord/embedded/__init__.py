"""A Kubernetes-compatible cluster inside this process: API server, workload controllers, simulated nodes."""
