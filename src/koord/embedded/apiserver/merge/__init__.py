"""This package implements how a write changes an object: JSON patch, server-side apply, and field ownership."""
