"""koord-manager runs the controllers and webhooks that turn measured load into resources for batch work."""
