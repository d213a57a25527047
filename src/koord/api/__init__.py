"""Wire types: what Kubernetes and Koordinator put on the wire, by group-version, and one registry of kinds."""
