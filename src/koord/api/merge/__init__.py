"""Patches of the Kubernetes API on plain objects: JSON merge patch and strategic merge patch, as pure functions."""
