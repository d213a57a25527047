"""Which class a pod is in, and what follows from it."""
