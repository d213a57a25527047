"""This package defines the wire types of Kubernetes and Koordinator, by group-version, and one registry of kinds."""
