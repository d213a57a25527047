"""A Kubernetes API server in Python: store, schemas, kinds, REST verbs, admission, HTTPS and in-process transport."""
