"""Plugins of the descheduler. Each reads a snapshot and speaks through its hand; none does anything itself."""
