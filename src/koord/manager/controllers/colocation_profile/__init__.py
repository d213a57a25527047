"""Lays ClusterColocationProfiles over pods that exist already and wait for a node."""
