"""Collectors turn the machine's files into samples. Each one works and fails alone; none of them decides anything."""
