"""Metrics of a program: families and their registry, process metrics, and the exposition formats."""
