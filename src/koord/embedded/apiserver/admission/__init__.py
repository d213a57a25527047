"""Admission of writes: the chain, the built-in plugins, in-process hooks and webhooks."""
