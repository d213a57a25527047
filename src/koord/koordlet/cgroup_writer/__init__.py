"""This package turns wanted values into kernel files: order, ownership, back-off, journal and audit of every write."""
