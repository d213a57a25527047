"""The elastic quota tree: who may use how much of the cluster now, and why. Reads no clock and no server."""
