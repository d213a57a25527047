"""This package holds the scheduler plugins, one per file or feature folder; `registry` lists them all."""
