"""Serving of the webhooks: the HTTPS server, its certificates, its handlers and the webhook configurations."""
