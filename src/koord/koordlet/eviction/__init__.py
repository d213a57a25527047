"""The one way in which this agent evicts a pod, and the ledger of all that it evicted or tried to."""
