"""Load of nodes: what a report says, what a pod will use, where the ceilings are, and how free that leaves a node."""
