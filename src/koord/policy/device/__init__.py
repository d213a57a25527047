"""Devices of nodes: what is there, what is taken, what a pod asks for, and which cards it gets."""
