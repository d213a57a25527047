"""What to do about what was measured: one decision per file, each from a frozen view to a plan. Pure."""
