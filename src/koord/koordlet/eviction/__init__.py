"""This package holds the one way in which koordlet evicts a pod, and the tracker of evictions that are under way."""
