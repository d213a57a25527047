"""Apply ClusterColocationProfiles to existing pods that wait for a node."""
