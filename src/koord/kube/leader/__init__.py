"""Leader election over a coordination.k8s.io Lease, compatible with client-go."""
