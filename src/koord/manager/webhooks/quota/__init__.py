"""Admission of ElasticQuotas, the tree that they form, and whether a pod fits its quota. Pure."""
