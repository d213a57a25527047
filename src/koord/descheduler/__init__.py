"""koord-descheduler moves pods to better nodes: rounds propose evictions, migration jobs carry them out safely."""
