"""The plugins of the Kubernetes descheduler, with its arguments and its words."""
