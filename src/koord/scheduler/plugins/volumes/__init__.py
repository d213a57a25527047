"""This package holds the plugins that place pods by the volumes that they use."""
