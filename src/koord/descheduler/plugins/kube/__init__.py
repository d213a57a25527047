"""The plugins of the Kubernetes descheduler, with its argument names and messages."""
