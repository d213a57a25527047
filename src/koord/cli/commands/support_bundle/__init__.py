"""`koord support-bundle`: an archive with what a report of a problem needs, and without secrets.

Secrets are never read. `redaction` removes tokens, private keys and values of environment variables from all else.
"""
