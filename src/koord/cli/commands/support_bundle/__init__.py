"""`koord support-bundle`: an archive with what a report of a problem needs, and without secrets.

Secrets are never read. Tokens, private keys and values of environment variables are removed from all else.
"""
