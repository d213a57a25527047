"""`koord restore-nodes`: nodes as they were without koord, before it is uninstalled."""
