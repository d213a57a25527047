"""Clusters that run the real programs on simulated machines, in virtual time."""
