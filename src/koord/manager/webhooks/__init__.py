"""Admission decisions as pure functions from a request and an admission context to a decision."""
