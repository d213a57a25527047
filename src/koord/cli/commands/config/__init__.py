"""`koord config`: checks of configuration files without a cluster."""
