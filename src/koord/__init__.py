"""koord: a Koordinator-compatible co-location platform for Kubernetes."""

__version__ = "0.1.0"
