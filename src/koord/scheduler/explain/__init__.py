"""Answers to "why": where a pod stands, what was decided about it, and what would be decided now."""
