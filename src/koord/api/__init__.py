"""Wire types: what Kubernetes and Koordinator put on the wire, one module per group-version, and one registry of kinds."""
