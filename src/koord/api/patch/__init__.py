"""This package applies patches of the Kubernetes API to unstructured objects: JSON merge patch and strategic
merge patch, as pure functions.
"""
