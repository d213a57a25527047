"""This package holds kubescheduler.config.k8s.io/v1: the scheduler's configuration and the arguments of its plugins."""
