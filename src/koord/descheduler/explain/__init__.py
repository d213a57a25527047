"""Reports on what the descheduler did, what it declined and why, and what its jobs wait for."""
