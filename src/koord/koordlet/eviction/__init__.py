"""This package holds the one way in which koordlet evicts a pod, and the ledger of every eviction it attempted."""
