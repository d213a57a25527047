"""This package applies patches to unstructured objects: JSON merge patch and strategic merge patch, purely."""
