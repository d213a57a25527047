"""`koord explain`: why pods, nodes and evictions are as they are."""
