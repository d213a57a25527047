"""Plugins that place pods by the volumes that they use."""
