"""The only way to an API server: transports, client, watch, informers, queues, leases, events."""
