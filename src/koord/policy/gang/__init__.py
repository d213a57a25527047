"""Gangs: pods that start together or not at all. Who is in one, what it asks for, and what becomes of a round."""
