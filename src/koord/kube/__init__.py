"""This package is the only way to an API server: transports, clients, informers, controllers, leases and events."""
