"""This package writes what the node measured and has to the API server; `builders/` builds the objects."""
