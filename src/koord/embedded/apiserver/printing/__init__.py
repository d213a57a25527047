"""This package prints the tables of built-in and custom kinds that `kubectl get` shows."""
