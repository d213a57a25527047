"""Explain decisions: where a pod is, what was decided about it, and what would be decided now."""
