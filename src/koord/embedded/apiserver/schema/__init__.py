"""This package describes the structure of objects: nodes, decoding, pruning, validation, OpenAPI documents."""
