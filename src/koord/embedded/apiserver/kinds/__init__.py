"""This package holds the strategies of the built-in kinds."""
