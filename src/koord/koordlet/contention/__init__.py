"""What becomes of work on a machine that others use as well: CPU, memory and latency, step by step. Pure.

The rules are those of the kernel as far as the node agent can move them; docs/concepts/contention-model.md has the
formulas and what they leave out.
"""
