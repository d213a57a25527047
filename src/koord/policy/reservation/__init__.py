"""Reservations: who may use one, what is left of it and of its node, which one is best, and how it ends."""
