"""The openb GPU-sharing experiment, replayed on the scheduler's own engine."""
