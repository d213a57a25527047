"""How webhooks are reached: the HTTPS server, its certificates and the webhook configurations."""
