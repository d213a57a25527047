"""A Kubernetes API server in Python: object store, schemas, kinds, REST verbs, admission, an HTTPS server
and an in-process transport.
"""
