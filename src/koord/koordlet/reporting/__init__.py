"""Tells the cluster about this node: what is used, how it is built, what prod pods will not need, who is disturbed."""
