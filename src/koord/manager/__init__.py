"""koord-manager: the controllers and webhooks that turn measured load into resources that batch work can use."""
