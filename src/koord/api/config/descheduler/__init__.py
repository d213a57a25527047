"""This package holds descheduler/v1alpha2: the descheduler's configuration and the arguments of its plugins."""
