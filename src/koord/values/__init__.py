"""Exact arithmetic on Kubernetes' small values: quantities, resource vectors, cpusets, durations, selectors.

Pure: no I/O, no clock, and nothing that knows a Kubernetes kind.
"""
