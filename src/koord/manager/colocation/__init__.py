"""This package decides, purely, what of a node is reclaimed for batch and mid pods, and what is written."""
