"""From wanted values to kernel files: order, ownership, back-off, journal and audit of every write."""
