"""`koord quota`: the quota tree and what-if checks."""
