"""This package parses and evaluates CEL, the language of admission policies. It is pure."""
