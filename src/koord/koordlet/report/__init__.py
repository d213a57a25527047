"""What the node tells the cluster of itself: its load, and what its prod pods will not need. Pure."""
