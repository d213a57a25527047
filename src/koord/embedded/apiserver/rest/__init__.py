"""The REST verbs of the API server: a request is parsed, dispatched, carried out and answered here."""
