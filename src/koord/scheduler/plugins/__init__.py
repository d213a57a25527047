"""One plugin per file or folder, listed in `registry`."""
