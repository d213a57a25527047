"""A round of descheduling as a pure function: a snapshot and plugins in, proposals out."""
