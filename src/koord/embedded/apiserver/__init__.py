"""A Kubernetes API server in Python: store, schemas, kinds, REST verbs, admission, HTTP and in-process doors."""
